"""One stretch of memory for all probes: as KV of every type and layout, and as plain arrays.

Its bits are random numbers between -2 and 2 as bf16, so that any two of them are such a number as float32, and as int8
they are anything: no type meets a NaN or a number so small that the CPU slows down.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..kernels.aligned import aligned_zeros
from ..kernels.layout import KV_DTYPES, KvCache, KvShape
from .sizes import Sizes

INT8_SCALE = np.float32(1 / 64)


class Memory:
    """words: (memory_bytes / 8,) int64, the memory itself."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.words = aligned_zeros((sizes.memory_bytes // 8,), np.int64)
        self.words[:] = np.resize(harmless(), self.words.size)

    def cache(self, layout: str, kv_dtype: str, block_tokens: int, num_layers: int = 1) -> KvCache:
        """All of the memory as blocks of this kind; int8 has scales of its own."""
        sizes = self.sizes
        shape = KvShape(num_layers, 1, sizes.kv_heads, block_tokens, sizes.head_dim, layout, kv_dtype)
        flat = self.words.view(KV_DTYPES[kv_dtype])
        per_layer = flat.size // num_layers // shape.strides[0]
        shape = replace(shape, num_blocks=per_layer)
        data = flat[: num_layers * per_layer * shape.strides[0]].reshape(shape.data_shape)
        return KvCache(shape, data, np.full(shape.scales_shape, INT8_SCALE))

    def halves(self) -> tuple[Any, Any]:
        """Two arrays of int64 of half its size, to copy one to the other."""
        middle = self.words.size // 2
        return self.words[:middle], self.words[middle : 2 * middle]


def harmless() -> Any:
    """A piece of what the memory is filled with, int64: any two bytes of it that are neighbours are a bf16 of .03 to 2,
    so that it is a usual number as every type, and as a scale of int4."""
    upper = np.array((0x3D, 0x3E, 0x3F, 0xBD, 0xBE, 0xBF), np.uint8)
    return np.random.default_rng(0).choice(upper, 1 << 17).view(np.int64)


def shuffled_tables(cache: KvCache, context: int) -> Any:
    """(sequences, blocks) int32: as many sequences of `context` tokens as the cache holds, blocks in random order."""
    blocks = -(-context // cache.shape.block_tokens)
    sequences = max(cache.shape.num_blocks // blocks, 1)
    order = np.random.default_rng(5).permutation(cache.shape.num_blocks)[: sequences * blocks]
    return np.ascontiguousarray(order.reshape(sequences, blocks), np.int32)
