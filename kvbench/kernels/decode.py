"""Decode attention over a paged cache: one query a row, against all that its block table holds.

A row's KV is cut at fixed absolute positions (SPLIT_TOKENS), a split at multiples of TILE_TOKENS; a split is one pass
of online softmax, splits are put together in their order. So the bits of a row depend on its own query, KV and length:
not on the batch, the size of blocks, their order in memory, the layout or the number of threads.

One work item is (row, split) with all its KV heads: a tile's blocks are read whole while they are hot.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry, inline, jit
from .layout import KvCache
from .simd import LANES, add, at, exp2, fma, greater, greatest, load, mul, pointer, splat, store, total
from .tiles import HEADS_AT_ONCE, gather_tile, padded_group, score_tile

TILE_TOKENS = 64
SPLIT_TOKENS = 1024
_LOWEST = np.float32(-1e30)
_LOG2_E = 1.4426950408889634


class Geometry(NamedTuple):
    """Where things lie, in elements of the cache and of its scales; all int64."""

    layer: int
    block: int
    side: int
    head: int
    token: int
    block_tokens: int
    kv_heads: int
    group: int
    head_dim: int
    scale_layer: int
    scaled: int


@entry
def _plan(tables, lengths, row_tables, block_tokens, num_blocks, window, items):
    """Write the work items (row, row of the table, begin, end); their number, or -1 - row for a bad table or length.

    items    (rows * most splits of a row, 4) int64
    """
    count = 0
    for row in range(len(lengths)):
        length, table = lengths[row], tables[row_tables[row]]
        if length < 0 or length > len(table) * block_tokens:
            return -1 - row
        begin = max(length - window, 0) if window > 0 else 0
        for i in range(begin // block_tokens, (length + block_tokens - 1) // block_tokens):
            if table[i] < 0 or table[i] >= num_blocks:
                return -1 - row
        while begin < length:
            end = min((begin // SPLIT_TOKENS + 1) * SPLIT_TOKENS, length)
            items[count, 0], items[count, 1], items[count, 2], items[count, 3] = row, row_tables[row], begin, end
            begin = end
            count += 1
    return count


@jit
def _fill_rows(rows, scale_rows, table, begin, end, geometry):
    """Rows of the tokens begin to end; the last is repeated up to a whole tile, since kernels read in groups."""
    size = geometry.block_tokens
    scale_block = 2 * geometry.kv_heads * size
    count = end - begin
    i = 0
    while i < count:
        block, offset = (begin + i) // size, (begin + i) % size
        run = min(size - offset, count - i)
        row = geometry.layer + table[block] * geometry.block + offset * geometry.token
        scale_row = geometry.scale_layer + table[block] * scale_block + offset
        for j in range(run):
            rows[i + j] = row + j * geometry.token
            scale_rows[i + j] = scale_row + j
        i += run
    for i in range(count, TILE_TOKENS):
        rows[i], scale_rows[i] = rows[count - 1], scale_rows[count - 1]


@inline
def _scale_queries(q, out, group, padded, kv_heads, head_dim):
    """Queries in units of log2, head by head; heads that only fill up a group are zero."""
    factor = np.float32(_LOG2_E / math.sqrt(head_dim))
    for h in range(kv_heads):
        for g in range(padded):
            for d in range(head_dim):
                value = q[(h * group + g) * head_dim + d] * factor if g < group else np.float32(0)
                out[(h * padded + g) * head_dim + d] = value


@jit
def _soften(scores, tokens, peak, mass):
    """Scores of one head and tile become weights; what earlier weights must be multiplied with.

    scores     pointer, TILE_TOKENS floats; those past tokens are overwritten with the weight of nothing
    peak, mass pointers to the largest score so far and the sum of weights relative to it
    """
    ends = (tokens + LANES - 1) // LANES * LANES
    for i in range(tokens, ends):
        scores[i] = _LOWEST
    top = splat(peak[0])
    for i in range(0, ends, LANES):
        top = greater(load(scores, i), top)
    before, now = peak[0], greatest(top)
    down, weight = splat(-now), splat(np.float32(0))
    for i in range(0, ends, LANES):
        value = exp2(add(load(scores, i), down))
        store(scores, i, value)
        weight = add(weight, value)
    fade = np.float32(2.0) ** (before - now)
    peak[0], mass[0] = now, mass[0] * fade + total(weight)
    return fade


@jit
def _apply_scales(weights, heads, scales, rows, offset, tokens, factors):
    """weights[g, t] *= the scale of token t."""
    for t in range(tokens):
        factors[t] = scales[rows[t] + offset]
    for g in range(heads):
        line = at(weights, g * TILE_TOKENS)
        for t in range(0, tokens, LANES):
            store(line, t, mul(load(line, t), load(factors, t)))


@jit
def _attend_tile(queries, kv, scales, rows, scale_rows, tokens, geometry, padded, scores, out, peak, mass):
    """One tile into the outputs, peaks and masses of all heads."""
    head_dim, size = geometry.head_dim, geometry.block_tokens
    ahead = at(rows, TILE_TOKENS)
    fade, factors = at(scores, HEADS_AT_ONCE * TILE_TOKENS), at(scores, (HEADS_AT_ONCE + 1) * TILE_TOKENS)
    for h in range(geometry.kv_heads):
        key = h * geometry.head
        value = key + geometry.side
        for g in range(0, padded, HEADS_AT_ONCE):
            heads, head = min(HEADS_AT_ONCE, padded - g), h * padded + g
            query, result = at(queries, head * head_dim), at(out, head * head_dim)
            score_tile(query, kv, rows, ahead, key, key, scores, TILE_TOKENS, tokens, head_dim, heads)
            if geometry.scaled:
                _apply_scales(scores, heads, scales, scale_rows, h * size, tokens, factors)
            for i in range(heads):
                fade[i] = _soften(at(scores, i * TILE_TOKENS), tokens, at(peak, head + i), at(mass, head + i))
            if geometry.scaled:
                side = geometry.kv_heads * size
                _apply_scales(scores, heads, scales, scale_rows, side + h * size, tokens, factors)
            gather_tile(result, fade, scores, TILE_TOKENS, kv, rows, ahead, value, value, tokens, head_dim, heads)


@entry
def _attend(q, data, scale_array, tables, items, first, last, geometry, floats, integers, parts, stats):
    """Work items first to last: their unnormalised outputs, peaks and masses.

    floats     scratch: (kv_heads * padded group * head_dim + (HEADS_AT_ONCE + 2) * TILE_TOKENS,) float32
    integers   scratch: (4 * TILE_TOKENS,) int64
    parts      (items, kv_heads * padded group * head_dim) float32, written
    stats      (items, 2, kv_heads * padded group) float32: peak and mass, written
    """
    kv, scales, queries, rows = pointer(data), pointer(scale_array), pointer(floats), pointer(integers)
    padded = padded_group(geometry.group)
    heads = geometry.kv_heads * padded
    scores, scale_rows = at(queries, heads * geometry.head_dim), at(rows, 2 * TILE_TOKENS)
    next_rows, next_scale_rows = at(rows, TILE_TOKENS), at(scale_rows, TILE_TOKENS)
    for item in range(first, last):
        table, begin, end = pointer(tables[items[item, 1]]), items[item, 2], items[item, 3]
        out, peak, mass = pointer(parts[item]), pointer(stats[item, 0]), pointer(stats[item, 1])
        query = pointer(q[items[item, 0]])
        _scale_queries(query, queries, geometry.group, padded, geometry.kv_heads, geometry.head_dim)
        for i in range(heads):
            peak[i], mass[i] = _LOWEST, np.float32(0)
        for i in range(heads * geometry.head_dim):
            out[i] = np.float32(0)
        stop = min((begin // TILE_TOKENS + 1) * TILE_TOKENS, end)
        if item == first:
            _fill_rows(rows, scale_rows, table, begin, stop, geometry)
        while begin < end:
            if stop < end:
                _fill_rows(next_rows, next_scale_rows, table, stop, min(stop + TILE_TOKENS, end), geometry)
            elif item + 1 < last:
                start = items[item + 1, 2]
                tile_end = min((start // TILE_TOKENS + 1) * TILE_TOKENS, items[item + 1, 3])
                other = pointer(tables[items[item + 1, 1]])
                _fill_rows(next_rows, next_scale_rows, other, start, tile_end, geometry)
            _attend_tile(
                queries, kv, scales, rows, scale_rows, stop - begin, geometry, padded, scores, out, peak, mass
            )
            for i in range(TILE_TOKENS):
                rows[i], scale_rows[i] = next_rows[i], next_scale_rows[i]
            begin, stop = stop, min(stop + TILE_TOKENS, end)


@entry
def _combine(parts, stats, items, count, geometry, out):
    """Splits of a row put together in their order, and divided by the sum of weights; rows without items are zero."""
    padded = padded_group(geometry.group)
    head_dim = geometry.head_dim
    item = 0
    for row in range(len(out)):
        start = item
        while item < count and items[item, 0] == row:
            item += 1
        for head in range(geometry.kv_heads * geometry.group):
            place = head // geometry.group * padded + head % geometry.group
            _combine_head(parts, stats, start, item, place, pointer(out[row, head]), head_dim)


@jit
def _combine_head(parts, stats, start, stop, place, out, head_dim):
    peak, mass = _LOWEST, np.float32(0)
    for item in range(start, stop):
        peak = max(peak, stats[item, 0, place])
    for d in range(head_dim):
        out[d] = np.float32(0)
    for item in range(start, stop):
        share = np.float32(2.0) ** (stats[item, 0, place] - peak)
        mass += stats[item, 1, place] * share
        part, factor = at(pointer(parts[item]), place * head_dim), splat(share)
        for d in range(0, head_dim, LANES):
            store(out, d, fma(load(part, d), factor, load(out, d)))
    if mass > 0:
        scale = splat(np.float32(1) / mass)
        for d in range(0, head_dim, LANES):
            store(out, d, mul(load(out, d), scale))


def paged_decode(
    q: Any, cache: KvCache, layer: int, tables: Any, lengths: Any, out: Any, *, window: int = 0, threads: int = 1
) -> None:
    row_tables = np.arange(len(q))
    shape = cache.shape
    geometry = geometry_of(cache, layer, q.shape[1])
    most = tables.shape[1] * shape.block_tokens // SPLIT_TOKENS + 2
    items = np.empty((len(q) * most, 4), np.int64)
    count = _plan(tables, lengths, row_tables, shape.block_tokens, shape.num_blocks, window, items)
    if count < 0:
        raise UsageError("bad")
    heads = shape.num_kv_heads * padded_group(q.shape[1] // shape.num_kv_heads)
    parts = np.empty((count, heads * shape.head_dim), np.float32)
    stats = np.empty((count, 2, heads), np.float32)
    floats = np.empty(heads * shape.head_dim + (HEADS_AT_ONCE + 2) * TILE_TOKENS, np.float32)
    integers = np.zeros(4 * TILE_TOKENS, np.int64)
    _attend(q, cache.data, cache.scales, tables, items, 0, count, geometry, floats, integers, parts, stats)
    _combine(parts, stats, items, count, geometry, out)


def geometry_of(cache: KvCache, layer: int, query_heads: int) -> Geometry:
    shape = cache.shape
    block, side, head, token = shape.strides
    return Geometry(
        layer * shape.num_blocks * block,
        block,
        side,
        head,
        token,
        shape.block_tokens,
        shape.num_kv_heads,
        query_heads // shape.num_kv_heads,
        shape.head_dim,
        layer * (cache.scales.size // shape.num_layers),
        int(shape.kv_dtype == "int8"),
    )
