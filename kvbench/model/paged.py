"""A model and its KV in blocks, as the engine's worker uses it: step, sample, copy blocks, read and write them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import sampling
from ..kernels.kv_copy import copy_between, copy_blocks
from ..kernels.layout import KvCache
from .forward import I64, Model, StepBatch, StepResult
from .weights import F32


class KvMemory:
    """Blocks of KV, of a device or of the host beside it. block_bytes: of one block over all layers."""

    def __init__(self, cache: KvCache, threads: int) -> None:
        self.cache, self.threads = cache, threads
        self.block_bytes = cache.shape.nbytes // cache.shape.num_blocks

    def another(self, num_blocks: int) -> KvMemory:
        """Memory of its own for blocks of the same kind; 0 is scratch there, too."""
        return KvMemory(replace(self.cache.shape, num_blocks=num_blocks + 1).allocate(), self.threads)

    def copy_from(self, source: KvMemory, pairs: I64) -> None:
        """Copy whole blocks of all layers, in order; pairs (n, 2) of source and target."""
        copy_between(source.cache, self.cache, pairs, self.threads)

    def copy(self, pairs: I64) -> None:
        """The same between its own blocks."""
        copy_blocks(self.cache, pairs, self.threads)

    def read(self, blocks: I64) -> NDArray[np.uint8]:
        """(n, bytes) what lies in some blocks, scales included."""
        rows = [np.ascontiguousarray(a[:, blocks].swapaxes(0, 1)) for a in self._arrays()]
        return np.concatenate([r.reshape(len(blocks), -1).view(np.uint8) for r in rows], axis=1)

    def write(self, blocks: I64, content: NDArray[np.uint8]) -> None:
        """What `read` has returned into some blocks."""
        at = 0
        for array in self._arrays():
            shape = (len(blocks), array.shape[0], *array.shape[2:])
            size = array.itemsize * prod(shape[1:])
            rows = np.ascontiguousarray(content[:, at : at + size]).view(array.dtype).reshape(shape)
            array[:, blocks] = rows.swapaxes(0, 1)
            at += size

    def _arrays(self) -> list[NDArray[Any]]:
        return [self.cache.data, self.cache.scales] if self.cache.shape.kv_dtype == "int8" else [self.cache.data]


class PagedModel(KvMemory):
    """A model over the memory of its device. Block ids begin at 1; block 0 is scratch."""

    def __init__(self, model: Model, cache: KvCache) -> None:
        super().__init__(cache, model.threads)
        self.model = model
        self.vocab = model.config.vocab

    def step(self, batch: StepBatch) -> StepResult:
        return self.model.step(self.cache, batch)

    def sample(self, logits: F32, keys: NDArray[np.uint64], temperature: float) -> I64:
        """(R,) a token for each row of logits, by its key; temperature 0: the most likely."""
        if temperature > 0:
            return sampling.draw(logits, temperature, keys)
        return sampling.greatest(logits)

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
