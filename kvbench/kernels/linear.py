"""Products of activations and packed weights: y = x w^T, float32.

Each element of y is one chain of multiply-adds over k from 0 up, whatever tile, batch or thread computes it. So the
bits of a row depend on that row and the weights alone, which `numerics = "exact"` rests on and a BLAS does not give.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.jit import PLAIN, entry, jit
from .aligned import aligned_zeros
from .products import PANEL, ROW_TILE, panel_product
from .simd import at, pointer
from .threads import share

F32 = NDArray[np.float32]

_ROWS_BYTES = 192 * 1024
"""Rows of x that are multiplied with a panel before the next one: what leaves room for the panel in L2."""


_WORTH_SHARING = 1 << 20
"""Multiply-adds below which handing a part to another thread takes longer than doing it."""


def pack(w: F32) -> F32:
    """Weights in the order in which they are read.

    w        (outputs, inputs) float32
    returns  (panels, inputs, PANEL) float32: PANEL outputs side by side, zeros beyond the last
    """
    outputs, inputs = w.shape
    packed = aligned_zeros((-(-outputs // PANEL), inputs, PANEL), np.float32)
    for panel, first in enumerate(range(0, outputs, PANEL)):
        part = w[first : first + PANEL]
        packed[panel, :, : len(part)] = part.T
    return packed


def multiply(x: F32, packed: F32, y: F32, threads: int = 1) -> None:
    """y = x w^T for packed w.

    x        (tokens, inputs) float32, C-contiguous
    packed   from `pack`
    y        (tokens, outputs) float32, C-contiguous, written; outputs as many as were packed
    threads  panels are dealt out among so many
    """
    panels, inputs, width = packed.shape
    if x.ndim != 2 or x.shape[1] != inputs or width != PANEL:
        raise ValueError(f"linear: x {x.shape} does not fit packed weights {packed.shape}")
    if y.ndim != 2 or y.shape[0] != x.shape[0] or -(-y.shape[1] // PANEL) != panels:
        raise ValueError(f"linear: y {y.shape} does not fit x {x.shape} and packed weights {packed.shape}")
    if not all(a.flags.c_contiguous and a.dtype == np.float32 for a in (x, packed, y)):
        raise ValueError("linear: arrays must be float32 and C-contiguous")
    if PLAIN:
        _multiply_plain(x, packed, y)
    elif x.shape[0]:
        worth = threads if x.shape[0] * packed.size >= _WORTH_SHARING else 1
        share(panels, worth, lambda first, end: _multiply(first, end, x, packed, y))


def _multiply_plain(x: F32, packed: F32, y: F32) -> None:
    """The same sums in the same order; each product is rounded before it is added."""
    sums = np.zeros((len(x), len(packed), PANEL), np.float32)
    for k in range(x.shape[1]):
        sums += x[:, k, None, None] * packed[:, k]
    y[:] = sums.reshape(len(x), packed.shape[0] * PANEL)[:, : y.shape[1]]


@jit
def _product(x, w, out, out_stride, depth, rows):
    """panel_product in tiles of like height: 8 rows as 4 + 4, since few sums in flight wait for one another."""
    left = rows % ROW_TILE
    if rows > ROW_TILE and 0 < left < 3:
        even = rows - left - ROW_TILE
        upper = (left + ROW_TILE + 1) // 2
        panel_product(x, depth, w, PANEL, out, out_stride, depth, False, even)
        x, out = at(x, even * depth), at(out, even * out_stride)
        panel_product(x, depth, w, PANEL, out, out_stride, depth, False, upper)
        x, out, rows = at(x, upper * depth), at(out, upper * out_stride), rows - even - upper
    panel_product(x, depth, w, PANEL, out, out_stride, depth, False, rows)


@entry
def _multiply(first, end, x, packed, y):
    """Panels from `first` to before `end`: a chunk of rows against each panel in turn."""
    tokens, inputs = x.shape
    outputs = y.shape[1]
    chunk = max(_ROWS_BYTES // (4 * inputs * ROW_TILE), 1) * ROW_TILE
    edge = np.empty((min(chunk, tokens), PANEL), np.float32)
    xs, ws, ys, edges = pointer(x), pointer(packed), pointer(y), pointer(edge)
    for row in range(0, tokens, chunk):
        rows = min(chunk, tokens - row)
        for panel in range(first, end):
            column = panel * PANEL
            whole = column + PANEL <= outputs
            out, stride = (at(ys, row * outputs + column), outputs) if whole else (edges, PANEL)
            _product(at(xs, row * inputs), at(ws, column * inputs), out, stride, inputs, rows)
            if not whole:
                for i in range(rows):
                    for j in range(outputs - column):
                        y[row + i, column + j] = edge[i, j]
    return edge.size  # keeps the scratch alive beyond its last pointer
