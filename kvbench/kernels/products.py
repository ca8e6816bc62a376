"""The product of a few rows and a panel of columns: what linear layers and prefill attention are made of.

A panel is a (depth, PANEL) piece of a matrix whose rows are contiguous. The kernel holds a tile of rows x PANEL sums in
registers and adds one outer product after the other, in plain order of k, each with one fused multiply-add. So the bits
of a row depend on that row and the panel alone: not on how many rows there are, nor on which tile it falls into.

A linear layer packs its weights once as (columns / PANEL, depth, PANEL), padded with zeros, and calls `panel_product`
for every panel with all its rows, w_stride = PANEL; a panel is then read in one stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.extending import intrinsic

from ..core.jit import PLAIN, jit
from .simd import (
    F32,
    I64,
    LANES,
    REGISTERS,
    VECTOR,
    at,
    count_up,
    element,
    lanes_of,
    multiply_add,
    read_vector,
    spread,
    write_vector,
)

ROW_TILE = 6
"""Rows that share a pass over the panel: 6 x 4 sums in 32 registers, 6 x 2 in 16, beside a panel's row and a factor."""
PANEL_VECTORS = 4 if REGISTERS == 32 else 2
PANEL = PANEL_VECTORS * LANES
"""Columns of a panel: 64 with AVX-512, 16 with AVX2 and NEON, 8 elsewhere."""


@intrinsic(prefer_literal=True)
def _outer_products(
    typing_context: Any, x: Any, x_stride: Any, w: Any, w_stride: Any, out: Any, out_stride: Any, depth: Any,
    accumulate: Any, rows: Any,
) -> Any:  # fmt: skip
    """One tile of `panel_product`; rows is a literal."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    floats, integer = types.CPointer(types.float32), types.int64
    typed = types.void(floats, integer, floats, integer, floats, integer, integer, types.boolean, rows)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, x_stride, w, w_stride, out, out_stride, depth, accumulate, _ = args
        height = range(rows.literal_value)
        x_rows = [element(builder, x, builder.mul(x_stride, I64(m))) for m in height]
        out_rows = [element(builder, out, builder.mul(out_stride, I64(m))) for m in height]
        tile = [(m, n) for m in height for n in range(PANEL_VECTORS)]

        def add_products(k: Any, sums: list[Any]) -> list[Any]:
            row = element(builder, w, builder.mul(k, w_stride))
            columns = [read_vector(builder, row, n * LANES) for n in range(PANEL_VECTORS)]
            factors = [spread(builder, builder.load(element(builder, x_row, k))) for x_row in x_rows]
            return [multiply_add(builder, factors[m], columns[n], s) for (m, n), s in zip(tile, sums, strict=True)]

        sums = _starting_sums(builder, accumulate, [(out_rows[m], n * LANES) for m, n in tile])
        sums = count_up(builder, depth, sums, add_products)
        for (m, n), value in zip(tile, sums, strict=True):
            write_vector(builder, out_rows[m], n * LANES, value)
        return context.get_dummy_value()

    return typed, generate


def _starting_sums(builder: Any, accumulate: Any, places: list[Any]) -> list[Any]:
    """What is in memory, or zeros; it is not read then, since it may be anything."""
    before = builder.block
    with builder.if_then(accumulate):
        loaded = [read_vector(builder, *place) for place in places]
        load_end = builder.block
    sums = []
    for value in loaded:
        phi = builder.phi(VECTOR)
        phi.add_incoming(lanes_of(F32, 0.0), before)
        phi.add_incoming(value, load_end)
        sums.append(phi)
    return sums


@jit
def _panel_product(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, rows):
    """out[m, n] (+)= sum over k of x[m, k] * w[k, n], n < PANEL.

    x, w, out       pointers to float32 elements (`simd.pointer`, `simd.at`); out is written
    ..._stride      elements from one row to the next
    depth           terms of a sum, 1 or more
    accumulate      bool: add to what is in out; else out may hold anything
    rows            rows of x and out, 0 or more
    """
    m = 0
    while m + ROW_TILE <= rows:
        _outer_products(
            at(x, m * x_stride), x_stride, w, w_stride, at(out, m * out_stride), out_stride, depth, accumulate, 6
        )
        m += ROW_TILE
    x, out, left = at(x, m * x_stride), at(out, m * out_stride), rows - m
    if left == 1:
        _outer_products(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, 1)
    elif left == 2:
        _outer_products(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, 2)
    elif left == 3:
        _outer_products(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, 3)
    elif left == 4:
        _outer_products(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, 4)
    elif left == 5:
        _outer_products(x, x_stride, w, w_stride, out, out_stride, depth, accumulate, 5)


def _panel_product_plain(
    x: Any, x_stride: int, w: Any, w_stride: int, out: Any, out_stride: int, depth: int, accumulate: bool, rows: int
) -> None:
    """The same sums in the same order; each product is rounded before it is added."""
    view = np.lib.stride_tricks.as_strided
    left, right = view(x, (rows, depth), (4 * x_stride, 4)), view(w, (depth, PANEL), (4 * w_stride, 4))
    target = view(out, (rows, PANEL), (4 * out_stride, 4))
    sums = target.copy() if accumulate else np.zeros((rows, PANEL), np.float32)
    for k in range(depth):
        sums += left[:, k : k + 1] * right[k]
    target[:] = sums


panel_product: Any = _panel_product_plain if PLAIN else _panel_product
