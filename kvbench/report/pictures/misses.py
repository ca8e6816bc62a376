"""The curves of a grid over its axis of numbers: miss (or hit) ratio with its bounds, and the tail of TTFT."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ..curves import Line, horizontal, lines_of, lowest
from ..grid import CAPACITY, HIT, MISS, Grid, GridRow, miss
from .chart import GREY, INK, Axis, Chart, Rule, Series, axis, duration, short
from .fleet import crossing
from .labels import MOST_LINES

SIZES = ("block_bytes", "device_blocks")
"""Figures of a grid: of a block, and how many of them the device holds."""

BELOW = {MISS: "Below the optimum no cache gets", HIT: "Above the optimum no cache gets"}


def grid_charts(table: Grid, curve: str = MISS) -> list[Chart]:
    """What there is to draw; nothing where no axis has several numbers, or no line two points.

    Policies of a router over two axes and more are too many lines: where they cross is one chart.
    """
    over = horizontal({key: [row.values[i] for row in table.rows] for i, key in enumerate(table.keys)})
    if over is None:
        return []
    if len(table.keys) > 2 and (crossed := crossing(table)) is not None:
        return [crossed]
    return [chart for chart in (_ratio(table, over, curve), _tail(table, over)) if chart is not None]


def _ratio(table: Grid, over: str, curve: str) -> Chart | None:
    rate = "hit_rate_tokens" if table.cache_only else "hit_rate"
    lines = _lines(table, over, rate, curve)
    if not _is_drawn(lines):
        return None
    best = lowest if curve == MISS else highest
    optimum = best(_lines(table, over, f"{rate}_optimum", curve), "optimum")
    infinite = best(_lines(table, over, f"{rate}_infinite", curve), "infinite cache")
    series = [_series(line, i, "joined") for i, line in enumerate(lines[:MOST_LINES])]
    bounds = [_series(optimum, INK, "dash")] if optimum.points else []
    bounds += [_series(infinite, GREY, "thin")] if infinite.points else []
    y = axis(f"prompt tokens {'missed' if curve == MISS else 'hit'}", [v for s in (*series, *bounds) for v in s.y], "%")
    y = replace(y, low=max(y.low, 0.0), high=min(y.high, 100.0))
    shade = [_shaded(bounds[0], y, curve)] if optimum.points else []
    left_out = f"{MOST_LINES} of {len(lines)} lines are drawn. " if len(lines) > MOST_LINES else ""
    exact = "." if table.cache_only else " (a bound; exact only where requests do not overlap)."
    told = [*series, *bounds]
    return _with_capacity(
        Chart(
            "misses",
            f"{'Miss' if curve == MISS else 'Hit'} ratio: {table.run}",
            axis(_x_label(table, over), [x for s in told for x in s.x]),
            y,
            (*shade, *told),
            (over.rpartition(".")[2], *(s.name for s in told)),
            _table(told, lambda value: f"{value:.2f} %"),
            note=f"{left_out}{BELOW[curve]}: the future is known to it{exact}" if bounds else left_out.strip(),
        ),
        table,
        over,
    )


def _tail(table: Grid, over: str) -> Chart | None:
    """TTFT p99 over the same axis, of runs with a clock."""
    lines = lines_of(table, over, lambda row: row.figures.get("p99_ttft_ms"))
    lines = [_meaned(line) for line in lines]
    if not _is_drawn(lines):
        return None
    series = [_series(line, i, "joined") for i, line in enumerate(lines[:MOST_LINES])]
    return _with_capacity(
        Chart(
            "tail",
            f"TTFT p99: {table.run}",
            axis(_x_label(table, over), [x for s in series for x in s.x]),
            axis("TTFT p99", [float(v) for s in series for v in s.y], "ms"),
            tuple(series),
            (over.rpartition(".")[2], *(s.name for s in series)),
            _table(series, duration),
        ),
        table,
        over,
    )


def _with_capacity(chart: Chart, table: Grid, over: str) -> Chart:
    """Capacities also in GB, and what the device holds as a line, where the grid says what a block takes."""
    sizes, fits = ({row.figures[name] for row in table.rows if row.figures.get(name)} for name in SIZES)
    if over != CAPACITY or len(sizes) != 1:
        return chart
    (size,) = sizes
    rules = [Rule(float(blocks), f"device holds {short(blocks)}", "x") for blocks in sorted(fits)]
    return replace(chart, twin=chart.x.scaled(float(size) / 1e9, "GB of KV on a device"), rules=tuple(rules))


def _shaded(optimum: Series, y: Axis, curve: str) -> Series:
    edge = y.low if curve == MISS else y.high
    return replace(optimum, name="", colour=GREY, style="faint", base=np.full_like(optimum.y, edge))


def highest(lines: Sequence[Line], name: str) -> Line:
    """The greatest of several lines at each x."""
    turned = lowest([replace(line, points=tuple((x, -y) for x, y in line.points)) for line in lines], name)
    return replace(turned, points=tuple((x, -y) for x, y in turned.points))


def _is_drawn(lines: Sequence[Line]) -> bool:
    return max((len(line.points) for line in lines), default=0) >= 2


def _lines(table: Grid, over: str, rate: str, curve: str) -> list[Line]:
    def share(row: GridRow) -> float | None:
        found = miss(row.figures, rate)
        if found is None or math.isnan(found):
            return None
        return 100 * (found if curve == MISS else 1 - found)

    return [_meaned(line) for line in lines_of(table, over, share) if over != CAPACITY or line.points[0][0] > 0]


def _meaned(line: Line) -> Line:
    """Seeds of one place are one point: their mean."""
    at = dict.fromkeys(x for x, _ in line.points)
    return replace(line, points=tuple((x, fmean(y for other, y in line.points if other == x)) for x in at))


def _series(line: Line, colour: int, style: str) -> Series:
    x, y = np.array(line.points).T
    return Series(line.name, x, y, colour, style)


def _x_label(table: Grid, over: str) -> str:
    if over == CAPACITY:
        return f"blocks of {table.block_tokens} tokens" if table.block_tokens else "blocks"
    unit: Mapping[str, str] = table.units
    return f"{over} ({unit[over]})" if unit.get(over) else over


def _table(series: Sequence[Series], told: Callable[[float], str]) -> tuple[tuple[str, ...], ...]:
    at = sorted({float(x) for line in series for x in line.x})
    found = [dict(zip(line.x.tolist(), line.y.tolist(), strict=True)) for line in series]
    return tuple((short(x), *(told(line[x]) if x in line else "-" for line in found)) for x in at)
