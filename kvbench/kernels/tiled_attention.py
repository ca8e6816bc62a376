"""Causal attention of many neighbouring queries over a paged cache, as products of matrices. Compiled parts.

A work item is a KV head and some QUERY_ROWS rows: the queries of neighbouring tokens, the heads that share the KV head
inside a token. KV comes in tiles of KEY_TOKENS, copied out of the cache as float32, and everything is turned so that
both products are `products.strided_product` and no tile is ever transposed:

    scores  (tokens, rows)      = K (tokens, head_dim) x queries (head_dim, rows), which are packed once an item
    outputs (rows, head_dim)   += scores' weights, read along their columns, x V (tokens, head_dim)

The rows are the lanes of the softmax. Every panel (see `products`) is packed, so that it is read in one stream.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.jit import entry, inline, jit
from .packed import load_channels
from .products import PANEL, panel_product, strided_product
from .simd import LANES, at, load, mul, pointer, splat, store
from .split_attention import LOG2_E, LOWEST, Geometry, soften

KEY_TOKENS = 96
"""A multiple of the rows that `products` takes at once."""
QUERY_ROWS = 192 if PANEL == 64 else 96
"""The same, and a multiple of PANEL: with KEY_TOKENS it fills the L2 of the CPUs at hand."""


def in_panels(columns: int) -> int:
    """Columns rounded up to whole panels."""
    return (columns + PANEL - 1) // PANEL * PANEL


def tokens_at_once(group: int) -> int:
    """Query tokens of an item."""
    return max(QUERY_ROWS // group, 1)


_in_panels, _tokens_at_once = inline(in_panels), inline(tokens_at_once)  # compiled code's own


@entry
def plan_chunks(tables, row_starts, contexts, block_tokens, num_blocks, kv_heads, group, window, items):
    """Write the work items (table, first query, queries, position of the first, KV head, first token of KV).

    items     (as many as fit, 6) int64
    returns   their number, or -1 - sequence for a bad table, context or row_starts
    """
    count = 0
    for r in range(len(contexts)):
        queries, context, table = row_starts[r + 1] - row_starts[r], contexts[r], tables[r]
        length = context + queries
        if queries < 0 or context < 0 or length > len(table) * block_tokens:
            return -1 - r
        if queries == 0:
            continue
        begin = max(context + 1 - window, 0) if window > 0 else 0
        for i in range(begin // block_tokens, (length + block_tokens - 1) // block_tokens):
            if table[i] < 0 or table[i] >= num_blocks:
                return -1 - r
        for head in range(kv_heads):
            for query in range(0, queries, _tokens_at_once(group)):
                begin = max(context + query + 1 - window, 0) if window > 0 else 0
                items[count, 0], items[count, 1] = r, row_starts[r] + query
                items[count, 2] = min(_tokens_at_once(group), queries - query)
                items[count, 3], items[count, 4], items[count, 5] = context + query, head, begin
                count += 1
    return count


@jit
def _pack_queries(q, out, first, queries, head, rows, geometry):
    """(head_dim, rows) in panels, in units of log2; rows that only fill up a panel are zero."""
    group, head_dim = geometry.group, geometry.head_dim
    factor = np.float32(LOG2_E / math.sqrt(head_dim))
    query_heads = geometry.kv_heads * group
    for row in range(rows):
        panel, lane = at(out, row // PANEL * PANEL * head_dim), row % PANEL
        if row < queries * group:
            query = at(q, ((first + row // group) * query_heads + head * group + row % group) * head_dim)
            for d in range(head_dim):
                panel[d * PANEL + lane] = query[d] * factor
        else:
            for d in range(head_dim):
                panel[d * PANEL + lane] = np.float32(0)


@jit
def _copy_tile(kv, scales, table, begin, tokens, head, geometry, keys, values):
    """K as (tokens, head_dim) and V as panels of (KEY_TOKENS, PANEL), float32."""
    size, head_dim = geometry.block_tokens, geometry.head_dim
    factor = splat(np.float32(1))
    for t in range(tokens):
        block, offset = table[(begin + t) // size], (begin + t) % size
        key = geometry.layer + block * geometry.block + head * geometry.head + offset * geometry.token
        scale = geometry.scale_layer + (block * 2 * geometry.kv_heads + head) * size + offset
        if geometry.scaled:
            factor = splat(scales[scale])
        for d in range(0, head_dim, LANES):
            store(keys, t * head_dim + d, mul(load_channels(at(kv, key), d), factor))
        if geometry.scaled:
            factor = splat(scales[scale + geometry.kv_heads * size])
        for d in range(0, head_dim, LANES):
            place = (d // PANEL * KEY_TOKENS + t) * PANEL + d % PANEL
            store(values, place, mul(load_channels(at(kv, key + geometry.side), d), factor))


@jit
def _mask(scores, begin, tokens, rows, group, position, window):
    """Nothing counts that lies after a query's own token or before its window."""
    for t in range(tokens):
        line = at(scores, t * rows)
        for row in range(min((begin + t - position) * group, rows)):
            line[row] = LOWEST
        if window > 0:
            for row in range(max((begin + t - position + window) * group, 0), rows):
                line[row] = LOWEST


@jit
def _add_tile(q, keys, values, scores, out, fade, peak, mass, rows, tokens, geometry, masked, begin, first, window):
    """Scores, weights and outputs of one tile of KV; first is the position of the first query."""
    head_dim, width = geometry.head_dim, _in_panels(geometry.head_dim)
    for row in range(0, rows, PANEL):
        panel = at(q, row * head_dim)
        panel_product(keys, head_dim, panel, PANEL, at(scores, row), rows, head_dim, False, tokens)
    if masked:
        _mask(scores, begin, tokens, rows, geometry.group, first, window)
    soften(scores, tokens, rows, peak, mass, fade)
    for row in range(rows):
        line, factor = at(out, row * width), splat(fade[row])
        for d in range(0, width, LANES):
            store(line, d, mul(load(line, d), factor))
    for d in range(0, width, PANEL):
        panel = at(values, d * KEY_TOKENS)
        strided_product(scores, 1, rows, panel, PANEL, at(out, d), width, tokens, True, rows)


@entry
def attend_chunks(q, data, scale_array, tables, items, first, last, geometry, window, floats, out):
    """Work items first to last, written to out.

    floats   scratch of `scratch_floats`, zeroed, so that no padding holds what is not a number
    """
    kv, scales, head_dim, group = pointer(data), pointer(scale_array), geometry.head_dim, geometry.group
    width, most = _in_panels(head_dim), _in_panels(_tokens_at_once(group) * group)
    queries = pointer(floats)
    keys = at(queries, most * head_dim)
    values = at(keys, KEY_TOKENS * head_dim)
    scores = at(values, KEY_TOKENS * width)
    result = at(scores, KEY_TOKENS * most)
    peak, mass, fade = at(result, most * width), at(result, most * (width + 1)), at(result, most * (width + 2))
    for item in range(first, last):
        table, start, count = pointer(tables[items[item, 0]]), items[item, 1], items[item, 2]
        position, head, begin = items[item, 3], items[item, 4], items[item, 5]
        rows = _in_panels(count * group)
        _pack_queries(pointer(q), queries, start, count, head, rows, geometry)
        for i in range(rows):
            peak[i], mass[i] = LOWEST, np.float32(0)
        for i in range(rows * width):
            result[i] = np.float32(0)
        end = position + count
        while begin < end:
            tokens = min(KEY_TOKENS, end - begin)
            _copy_tile(kv, scales, table, begin, tokens, head, geometry, keys, values)
            masked = begin + tokens > position + 1 or (window > 0 and begin < end - window)
            _add_tile(
                queries, keys, values, scores, result, fade, peak, mass, rows, tokens, geometry, masked, begin,
                position, window,
            )  # fmt: skip
            begin += tokens
        for row in range(count * group):
            line, factor = at(result, row * width), splat(np.float32(1) / mass[row])
            place = ((start + row // group) * geometry.kv_heads * group + head * group + row % group) * head_dim
            for d in range(0, head_dim, LANES):
                store(pointer(out), place + d, mul(load(line, d), factor))


def scratch_floats(geometry: Geometry) -> int:
    """Elements of the scratch that `attend_chunks` needs."""
    width, most = in_panels(geometry.head_dim), in_panels(tokens_at_once(geometry.group) * geometry.group)
    return int(most * geometry.head_dim + KEY_TOKENS * (geometry.head_dim + width + most) + most * (width + 3))
