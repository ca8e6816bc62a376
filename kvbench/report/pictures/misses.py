"""The miss-ratio curve of a grid over cache.blocks, with its bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np

from ..curves import Line, lines_of, lowest
from ..grid import CAPACITY, Grid, GridRow, miss
from .chart import GREY, INK, Axis, Chart, Series, axis, short
from .labels import MOST_LINES


def miss_chart(table: Grid) -> Chart | None:
    """None: no capacities, or no hit rates."""
    if CAPACITY not in table.keys:
        return None
    rate = "hit_rate_tokens" if table.cache_only else "hit_rate"
    lines = _lines(table, rate)
    if not lines or max(len(line.points) for line in lines) < 2:
        return None
    optimum = lowest(_lines(table, f"{rate}_optimum"), "optimum")
    infinite = lowest(_lines(table, f"{rate}_infinite"), "infinite cache")
    series = [_series(line, i, "joined") for i, line in enumerate(lines[:MOST_LINES])]
    series += [_series(optimum, INK, "dash")] if optimum.points else []
    series += [_series(infinite, GREY, "thin")] if infinite.points else []
    unit = (
        f"cache capacity (blocks of {table.block_tokens} tokens)" if table.block_tokens else "cache capacity (blocks)"
    )
    left_out = f"{MOST_LINES} of {len(lines)} lines are drawn. " if len(lines) > MOST_LINES else ""
    heights = [y for line in series for y in line.y]
    low, high = min(heights), max(heights)
    room = max(0.08 * (high - low), 0.5)
    return Chart(
        "misses",
        f"Miss ratio: {table.run}",
        axis(unit, [x for line in series for x in line.x]),
        Axis("prompt tokens missed", unit="%", low=max(low - room, 0), high=min(high + room, 100)),
        tuple(series),
        ("capacity", *(line.name for line in series)),
        _table(series),
        note=left_out
        + "Below the optimum no cache gets: the future is known to it"
        + ("." if table.cache_only else " (a bound; exact only where requests do not overlap)."),
    )


def _lines(table: Grid, rate: str) -> list[Line]:
    def missed(row: GridRow) -> float | None:
        share = miss(row.figures, rate)
        return None if share is None or math.isnan(share) else 100 * share

    return [_meaned(line) for line in lines_of(table, CAPACITY, missed) if line.points[0][0] > 0]


def _meaned(line: Line) -> Line:
    """Seeds of one capacity are one point: their mean."""
    at = dict.fromkeys(x for x, _ in line.points)
    return replace(line, points=tuple((x, fmean(y for other, y in line.points if other == x)) for x in at))


def _series(line: Line, colour: int, style: str) -> Series:
    x, y = np.array(line.points).T
    return Series(line.name, x, y, colour, style)


def _table(series: list[Series]) -> tuple[tuple[str, ...], ...]:
    at = sorted({float(x) for line in series for x in line.x})
    found = [dict(zip(line.x.tolist(), line.y.tolist(), strict=True)) for line in series]
    return tuple((short(x), *(f"{line[x]:.2f} %" if x in line else "-" for line in found)) for x in at)
