"""Attention of rows over a paged cache: one query a row, against what its block table holds. Compiled parts.

A row's KV is cut at fixed absolute positions (SPLIT_TOKENS), a split at multiples of TILE_TOKENS; a split is one pass
of online softmax, splits are put together in their order. So the bits of a row depend on its own query, KV and length:
not on the batch, the size of blocks, their order in memory, the layout or the number of threads.

One work item is a split with all its KV heads, of one row or of some that follow each other in one sequence: a tile's
blocks are read whole while they are hot, once for all these rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..core.jit import PLAIN, entry, inline, jit
from .simd import LANES, add, at, exp2, fma, greater, later, load, mul, pointer, power_of_two, splat, store, sub
from .tiles import HEADS_AT_ONCE, gather_tile, padded_group, score_tile

TILE_TOKENS = 16
SPLIT_TOKENS = 1024
ROWS_AT_ONCE = 8
"""Rows of an item: their queries and outputs stay in L2 beside a tile."""
_LINE = 16
"""Elements of a cache line: scratch is used from the first one on that begins in it."""
LOWEST = np.float32(-1e30)
LOG2_E = 1.4426950408889634


def in_lanes(heads: int) -> int:
    """Heads rounded up to whole vectors."""
    return (heads + LANES - 1) // LANES * LANES


_padded_group, _in_lanes = inline(padded_group), inline(in_lanes)  # compiled code's own: Python calls compile nothing


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
def plan(tables, lengths, row_tables, block_tokens, num_blocks, window, items):
    """Write the work items (first row, rows, row of the table, begin, end, first part); their number, or -1 - row for a
    bad table or length. The rows of an item have one table, and each is a token longer than the one before.

    items    (rows * most splits of a row, 6) int64; a part is an output of one row and one split
    """
    count, parts, row = 0, 0, 0
    while row < len(lengths):
        length, table, rows = lengths[row], tables[row_tables[row]], 1
        if length < 0 or length > len(table) * block_tokens:
            return -1 - row
        most = min(ROWS_AT_ONCE, len(lengths) - row, len(table) * block_tokens - length + 1)
        while rows < most and row_tables[row + rows] == row_tables[row] and lengths[row + rows] == length + rows:
            rows += 1
        begin, last = max(length - window, 0) if window > 0 else 0, length + rows - 1
        for i in range(begin // block_tokens, (last + block_tokens - 1) // block_tokens):
            if table[i] < 0 or table[i] >= num_blocks:
                return -1 - row
        while begin < last:
            end = min((begin // SPLIT_TOKENS + 1) * SPLIT_TOKENS, last)
            item = items[count]
            item[0], item[1], item[2], item[3], item[4], item[5] = row, rows, row_tables[row], begin, end, parts
            begin, parts, count = end, parts + rows, count + 1
        row += rows
    return count


@jit
def _fill_rows(rows, lines, scale_rows, table, begin, end, geometry):
    """Where the K vectors of the tokens begin to end lie.

    rows         of head 0, token by token; the last is repeated up to a whole tile, since kernels read in groups
    lines        of all heads, in the order of memory: what to ask for
    scale_rows   where the scales of the tokens lie
    """
    size, heads = geometry.block_tokens, geometry.kv_heads
    count = end - begin
    i = 0
    while i < count:
        block, offset = (begin + i) // size, (begin + i) % size
        run = min(size - offset, count - i)
        row = geometry.layer + table[block] * geometry.block + offset * geometry.token
        scale_row = geometry.scale_layer + table[block] * 2 * heads * size + offset
        for j in range(run):
            rows[i + j] = row + j * geometry.token
            scale_rows[i + j] = scale_row + j
        run_lines = at(lines, i * heads)
        if geometry.token > geometry.head:
            for j in range(run):
                for h in range(heads):
                    run_lines[j * heads + h] = row + j * geometry.token + h * geometry.head
        else:
            for h in range(heads):
                for j in range(run):
                    run_lines[h * run + j] = row + h * geometry.head + j * geometry.token
        i += run
    for i in range(count, TILE_TOKENS):
        rows[i], scale_rows[i] = rows[count - 1], scale_rows[count - 1]
    for i in range(count * heads, TILE_TOKENS * heads):
        lines[i] = lines[count * heads - 1]


@inline
def _from_line(array):
    """A pointer to the first element that begins a cache line: a vector that crosses one is two accesses."""
    return at(pointer(array), -np.int64(array.ctypes.data) // 4 % _LINE)


@inline
def _scale_queries(q, out, group, padded, kv_heads, head_dim):
    """Queries in units of log2, head by head; heads that only fill up a group are zero."""
    factor = np.float32(LOG2_E / math.sqrt(head_dim))
    for h in range(kv_heads):
        for g in range(padded):
            for d in range(head_dim):
                value = q[(h * group + g) * head_dim + d] * factor if g < group else np.float32(0)
                out[(h * padded + g) * head_dim + d] = value


@jit
def _soften(scores, tokens, stride, peak, mass, fade):
    """Scores (tokens, stride) of all heads become weights, in place; the heads are the lanes.

    peak, mass   pointers to the largest score so far of each head and the sum of weights relative to it; updated
    fade         pointer: what earlier weights must be multiplied with, written
    """
    for head in range(0, stride, LANES):
        column = at(scores, head)
        before = load(peak, head)
        now = before
        for t in range(tokens):
            now = greater(load(column, t * stride), now)
        change = exp2(sub(before, now))
        weights = mul(load(mass, head), change)
        for t in range(tokens):
            weight = exp2(sub(load(column, t * stride), now))
            store(column, t * stride, weight)
            weights = add(weights, weight)
        store(peak, head, now)
        store(mass, head, weights)
        store(fade, head, change)


def _soften_plain(scores: Any, tokens: int, stride: int, peak: Any, mass: Any, fade: Any) -> None:
    tile = scores[: tokens * stride].reshape(tokens, stride)
    now = np.maximum(peak[:stride], tile.max(axis=0))
    fade[:stride] = exp2(peak[:stride] - now)
    tile[:] = exp2(tile - now)
    peak[:stride], mass[:stride] = now, mass[:stride] * fade[:stride] + tile.sum(axis=0)


soften: Any = _soften_plain if PLAIN else _soften


@jit
def _apply_scales(weights, tokens, stride, padded, scales, rows, next_rows, side, geometry, factors):
    """weights[t, head] *= the scale of token t in the KV head of head, of K (side 0) or V (1); meanwhile those of the
    next tile are asked for.

    factors    scratch as large as weights: all of them come first, since a vector that is read right behind the scalars
               that it is made of waits for these to reach the cache
    """
    size = geometry.block_tokens
    for h in range(geometry.kv_heads):
        place = (side * geometry.kv_heads + h) * size
        for t in range(0, tokens, size):
            later(scales, next_rows[t] + place)
        for t in range(tokens):
            factor, mine = scales[rows[t] + place], at(factors, t * stride + h * padded)
            if padded == 4:
                mine[0], mine[1], mine[2], mine[3] = factor, factor, factor, factor
            else:
                for g in range(padded):
                    mine[g] = factor
    for i in range(0, tokens * stride, LANES):
        store(weights, i, mul(load(weights, i), load(factors, i)))


@jit
def _score_heads(queries, kv, rows, lines, tokens, geometry, padded, scores, stride, count):
    """Scores of one tile for all heads of `count` rows; meanwhile its V is asked for.

    The first row does that for all.
    """
    head_dim = geometry.head_dim
    for h in range(geometry.kv_heads):
        offset = h * geometry.head
        for i in range(count):
            asked, there = (at(lines, h * tokens), geometry.side) if i == 0 else (rows, -1)
            for g in range(0, padded, HEADS_AT_ONCE):
                heads, head = min(HEADS_AT_ONCE, padded - g), h * padded + g
                query = at(queries, (i * geometry.kv_heads * padded + head) * head_dim)
                out = at(scores, i * TILE_TOKENS * stride + head)
                score_tile(query, kv, rows, asked, offset, there, out, stride, tokens, head_dim, heads)


@jit
def _weigh(
    scores, seen, begin, stop, lengths, window, count, part, stats, fade, scales, scale_rows, next_scale_rows, geometry,
    padded, stride, factors,
):  # fmt: skip
    """Scores of the tile begin to stop become weights, for each row's own tokens, which are written to seen."""
    for i in range(count):
        seen[2 * i] = max(lengths[i] - window - begin, 0) if window > 0 else 0
        seen[2 * i + 1] = min(stop, lengths[i]) - begin
        tokens = seen[2 * i + 1] - seen[2 * i]
        if tokens <= 0:
            continue
        weights, mine = at(scores, (i * TILE_TOKENS + seen[2 * i]) * stride), at(scale_rows, seen[2 * i])
        if geometry.scaled:
            _apply_scales(weights, tokens, stride, padded, scales, mine, next_scale_rows, 0, geometry, factors)
        peak, mass = pointer(stats[part + i, 0]), pointer(stats[part + i, 1])
        soften(weights, tokens, stride, peak, mass, at(fade, i * stride))
        if geometry.scaled:
            _apply_scales(weights, tokens, stride, padded, scales, mine, next_scale_rows, 1, geometry, factors)


@jit
def _gather_heads(outs, kv, rows, next_lines, seen, geometry, padded, scores, stride, fade, count):
    """What one tile adds to the outputs of all heads; meanwhile K of the next tile is asked for.

    seen     (rows, 2): which tokens of the tile a row attends to, begin and end
    """
    head_dim, heads_of_row = geometry.head_dim, geometry.kv_heads * padded
    for h in range(geometry.kv_heads):
        offset = h * geometry.head + geometry.side
        for i in range(count):
            begin, tokens = seen[2 * i], seen[2 * i + 1] - seen[2 * i]
            if tokens <= 0:
                continue
            mine, weights = at(rows, begin), at(scores, (i * TILE_TOKENS + begin) * stride)
            asked, there = (at(next_lines, h * tokens), 0) if i == 0 else (mine, -1)
            for g in range(0, padded, HEADS_AT_ONCE):
                heads, head = min(HEADS_AT_ONCE, padded - g), h * padded + g
                result, fades = at(outs, (i * heads_of_row + head) * head_dim), at(fade, i * stride + head)
                gather_tile(
                    result, fades, at(weights, head), stride, kv, mine, asked, offset, there, tokens, head_dim, heads
                )


@entry
def attend(q, data, scale_array, tables, lengths, items, first, last, geometry, window, floats, integers, parts, stats):
    """Work items first to last: their unnormalised outputs, peaks and masses.

    floats     scratch of `scratch_floats`, zeroed, so that no padding holds what is not a number
    integers   scratch of `scratch_integers`, zeroed
    parts      scratch of `part_floats`, written: from the first whole cache line on (parts, kv_heads * padded group *
               head_dim)
    stats      (parts, 2, kv_heads * padded group) float32: peak and mass, written
    """
    kv, scales = pointer(data), pointer(scale_array)
    queries, all_parts = _from_line(floats), _from_line(parts)
    padded = _padded_group(geometry.group)
    heads = geometry.kv_heads * padded
    size = heads * geometry.head_dim
    stride = _in_lanes(heads)
    scores = at(queries, ROWS_AT_ONCE * size)
    fade = at(scores, ROWS_AT_ONCE * stride * TILE_TOKENS)
    factors = at(fade, ROWS_AT_ONCE * stride)
    rows, next_rows = pointer(integers), at(pointer(integers), TILE_TOKENS)
    scale_rows, next_scale_rows = at(next_rows, TILE_TOKENS), at(next_rows, 2 * TILE_TOKENS)
    lines = at(next_rows, 3 * TILE_TOKENS)
    next_lines = at(lines, geometry.kv_heads * TILE_TOKENS)
    seen = at(next_lines, geometry.kv_heads * TILE_TOKENS)
    for item in range(first, last):
        row, count, part = items[item, 0], items[item, 1], items[item, 5]
        table, begin, end = pointer(tables[items[item, 2]]), items[item, 3], items[item, 4]
        outs = at(all_parts, part * size)
        for i in range(count):
            query = at(queries, i * size)
            _scale_queries(pointer(q[row + i]), query, geometry.group, padded, geometry.kv_heads, geometry.head_dim)
            peak, mass = pointer(stats[part + i, 0]), pointer(stats[part + i, 1])
            for head in range(stride):
                peak[head], mass[head] = LOWEST, np.float32(0)
        for i in range(count * size):
            outs[i] = np.float32(0)
        stop = min((begin // TILE_TOKENS + 1) * TILE_TOKENS, end)
        if item == first:
            _fill_rows(rows, lines, scale_rows, table, begin, stop, geometry)
        while begin < end:
            if stop < end:
                _fill_rows(next_rows, next_lines, next_scale_rows, table, stop, min(stop + TILE_TOKENS, end), geometry)
            elif item + 1 < last:
                start = items[item + 1, 3]
                tile_end = min((start // TILE_TOKENS + 1) * TILE_TOKENS, items[item + 1, 4])
                other = pointer(tables[items[item + 1, 2]])
                _fill_rows(next_rows, next_lines, next_scale_rows, other, start, tile_end, geometry)
            tokens = stop - begin
            _score_heads(queries, kv, rows, lines, tokens, geometry, padded, scores, stride, count)
            _weigh(
                scores, seen, begin, stop, at(pointer(lengths), row), window, count, part, stats, fade, scales,
                scale_rows, next_scale_rows, geometry, padded, stride, factors,
            )  # fmt: skip
            _gather_heads(outs, kv, rows, next_lines, seen, geometry, padded, scores, stride, fade, count)
            rows, next_rows, lines, next_lines = next_rows, rows, next_lines, lines
            scale_rows, next_scale_rows = next_scale_rows, scale_rows
            begin, stop = stop, min(stop + TILE_TOKENS, end)


def scratch_floats(geometry: Geometry) -> int:
    """Elements of the scratch that `attend` needs."""
    heads = geometry.kv_heads * padded_group(geometry.group)
    of_row = heads * geometry.head_dim + in_lanes(heads) * (TILE_TOKENS + 1)
    return int(ROWS_AT_ONCE * of_row + in_lanes(heads) * TILE_TOKENS + _LINE)


def part_floats(geometry: Geometry, parts: int) -> int:
    """Elements of the scratch for so many outputs of a row and a split."""
    return parts * geometry.kv_heads * padded_group(geometry.group) * geometry.head_dim + _LINE


def scratch_integers(geometry: Geometry) -> int:
    return (4 + 2 * geometry.kv_heads) * TILE_TOKENS + 2 * ROWS_AT_ONCE


@entry
def combine(parts, stats, items, count, geometry, out):
    """Splits of a row put together in their order, and divided by the sum of weights; rows without items are zero."""
    padded, all_parts = _padded_group(geometry.group), _from_line(parts)
    start, stop = 0, 0
    for row in range(len(out)):
        if stop < count and items[stop, 0] == row:
            start = stop
            while stop < count and items[stop, 0] == row:
                stop += 1
        end = stop if stop > start and row < items[start, 0] + items[start, 1] else start
        for head in range(geometry.kv_heads * geometry.group):
            place = head // geometry.group * padded + head % geometry.group
            _combine_head(all_parts, stats, items, start, end, row, place, pointer(out[row, head]), geometry)


@jit
def _combine_head(parts, stats, items, start, stop, row, place, out, geometry):
    head_dim = geometry.head_dim
    size = geometry.kv_heads * _padded_group(geometry.group) * head_dim
    peak, mass = LOWEST, np.float32(0)
    for item in range(start, stop):
        peak = max(peak, stats[items[item, 5] + row - items[item, 0], 0, place])
    for d in range(head_dim):
        out[d] = np.float32(0)
    for item in range(start, stop):
        number = items[item, 5] + row - items[item, 0]
        if stats[number, 1, place] > 0:
            share = power_of_two(stats[number, 0, place] - peak)
            mass += stats[number, 1, place] * share
            part, factor = at(parts, number * size + place * head_dim), splat(share)
            for d in range(0, head_dim, LANES):
                store(out, d, fma(load(part, d), factor, load(out, d)))
    if mass > 0:
        scale = splat(np.float32(1) / mass)
        for d in range(0, head_dim, LANES):
            store(out, d, mul(load(out, d), scale))
