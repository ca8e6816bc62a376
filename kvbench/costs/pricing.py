"""Steps priced one by one, for tables and pictures of step times; a run prices them in its loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.jit import entry
from .axes import F64, I64
from .tables import NUM_RESOURCES, OUTSIDE, QUERY_SIZE, CostTables, add_prefill, clear, set_decode, step_ns


def price_steps(tables: CostTables, steps: Sequence[tuple[int, int, int, int]]) -> tuple[I64, F64]:
    """Steps of (new, context, decodes, context of each): ns by resource (n, 7), and 1 where beyond the tables (n,)."""
    rows = np.array(steps, np.int64).reshape(-1, 4)
    resources, outside = np.zeros((len(rows), NUM_RESOURCES), np.int64), np.zeros(len(rows), np.float64)
    _price(tables, rows, resources, outside)
    return resources, outside


@entry
def _price(tables, rows, resources, outside):  # type: ignore[no-untyped-def]
    query = np.zeros(QUERY_SIZE, np.float64)
    for i in range(rows.shape[0]):
        clear(query)
        if rows[i, 0] > 0:
            add_prefill(tables, query, rows[i, 0], rows[i, 1])
        if rows[i, 2] > 0:
            set_decode(query, rows[i, 2], rows[i, 2] * rows[i, 3], rows[i, 3])
        step_ns(tables, query, resources[i])
        outside[i] = query[OUTSIDE]
