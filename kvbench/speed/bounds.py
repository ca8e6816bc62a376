"""What keeps decode below the speed of plain reading: its memory, or its own instructions.

    random     blocks anywhere, as a pool hands them out
    in order   the same bytes in memory's order: what the block table costs
    cached     every table names one block over and over, which the caches hold: what is left is instructions

Where random is about as fast as cached, no memory would make it faster. The units that multiply and add say how far the
instructions are from theirs: a token costs them as much in any KV type, so half the bytes are not twice the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..kernels.layout import KV_DTYPES, LAYOUTS
from ..report.experiment_table import Experiment
from ..report.kernels_table import share
from .attention import decode_probe
from .copies import multiply_probe, read_probe
from .memory import Memory, shuffled_tables
from .probes import Probe, Timing

BOUND_BY_MEMORY = 0.8
"""Share of the cached speed below which memory is what is waited for."""

_BLOCK_TOKENS = 16


def bounds(
    memory: Memory, threads: Sequence[int], measure: Callable[[Sequence[Probe]], dict[Probe, Timing]]
) -> Experiment:
    """Decode of each KV type and layout with one thread: two would share memory and caches."""
    cells: dict[tuple[str, str], list[Probe]] = {}
    operations: dict[tuple[str, str], float] = {}
    for kv_dtype in KV_DTYPES:
        for layout in LAYOUTS:
            cache = memory.cache(layout, kv_dtype, _BLOCK_TOKENS)
            tables = shuffled_tables(cache, memory.sizes.context)
            ordered = np.arange(tables.size, dtype=np.int32).reshape(tables.shape)
            three = (tables, ordered, np.zeros_like(tables))
            cells[kv_dtype, layout] = [decode_probe(memory, cache, found, 1) for found in three]
            tokens = len(tables) * min(memory.sizes.context, tables.shape[1] * _BLOCK_TOKENS)
            operations[kv_dtype, layout] = 4.0 * tokens * memory.sizes.heads * memory.sizes.head_dim
    read, units = read_probe(memory, 1), multiply_probe(1)
    timings = measure([*(p for probes in cells.values() for p in probes), read, *([units] if units else [])])
    rows, lines = [], []
    for key, probes in cells.items():
        of_read = [timings[p].rate / timings[read].rate for p in probes]
        cached = timings[probes[-1]].seconds
        of_units = operations[key] / cached / timings[units].rate if units else None
        waited = cached / timings[probes[0]].seconds
        bound = "memory" if waited < BOUND_BY_MEMORY else "instructions"
        rows.append([*key, *map(share, of_read), share(waited), share(of_units), bound])
        lines.append((" ".join(key), of_read))
    return Experiment(
        name="bounds of decode",
        held=f"Paged decode, one thread, blocks of {_BLOCK_TOKENS}; shares of plain reading. Cached: one block over "
        "and over. Of cached: what is left of that speed with blocks anywhere; memory is the bound below "
        f"{BOUND_BY_MEMORY}. Of FMA: cached, against the units that multiply and add.",
        header=["type", "layout", "random", "in order", "cached", "of cached", "of FMA", "bound"],
        rows=rows,
        x_label="blocks",
        x=["random", "in order", "cached"],
        y_label="share of plain reading",
        lines=lines,
    )
