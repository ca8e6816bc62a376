"""Records greedy tokens of `transformers` for `test_parity.py`; needs the extra `parity`.

python -m tests.model.record
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from kvbench.model.weights import random_weights
from tests.model import peer
from tests.model.paged import SHAPES, prompts

FOLDER = Path(__file__).parents[1] / "golden" / "model"
LENGTHS, NEW = [1, 7, 19, 33], 12
LEAST_GAP = 0.01
"""Between the two greatest logits: a hundred times what two float32 models may differ by."""


def record(shape: str) -> None:
    """Takes the first seed whose tokens no rounding can change."""
    config = SHAPES[shape]
    given = prompts(LENGTHS, config.vocab)
    for seed in range(100):
        model = peer.build(config, random_weights(config, seed))
        outputs = [peer.greedy(model, prompt, NEW) for prompt in given]
        best = np.sort(np.concatenate([logits for _, logits in outputs]), axis=1)
        if (best[:, -1] - best[:, -2]).min() > LEAST_GAP:
            break
    else:
        raise SystemExit(f"{shape}: no seed with clear tokens")
    golden = {
        "config": dataclasses.asdict(config), "seed": seed, "prompts": given, "tokens": [t for t, _ in outputs],
    }  # fmt: skip
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{shape}.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in SHAPES:
        record(name)
