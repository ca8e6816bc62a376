"""From measured points to the axes of cost tables: straight between points, and one octave beyond the last.

Measured points lie anywhere; an axis has its points by octave (see axes.py). Below the first point a cost is that of
the first: kernels have a floor. Beyond the last it goes on as it grew over the last octave, which forgives noise;
whoever makes the table says where that begins (CostTables.limits).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .axes import F64, Grid, Line, axis_points


def straight(counts: F64, known: F64, costs: F64) -> F64:
    """Costs at `counts` of what is known at ascending counts; see above for both ends."""
    inside = np.interp(counts, known, costs)
    last = known[-1]
    if known.size == 1:
        return inside * np.maximum(counts / last, 1.0)
    before = max(last / 2.0, known[0])
    slope = max((costs[-1] - np.interp(before, known, costs)) / (last - before), 0.0)
    return inside + np.maximum(counts - last, 0.0) * slope


def line_of(known: F64, costs: F64, bits: int) -> Line:
    """A line through measured points (ascending), one octave longer than they are."""
    points = axis_points(bits, 2 * int(known[-1]))
    return Line(bits, straight(points, known, costs))


def prefill_grid(rows: Mapping[int, tuple[F64, F64]], new_bits: int, context_bits: int) -> Grid:
    """A grid of (new, context + 1) from rows: new tokens -> (contexts, costs), each row with contexts of its own."""
    news = np.array(sorted(rows), np.float64)
    last = max(int(contexts[-1]) for contexts, _ in rows.values())
    contexts = axis_points(context_bits, 2 * last + 1) - 1.0
    by_context = np.stack([straight(contexts, *rows[int(new)]) for new in news])
    return _grid(axis_points(new_bits, 2 * int(news[-1])), news, by_context, new_bits, context_bits)


def decode_grid(
    rows: Mapping[int, tuple[F64, F64]],
    last_batch: int,
    last_context: int,
    batch_bits: int,
    sum_bits: int,
) -> Grid:
    """A grid of (batch, summed context) from rows: batch -> (contexts of each sequence, costs).

    last_*  largest batch and context of the table; grids that share axes are given the same
    """
    batches = np.array(sorted(rows), np.float64)
    sums = axis_points(sum_bits, 2 * last_batch * last_context)
    by_sum = np.stack([straight(sums, batch * rows[int(batch)][0], rows[int(batch)][1]) for batch in batches])
    return _grid(axis_points(batch_bits, 2 * last_batch), batches, by_sum, batch_bits, sum_bits)


def _grid(points: F64, known: F64, costs: F64, row_bits: int, column_bits: int) -> Grid:
    """Rows at `points` out of (known, columns) costs."""
    columns = [straight(points, known, costs[:, column]) for column in range(costs.shape[1])]
    table = np.ascontiguousarray(np.stack(columns, axis=1))
    return Grid(row_bits, column_bits, table, np.zeros_like(table))
