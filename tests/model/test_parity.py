"""Logits and greedy tokens of `transformers`: live where the extra `parity` is installed, else from recorded tokens."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.model.config import ModelConfig, from_folder
from kvbench.model.forward import Model
from kvbench.model.weights import random_weights, read_weights
from tests.model import peer
from tests.model.paged import SHAPES, Paged, prompts

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "model").glob("*.json"))
LENGTHS = ([21], [1, 5, 30], [3, 17, 4, 9, 26, 2, 12, 8])


def have(name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed: pip install 'kvbench[parity]'")


@pytest.mark.filterwarnings("ignore")  # of torch and transformers
@pytest.mark.parametrize("lengths", LENGTHS, ids=len)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_tokens_are_those_of_transformers(shape, lengths):
    have("torch")
    have("transformers")
    config, new = SHAPES[shape], 6
    weights = random_weights(config, 5)
    other = peer.build(config, weights)
    paged = Paged(Model(config, weights), prompts(lengths, config.vocab), max(lengths) + new)
    wanted = [peer.greedy(other, prompt, new) for prompt in paged.tokens]
    for token in range(new):
        counts = {s: n if token == 0 else 1 for s, n in enumerate(lengths)}
        result = paged.step(counts)
        for row, (_, logits) in enumerate(wanted):
            np.testing.assert_allclose(result.logits[row], logits[token], rtol=0, atol=1e-4)
    assert [tokens[n:] for tokens, n in zip(paged.tokens, lengths, strict=True)] == [tokens for tokens, _ in wanted]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_that_transformers_saved_is_read(shape, tmp_path):
    have("torch")
    have("transformers")
    config = SHAPES[shape]
    weights = random_weights(config, 5)
    peer.build(config, weights).save_pretrained(tmp_path)
    assert from_folder(tmp_path) == config
    read = read_weights(tmp_path, config)
    assert read.keys() == weights.keys()
    assert all(np.array_equal(read[name], weights[name]) for name in weights)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
def test_tokens_recorded_from_transformers(file, numerics):
    golden = json.loads(file.read_text(encoding="utf-8"))
    config = ModelConfig(**golden["config"])
    model = Model(config, random_weights(config, golden["seed"]), numerics)
    new = len(golden["tokens"][0])
    paged = Paged(model, golden["prompts"], max(map(len, golden["prompts"])) + new)
    assert paged.greedy(new) == golden["tokens"]


def test_every_architecture_is_recorded():
    assert {file.stem for file in GOLDEN} == set(SHAPES)
    assert all(json.loads(f.read_text())["config"] == dataclasses.asdict(SHAPES[f.stem]) for f in GOLDEN)
