"""New keys and values into the paged cache, in its type, and back out of it as float32.

A row of a token does not depend on the rows beside it, the layout, or the threads: these share the heads, so even a
slot that is named twice has the values of the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry
from .layout import KvCache
from .quantise import get_row, put_row
from .simd import at, pointer
from .threads import share


def write(k: Any, v: Any, cache: KvCache, layer: int, slots: Any, threads: int = 1) -> None:
    """Store the keys and values of T tokens at their slots.

    k, v     (T, num_kv_heads, head_dim) float32, C order
    slots    (T,) int64: block * block_tokens + offset
    raises   UsageError on another shape or type, or a slot or layer that is not there; nothing is written then
    """
    check_layer(cache, layer)
    _check_rows(k, v, cache, slots)
    heads, dim = k.shape[1:]
    data, scales = cache.data[layer].reshape(-1), cache.scales[layer].reshape(-1)
    size, strides = cache.shape.block_tokens, cache.shape.strides
    share(heads, threads, lambda a, b: _write(k, v, data, scales, slots, size, strides, heads, dim, a, b))


def gather(cache: KvCache, layer: int, table: Any, length: int) -> tuple[Any, Any]:
    """Keys and values of a sequence's first `length` tokens, each (length, num_kv_heads, head_dim) float32.

    table    (blocks,) int32, at least as many as the tokens need
    raises   UsageError on another type, too short a table, or a block or layer that is not there
    """
    check_layer(cache, layer)
    shape = cache.shape
    needed = -(-length // shape.block_tokens)
    if table.dtype != np.int32 or table.ndim != 1 or not table.flags.c_contiguous:
        raise UsageError(f"gather: the table is {table.dtype} {table.shape}; it must be int32 (blocks,), C-contiguous")
    if length < 0 or table.size < needed:
        raise UsageError(f"gather: {length} tokens need {needed} blocks; the table has {table.size}")
    check_ids("gather: block", table[:needed], shape.num_blocks)
    k = np.empty((length, shape.num_kv_heads, shape.head_dim), np.float32)
    v = np.empty_like(k)
    data, scales = cache.data[layer].reshape(-1), cache.scales[layer].reshape(-1)
    _gather(k, v, data, scales, table, shape.block_tokens, shape.strides, shape.num_kv_heads, shape.head_dim)
    return k, v


def check_layer(cache: KvCache, layer: int) -> None:
    if not 0 <= layer < cache.shape.num_layers:
        raise UsageError(f"KV cache: layer {layer} of {cache.shape.num_layers}; it must be 0 or more, and less")


def check_ids(what: str, ids: Any, limit: int) -> None:
    """UsageError unless all ids are 0 or more and less than limit."""
    if ids.size and not (0 <= ids.min() and ids.max() < limit):
        wrong = ids[(ids < 0) | (ids >= limit)][0]
        raise UsageError(f"{what} {wrong} is not in the KV cache; ids are 0 to {limit - 1}")


def _check_rows(k: Any, v: Any, cache: KvCache, slots: Any) -> None:
    shape = cache.shape
    if slots.dtype != np.int64 or slots.ndim != 1 or not slots.flags.c_contiguous:
        raise UsageError(f"KV write: slots are {slots.dtype} {slots.shape}; they must be int64 (T,), C-contiguous")
    wanted = (slots.size, shape.num_kv_heads, shape.head_dim)
    for name, x in (("k", k), ("v", v)):
        if x.shape != wanted or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise UsageError(f"KV write: {name} is {x.dtype} {x.shape}; it must be float32 {wanted}, C-contiguous")
    check_ids("KV write: slot", slots, shape.num_blocks * shape.block_tokens)


@entry
def _write(k, v, data, scales, slots, block_tokens, strides, heads, dim, first, stop):
    """Heads first:stop of every token. data, scales: one layer, flat."""
    of_k, of_v, to, scale = pointer(k), pointer(v), pointer(data), pointer(scales)
    per_block, per_side, per_head, per_token = strides
    for t in range(slots.size):
        block = slots[t] // block_tokens
        offset = slots[t] - block * block_tokens
        place = block * per_block + offset * per_token
        scale_place = 2 * block * heads * block_tokens + offset
        for h in range(first, stop):
            here, scale_at = place + h * per_head, scale_place + h * block_tokens
            row = (t * heads + h) * dim
            put_row(at(to, here), at(of_k, row), dim, scale, scale_at)
            put_row(at(to, here + per_side), at(of_v, row), dim, scale, scale_at + heads * block_tokens)


@entry
def _gather(k, v, data, scales, table, block_tokens, strides, heads, dim):
    to_k, to_v, source, scale = pointer(k), pointer(v), pointer(data), pointer(scales)
    per_block, per_side, per_head, per_token = strides
    for t in range(k.shape[0]):
        block = np.int64(table[t // block_tokens])
        offset = t % block_tokens
        place = block * per_block + offset * per_token
        scale_place = 2 * block * heads * block_tokens + offset
        for h in range(heads):
            here, scale_at = place + h * per_head, scale_place + h * block_tokens
            row = (t * heads + h) * dim
            get_row(at(to_k, row), at(source, here), dim, scale, scale_at)
            get_row(at(to_v, row), at(source, here + per_side), dim, scale, scale_at + heads * block_tokens)
