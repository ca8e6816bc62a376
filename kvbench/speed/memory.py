"""One stretch of memory for all probes: as KV of every type and layout, and as plain arrays.

Its bits are random numbers between -2 and 2 as bf16, so that any two of them are such a number as float32, and as int8
they are anything: no type meets a NaN or a number so small that the CPU slows down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.layout import KV_DTYPES, KvCache, KvShape
from ..kernels.quantise import to_bf16
from .sizes import Sizes

INT8_SCALE = np.float32(1 / 64)


class Memory:
    """words: (memory_bytes / 8,) int64, the memory itself."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        drawn = np.random.default_rng(0).uniform(-2, 2, 1 << 16).astype(np.float32)
        piece = to_bf16(drawn).view(np.int64)
        self.words = np.resize(piece, sizes.memory_bytes // 8)

    def cache(self, layout: str, kv_dtype: str, block_tokens: int, num_layers: int = 1) -> KvCache:
        """All of the memory as blocks of this kind; int8 has scales of its own."""
        return self.cache_like(KvShape(num_layers, 1, self.sizes.kv_heads, block_tokens, self.sizes.head_dim, layout, kv_dtype))

    def cache_like(self, shape: KvShape) -> KvCache:
        """The same for a shape of which only the number of blocks is open."""
        flat = self.words.view(KV_DTYPES[shape.kv_dtype])
        block = shape.strides[0]
        num_blocks = flat.size // (block * shape.num_layers)
        filled = KvShape(**{**vars(shape), "num_blocks": num_blocks})
        data = flat[: num_blocks * block * shape.num_layers].reshape(filled.data_shape)
        return KvCache(filled, data, np.full(filled.scales_shape, INT8_SCALE))

    def halves(self) -> tuple[Any, Any]:
        """Two arrays of int64 of half its size, to copy one to the other."""
        middle = self.words.size // 2
        return self.words[:middle], self.words[middle : 2 * middle]


def shuffled_tables(cache: KvCache, context: int) -> Any:
    """(sequences, blocks) int32: as many sequences of `context` tokens as the cache holds, blocks in random order."""
    blocks = -(-context // cache.shape.block_tokens)
    sequences = max(cache.shape.num_blocks // blocks, 1)
    order = np.random.default_rng(5).permutation(cache.shape.num_blocks)[: sequences * blocks]
    return np.ascontiguousarray(order.reshape(sequences, blocks), np.int32)
