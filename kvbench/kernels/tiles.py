"""The two products of attention over one tile of cached tokens, for the query heads that share a KV head.

A tile is a list of rows: where each token's K vector begins, in elements of the cache, for head 0. Both kernels work
for up to 4 query heads at once, so that a vector of K or V is read once for all of them, and ask for other rows while
they are at work: a block is a few KB anywhere in memory, and waiting for it would take longer than the work.

The sum of a score runs along the head in every lane and then through a fixed tree, that of an output over the tokens in
their order: neither depends on how many heads are done at once, nor on where the rows lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from ..core.jit import PLAIN, jit
from .packed import ask_for_channel, line_of, reader_of, row_bytes, unpacked
from .simd import (
    F32,
    I32,
    I64,
    LANES,
    at,
    count_up,
    element,
    floats_of,
    lanes_of,
    multiply_add,
    read_vector,
    spread,
    write_vector,
)

HEADS_AT_ONCE = 4
ASKED = 4
"""How often a line is asked for: a CPU drops prefetches when too many are on their way. Asked for once, float32 runs
at .55 of the speed of plain reading, four times at .7 to .8."""

_FLOATS, _INTEGERS = types.CPointer(types.float32), types.CPointer(types.int64)


def padded_group(group: int) -> int:
    """Heads that scratch holds for a group: whole fours, then 1, 2 or 4 for what is left."""
    left = group % HEADS_AT_ONCE
    return group + 1 if left == 3 else group


def _merge(builder: Any, vectors: list[Any]) -> Any:
    """One vector whose lane i is the sum of vectors[i]; as many vectors as lanes.

    Each turn adds the upper half of what is left of a vector to its lower half, for two vectors in one addition: of the
    one it keeps the lower half in place and of the other the upper (a blend, which is cheaper than a shuffle), and adds
    the halves that are missing. The sums are those of `simd.fold`, whose order of two summands does not matter.
    """
    order: list[list[int]] = [[i] * LANES for i in range(LANES)]
    width = LANES
    while width > 1:
        half, pairs = width // 2, len(vectors) // 2
        upper = [lane % width >= half for lane in range(LANES)]
        kept = [lane + LANES * up for lane, up in enumerate(upper)]
        missing = [lane - half + LANES if up else lane + half for lane, up in enumerate(upper)]
        merged = []
        for a, b in zip(vectors[:pairs], vectors[pairs:], strict=True):
            parts = [builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, LANES), m)) for m in (kept, missing)]
            merged.append(builder.fadd(*parts))
        order = [
            [b[lane] if up else a[lane] for lane, up in enumerate(upper)]
            for a, b in zip(order[:pairs], order[pairs:], strict=True)
        ]
        vectors, width = merged, half
    lanes = [order[0].index(i) for i in range(LANES)]
    return builder.shuffle_vector(vectors[0], vectors[0], ir.Constant(ir.VectorType(I32, LANES), lanes))


@intrinsic(prefer_literal=True)
def _scores(
    typing_context: Any, q: Any, kv: Any, rows: Any, ahead: Any, offset: Any, ahead_offset: Any, out: Any,
    out_stride: Any, tokens: Any, head_dim: Any, heads: Any,
) -> Any:  # fmt: skip
    if not isinstance(heads, types.IntegerLiteral):
        return None
    group, kv_type, read = heads.literal_value, kv, reader_of(kv)
    at_once = max(1, LANES // group)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, _ = args
        vectors = builder.sdiv(head_dim, I64(LANES))

        def row(table: Any, token: Any, shift: Any) -> Any:
            return element(builder, kv, builder.add(builder.load(element(builder, table, token)), shift))

        def one_turn(turn: Any, _: Any) -> list[Any]:
            first = builder.mul(turn, I64(at_once))
            mine = [builder.add(first, I64(i)) for i in range(at_once)]
            keys = [row(rows, token, offset) for token in mine]
            next_keys = [row(ahead, token, ahead_offset) for token in mine]

            def products(i: Any, sums: list[Any]) -> list[Any]:
                place = builder.mul(i, I64(LANES))
                with builder.if_then(builder.icmp_signed(">=", ahead_offset, I64(0))):
                    for key in next_keys * max(ASKED * LANES // line_of(kv_type), 1):
                        ask_for_channel(builder, kv_type, key, place, 2)
                parts = [read(builder, key, place) for key in keys]
                added = list(sums)
                for g in range(group):
                    query = read_vector(builder, q, builder.add(place, builder.mul(head_dim, I64(g))))
                    for t, part in enumerate(parts):
                        added[t * group + g] = multiply_add(builder, query, part, sums[t * group + g])
                return added

            sums = count_up(builder, vectors, [lanes_of(F32, 0.0)] * (group * at_once), products)
            merged = _merge(builder, sums)
            for t, token in enumerate(mine):
                lanes = ir.Constant(ir.VectorType(I32, group), list(range(t * group, (t + 1) * group)))
                part = builder.shuffle_vector(merged, merged, lanes)
                write_vector(builder, out, builder.mul(token, out_stride), part)
            return []

        turns = builder.sdiv(builder.add(tokens, I64(at_once - 1)), I64(at_once))
        count_up(builder, turns, [], one_turn)
        return context.get_dummy_value()

    i8 = types.int64
    return types.void(_FLOATS, kv, _INTEGERS, _INTEGERS, i8, i8, _FLOATS, i8, i8, i8, heads), generate


@intrinsic(prefer_literal=True)
def _weighted_sum(
    typing_context: Any, out: Any, out_stride: Any, fade: Any, weights: Any, weights_stride: Any, kv: Any, rows: Any,
    ahead: Any, offset: Any, ahead_offset: Any, channel: Any, tokens: Any, heads: Any, vectors: Any,
) -> Any:  # fmt: skip
    if not isinstance(heads, types.IntegerLiteral) or not isinstance(vectors, types.IntegerLiteral):
        return None
    group, width, kv_type, read = heads.literal_value, vectors.literal_value, kv, reader_of(kv)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, out_stride, fade, weights, weights_stride, kv, rows, ahead, offset, ahead_offset, channel, tokens = args[
            :12
        ]
        line = line_of(kv_type)
        heads_of = range(group)
        tile = [(g, v) for g in heads_of for v in range(width)]
        outs = [element(builder, out, builder.mul(out_stride, I64(g))) for g in heads_of]
        fades = [spread(builder, builder.load(element(builder, fade, g))) for g in heads_of]

        def row(table: Any, token: Any, shift: Any) -> Any:
            return element(builder, kv, builder.add(builder.load(element(builder, table, token)), shift))

        def add_token(token: Any, sums: list[Any]) -> list[Any]:
            value, next_value = row(rows, token, offset), row(ahead, token, ahead_offset)
            with builder.if_then(builder.icmp_signed(">=", ahead_offset, I64(0))):
                for start in range(0, width * LANES, line // ASKED):
                    ask_for_channel(builder, kv_type, next_value, builder.add(channel, I64(start)), 2)
            parts = [read(builder, value, builder.add(channel, I64(v * LANES))) for v in range(width)]
            mine = element(builder, weights, builder.mul(token, weights_stride))
            shares = [spread(builder, builder.load(element(builder, mine, g))) for g in heads_of]
            return [multiply_add(builder, shares[g], parts[v], s) for (g, v), s in zip(tile, sums, strict=True)]

        sums = [builder.fmul(read_vector(builder, outs[g], v * LANES), fades[g]) for g, v in tile]
        sums = count_up(builder, tokens, sums, add_token)
        for (g, v), value in zip(tile, sums, strict=True):
            write_vector(builder, outs[g], v * LANES, value)
        return context.get_dummy_value()

    i8 = types.int64
    typed = types.void(_FLOATS, i8, _FLOATS, _FLOATS, i8, kv, _INTEGERS, _INTEGERS, i8, i8, i8, i8, heads, vectors)
    return typed, generate


WIDE_FOUR, WIDE_TWO, WIDE_ONE, NARROW = {16: (4, 4, 4, 1), 8: (2, 4, 8, 2), 4: (4, 4, 8, 4)}[LANES]
"""Vectors of the output kept in registers beside 4, 2, 1 heads, and for what is left of a head (a multiple of 16)."""


@jit
def _score_tile(q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, heads):
    if heads == 4:
        _scores(q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, 4)
    elif heads == 2:
        _scores(q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, 2)
    else:
        _scores(q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, 1)


@jit
def _gather_part(out, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, head_dim, heads, narrow):
    if heads == 4 and narrow:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 4, NARROW)
    elif heads == 4:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 4, WIDE_FOUR)
    elif heads == 2 and narrow:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 2, NARROW)
    elif heads == 2:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 2, WIDE_TWO)
    elif narrow:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 1, NARROW)
    else:
        _weighted_sum(out, head_dim, fade, weights, stride, kv, rows, ahead, at_kv, at_ahead, d, tokens, 1, WIDE_ONE)


@jit
def _gather_tile(out, fade, weights, stride, kv, rows, ahead, offset, ahead_offset, tokens, head_dim, heads):
    wide = LANES * (WIDE_FOUR if heads == 4 else WIDE_TWO if heads == 2 else WIDE_ONE)
    d = 0
    while d < head_dim:
        narrow = d + wide > head_dim
        _gather_part(
            at(out, d), fade, weights, stride, kv, rows, ahead, offset, ahead_offset, d, tokens, head_dim, heads,
            narrow,
        )  # fmt: skip
        d += LANES * NARROW if narrow else wide


def _rows_plain(kv: Any, rows: Any, offset: int, tokens: int, head_dim: int) -> Any:
    """(tokens, head_dim) float32 of a flat cache."""
    if kv.dtype == np.uint8:
        return unpacked(kv[rows[:tokens, None] + offset + np.arange(row_bytes(head_dim))], head_dim)
    return floats_of(kv[rows[:tokens, None] + offset + np.arange(head_dim)])


def _score_tile_plain(
    q: Any, kv: Any, rows: Any, ahead: Any, offset: int, ahead_offset: int, out: Any, out_stride: int, tokens: int,
    head_dim: int, heads: int,
) -> None:  # fmt: skip
    keys = _rows_plain(kv, rows, offset, tokens, head_dim)
    for g in range(heads):
        scores = (keys * q[g * head_dim : (g + 1) * head_dim]).sum(axis=1)
        out[g : g + tokens * out_stride : out_stride][:tokens] = scores


def _gather_tile_plain(
    out: Any, fade: Any, weights: Any, weights_stride: int, kv: Any, rows: Any, ahead: Any, offset: int,
    ahead_offset: int, tokens: int, head_dim: int, heads: int,
) -> None:  # fmt: skip
    values = _rows_plain(kv, rows, offset, tokens, head_dim)
    for g in range(heads):
        shares = weights[g : g + tokens * weights_stride : weights_stride][:tokens]
        part = out[g * head_dim : (g + 1) * head_dim]
        part[:] = part * fade[g] + (values * shares[:, None]).sum(axis=0)


score_tile: Any = _score_tile_plain if PLAIN else _score_tile
"""score_tile(q, kv, rows, ahead, offset, ahead_offset, out, out_stride, tokens, head_dim, heads)

    out[t, g] = sum over d of q[g, d] * channel d of the row at rows[t] + offset

q             pointer to (heads, head_dim) float32, scaled;  heads is 1, 2 or 4
kv            pointer to the cache: float32, uint16 (bf16 bits), int8 without its scale, or uint8 (int4)
rows, ahead   pointers to int64: rows of this tile, and what to ask for; read up to LANES - 1 entries past tokens
offset        of K or V and the KV head inside a row;  ahead_offset the same for what is asked for, -1: nothing is
out           pointer to (tokens, out_stride) float32; scores of up to LANES - 1 tokens more are written
tokens        1 or more
"""
gather_tile: Any = _gather_tile_plain if PLAIN else _gather_tile
"""gather_tile(out, fade, weights, weights_stride, kv, rows, ahead, offset, ahead_offset, tokens, head_dim, heads)

    out[g, d] = out[g, d] * fade[g] + sum over t of weights[t, g] * channel d of the row at rows[t] + offset
"""
