"""Attention over a paged cache in float64, one query at a time, and caches whose unused slots are not numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbench.kernels.layout import KvCache, KvShape

_BF16_NAN = 0x7FC0


def poisoned(shape: KvShape) -> KvCache:
    """A cache in which nothing is a number; of int8 the scales are not."""
    cache = shape.allocate()
    cache.data[:] = {"float32": np.nan, "bf16": _BF16_NAN, "int8": 77, "int4": 0xFF}[shape.kv_dtype]
    cache.scales[:] = np.nan
    return cache


def write(cache: KvCache, slots: Any, rng: np.random.Generator) -> None:
    """Random K and V in these slots of every layer; the values depend on the slots' order, not on the layout."""
    shape = cache.shape
    blocks, offsets = np.divmod(np.asarray(slots, np.int64), shape.block_tokens)
    for layer in range(shape.num_layers):
        for side in (0, 1):
            values = rng.standard_normal((len(blocks), shape.num_kv_heads, shape.head_dim)).astype(np.float32)
            stored: Any = values
            if shape.kv_dtype == "bf16":
                stored = (values.view(np.uint32) >> 16).astype(np.uint16)
            if shape.kv_dtype == "int8":
                stored = np.clip(np.round(values * 40), -127, 127)
                cache.scales[layer, blocks, side, :, offsets] = rng.uniform(0.01, 0.03, values.shape[:2])
            if shape.kv_dtype == "int4":
                stored = _int4_rows(rng, values.shape)
            if shape.layout == "NHD":
                cache.data[layer, blocks, side, offsets] = stored
            else:
                cache.data[layer, blocks, side, :, offsets] = stored


def _int4_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random rows of int4 for (tokens, heads, head_dim): of 32 channels two bytes of scale, then 16 of halves."""
    groups = rng.integers(0, 256, (*shape[:2], -(-shape[2] // 32), 18)).astype(np.uint8)
    scales = rng.uniform(0.1, 0.3, groups.shape[:3]).astype(np.float32).view(np.uint32) >> 16
    groups[..., 0], groups[..., 1] = scales & 255, scales >> 8
    return groups.reshape(*shape[:2], -1)


def _of_int4(rows: Any, head_dim: int) -> Any:
    """Channel by channel, as the format says it."""
    out = np.empty((*rows.shape[:-1], head_dim))
    for channel in range(head_dim):
        group = rows[..., channel // 32 * 18 :][..., :18].astype(np.int64)
        half = group[..., 2 + channel % 16] >> (4 if channel % 32 >= 16 else 0)
        scale = ((group[..., 0] + 256 * group[..., 1]).astype(np.uint32) << 16).view(np.float32)
        out[..., channel] = ((half & 15) - 8) * scale.astype(np.float64)
    return out


def read(cache: KvCache, layer: int, table: Any, begin: int, end: int) -> Any:
    """(2, tokens, KV heads, head_dim) float64: K and V of the tokens begin to end of a block table."""
    shape = cache.shape
    out = np.empty((2, end - begin, shape.num_kv_heads, shape.head_dim))
    for i, token in enumerate(range(begin, end)):
        block, offset = int(table[token // shape.block_tokens]), token % shape.block_tokens
        part = cache.data[layer, block, :, offset] if shape.layout == "NHD" else cache.data[layer, block, :, :, offset]
        if shape.kv_dtype == "bf16":
            part = (part.astype(np.uint32) << 16).view(np.float32)
        out[:, i] = _of_int4(part, shape.head_dim) if shape.kv_dtype == "int4" else part
        if shape.kv_dtype == "int8":
            out[:, i] *= cache.scales[layer, block, :, :, offset, None]
    return out


def attention(q: Any, cache: KvCache, layer: int, table: Any, length: int, window: int = 0) -> Any:
    """(query heads, head_dim) float64: one query against the first `length` tokens, or the last `window` of them."""
    begin = max(length - window, 0) if window else 0
    keys, values = read(cache, layer, table, begin, length)
    group = len(q) // cache.shape.num_kv_heads
    out = np.zeros(q.shape)
    for h in range(len(q)):
        scores = keys[:, h // group] @ q[h].astype(np.float64) / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max(initial=-np.inf))
        if length:
            out[h] = weights @ values[:, h // group] / weights.sum()
    return out
