"""A model and its KV in blocks, as the engine's worker uses it: step, sample, copy blocks, read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels import sampling
from ..kernels.kv_copy import copy_blocks
from ..kernels.layout import KvCache
from .forward import I64, Model, StepBatch, StepResult
from .weights import F32


class PagedModel:
    """block_bytes: KV of one block over all layers. Block ids begin at 1; block 0 is scratch."""

    def __init__(self, model: Model, cache: KvCache) -> None:
        self.model, self.cache = model, cache
        self.vocab = model.config.vocab
        self.block_bytes = cache.shape.nbytes // cache.shape.num_blocks

    def step(self, batch: StepBatch) -> StepResult:
        return self.model.step(self.cache, batch)

    def sample(self, logits: F32, keys: NDArray[np.uint64], temperature: float) -> I64:
        """(R,) a token for each row of logits, by its key; temperature 0: the most likely."""
        if temperature > 0:
            return sampling.draw(logits, temperature, keys)
        return sampling.greatest(logits)

    def copy(self, pairs: I64) -> None:
        """Copy whole blocks of all layers, in order; pairs (n, 2) of source and destination."""
        copy_blocks(self.cache, pairs, self.model.threads)

    def read(self, blocks: I64) -> NDArray[np.uint8]:
        """(n, bytes) what lies in some blocks, scales included."""
        parts = [self.cache.data[:, blocks]]
        if self.cache.shape.kv_dtype == "int8":
            parts.append(self.cache.scales[:, blocks])
        rows = [np.ascontiguousarray(p.swapaxes(0, 1)).reshape(len(blocks), -1).view(np.uint8) for p in parts]
        return np.concatenate(rows, axis=1)

    def warm_up(self, temperature: float) -> None:
        """Compile, or load, every kernel of a run, on the scratch block."""
        tokens = min(self.cache.shape.block_tokens, 2)
        for rows in ([1], [tokens, 1], [tokens]):
            count = sum(rows)
            batch = StepBatch(
                tokens=np.zeros(count, np.int64),
                positions=np.concatenate([np.arange(n) for n in rows]),
                slots=np.concatenate([np.arange(n) for n in rows]),
                row_starts=np.concatenate(([0], np.cumsum(rows))),
                contexts=np.zeros(len(rows), np.int64),
                tables=np.zeros((len(rows), 1), np.int32),
                sample_keys=np.zeros(len(rows), np.uint64),
                temperature=temperature,
            )
            self.step(batch)
        self.copy(np.zeros((1, 2), np.int64))
