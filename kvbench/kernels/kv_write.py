"""New keys and values into the paged cache, in its type, and back out of it as float32.

A row of a token does not depend on the rows beside it, the layout, or the threads. These share the tokens; where a slot
is named twice they share the heads, so that it has the values of the last.

Much at once goes past the caches, row by row: a store through them reads the line that it is about to overwrite, and
under HND a token is scattered over all heads, so that nothing foresees which line comes next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry, jit
from .aligned import aligned_zeros
from .layout import KvCache
from .quantise import get_row, put_row
from .simd import LANES, at, load, pointer, stream
from .stream import LINE, finish
from .threads import share

SHARE_FROM = 1 << 20
"""Bytes of keys below which handing a part to another thread takes longer than doing it."""
STREAM_FROM = 8 << 20
"""Bytes of keys and values from which a call goes past the caches: attention reads what is smaller from them."""
_NOTHING = np.empty(0, np.float32)


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
    past_caches = 2 * k.nbytes >= STREAM_FROM and _in_whole_lines(cache)
    words = data.view(np.float32) if past_caches else _NOTHING

    def run(tokens: tuple[int, int], of_heads: tuple[int, int]) -> None:
        made = aligned_zeros((2 * heads * dim,), np.float32) if past_caches else _NOTHING
        _write(
            k, v, data, words, made.view(data.dtype), made, scales, slots, size, strides, heads, dim, tokens, of_heads,
            past_caches,
        )  # fmt: skip

    worth = threads if k.nbytes >= SHARE_FROM else 1
    if worth > 1 and np.unique(slots).size < slots.size:
        share(heads, worth, lambda first, stop: run((0, slots.size), (first, stop)))
    else:
        share(slots.size, worth, lambda first, stop: run((first, stop), (0, heads)))


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


def _in_whole_lines(cache: KvCache) -> bool:
    """Whether every row begins at a cache line and fills some."""
    return cache.data.ctypes.data % LINE == 0 and cache.shape.row * cache.data.itemsize % LINE == 0


def check_layer(cache: KvCache, layer: int) -> None:
    if not 0 <= layer < cache.shape.num_layers:
        raise UsageError(f"KV cache: layer {layer} of {cache.shape.num_layers}; it must be 0 or more, and less")


def check_ids(what: str, ids: Any, limit: int) -> None:
    """UsageError unless all ids are 0 or more and less than limit."""
    if ids.size and (ids.min() < 0 or ids.max() >= limit):
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
def _write(
    k, v, data, words, made, made_words, scales, slots, block_tokens, strides, heads, dim, tokens, of_heads, past_caches
):
    """A range of tokens and of heads.

    data, scales    one layer, flat;  words: data as float32, for stores past the caches
    made            scratch of a token's rows in the type of data, and made_words the same as float32
    """
    of_k, of_v, to, scale = pointer(k), pointer(v), pointer(data), pointer(scales)
    per_block, per_side, per_head, per_token = strides
    for t in range(tokens[0], tokens[1]):
        block = slots[t] // block_tokens
        offset = slots[t] - block * block_tokens
        place = block * per_block + offset * per_token
        scale_place = 2 * block * heads * block_tokens + offset
        for h in range(of_heads[0], of_heads[1]):
            here, side = place + h * per_head, per_side
            if past_caches:
                to, here, side = pointer(made), 2 * h * dim, dim
            source, scale_at = (t * heads + h) * dim, scale_place + h * block_tokens
            put_row(at(to, here), at(of_k, source), dim, scale, scale_at)
            put_row(at(to, here + side), at(of_v, source), dim, scale, scale_at + heads * block_tokens)
        if past_caches:
            size = dim * data.itemsize // 4
            for h in range(of_heads[0], of_heads[1]):
                here = (place + h * per_head) * data.itemsize // 4
                _stream_row(made_words, 2 * h * size, words, here, size)
                _stream_row(made_words, (2 * h + 1) * size, words, here + per_side * data.itemsize // 4, size)
    if past_caches:
        finish()


@jit
def _stream_row(source, start, target, place, size):
    """Rows of a token are streamed when all are made: a vector waits for small stores that it is read right behind."""
    for i in range(0, size, LANES):
        stream(pointer(target), place + i, load(pointer(source), start + i))


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
