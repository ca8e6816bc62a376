"""What a KV type does to answers: the same prompts through a small model, greedily, over KV of each type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.config import SIZES
from ..model.forward import Model, StepBatch
from ..model.weights import random_weights
from .sizes import Sizes

BLOCK_TOKENS = 16
BASELINE, MODEL = "bf16", "nano"


@dataclass(frozen=True)
class Divergence:
    """Against the answers over BASELINE. alike: share of prompts with the same answer; kept: share of an answer's
    tokens before the first other one, mean; drift: RMS of the difference of the first token's logits, over their RMS.
    """

    alike: float
    kept: float
    drift: float


def divergences(kv_dtypes: Iterable[str], sizes: Sizes, seed: int = 0) -> dict[str, Divergence]:
    """KV type -> what it changes. Weights and prompts are drawn from the seed.

    Random weights make many near ties, which any rounding decides: answers of a trained model hold longer.
    """
    prompts, length, said = sizes.answers
    config = SIZES[MODEL]
    model = Model(config, random_weights(config, seed), "exact", 1)
    asked = np.random.default_rng(seed).integers(0, config.vocab, (prompts, length))
    base, base_logits = _answers(model, BASELINE, asked, said)
    found = {}
    for kv_dtype in kv_dtypes:
        answers, logits = _answers(model, kv_dtype, asked, said)
        same = np.cumprod(answers == base, axis=1)
        drift = np.sqrt(np.mean((logits - base_logits) ** 2) / np.mean(base_logits**2))
        found[kv_dtype] = Divergence(float(same[:, -1].mean()), float(same.mean()), float(drift))
    return found


def _answers(model: Model, kv_dtype: str, prompts: Any, answer: int) -> tuple[Any, Any]:
    """(prompts, answer) int64, and the logits (prompts, vocab) float64 behind the first token of an answer."""
    rows, length = prompts.shape
    blocks = -(-(length + answer) // BLOCK_TOKENS)
    tables = np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks)
    cache = model.kv_shape(rows * blocks, BLOCK_TOKENS, "NHD", kv_dtype).allocate()
    said = np.empty((rows, answer), np.int64)
    tokens, context, logits = prompts, 0, None
    for i in range(answer):
        result = model.step(cache, _batch(tokens, context, tables))
        if logits is None:
            logits = result.logits.astype(np.float64)
        said[:, i] = result.next_tokens
        context += tokens.shape[1]
        tokens = result.next_tokens[:, None]
    return said, logits


def _batch(tokens: Any, context: int, tables: Any) -> StepBatch:
    """The next tokens (rows, n) of every sequence, behind `context` others."""
    rows, n = tokens.shape
    places = np.arange(context, context + n)
    slots = tables[:, places // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + places % BLOCK_TOKENS
    return StepBatch(
        tokens=np.ascontiguousarray(tokens).reshape(-1),
        positions=np.tile(places, rows),
        slots=slots.reshape(-1),
        row_starts=np.arange(rows + 1) * n,
        contexts=np.full(rows, context),
        tables=tables,
        sample_keys=np.zeros(rows, np.uint64),
    )
