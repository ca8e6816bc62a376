"""What host memory and storage bring: hits and the tail over the size of the host, TTFT by the tier of the hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...metrics.tiers import SOURCES
from ..curves import horizontal
from ..grid import HIT, Grid
from .chart import F64, Axis, Chart, Series, axis, duration
from .folders import RunFolder, Sources
from .labels import caution, drawn, told_apart
from .misses import grid_charts

SIZES = ("tiers.host.ratio", "tiers.host.blocks", "tiers.host.bytes")
MOST_RUNS = 3
"""With a chart of their own."""
CUT_AT = 0.99
_TOLD = (0.5, 0.9, 0.99)


def tier_charts(sources: Sources) -> list[Chart]:
    """Of grids over the host's size, of runs of several sizes, and of each run by the tier of its hits."""
    charts = [chart for table in sources.tables for chart in _of_table(table)]
    charts += _over_size([run for run in sources.runs if run.figure("host_blocks") > 0])
    chosen = [(run, colour) for run, colour in drawn(sources.runs) if run.figure("host_blocks") > 0][:MOST_RUNS]
    return charts + [chart for run, colour in chosen if (chart := by_source(run, colour)) is not None]


def _of_table(table: Grid) -> list[Chart]:
    over = horizontal({key: [row.values[i] for row in table.rows] for i, key in enumerate(table.keys)})
    if over not in SIZES:
        return []
    return [replace(chart, key=f"tiers-grid-{chart.key}") for chart in grid_charts(table, HIT)]


def _over_size(runs: Sequence[RunFolder]) -> list[Chart]:
    """Two charts, a line for each system that was run with several sizes of its host."""
    lines: dict[str, list[RunFolder]] = {}
    for run, name in zip(runs, told_apart(runs, (*SIZES, "seed")) if runs else (), strict=True):
        lines.setdefault(name, []).append(run)
    lines = {name: sorted(found, key=_size) for name, found in lines.items() if len({*map(_size, found)}) > 1}
    if not lines:
        return []
    return [
        _chart_over_size(lines, "tiers-hits", "Hit rate against the host's size", ("hit_rate", "mean"), "%"),
        _chart_over_size(lines, "tiers-tail", "TTFT p99 against the host's size", ("ttft", "p99"), "ms"),
    ]


def _size(run: RunFolder) -> float:
    return run.figure("host_blocks")


def _chart_over_size(
    lines: dict[str, list[RunFolder]], key: str, title: str, figure: tuple[str, str], unit: str
) -> Chart:
    factor = 100.0 if unit == "%" else 1.0
    values = {name: np.array([factor * run.figure(*figure) for run in runs]) for name, runs in lines.items()}
    series = [
        Series(name, np.array([*map(_size, runs)]), values[name], i, "joined")
        for i, (name, runs) in enumerate(lines.items())
    ]
    what = title.partition(" against")[0]
    return Chart(
        key,
        title,
        axis("blocks on the host", [x for s in series for x in s.x]),
        axis(what, [y for s in series for y in s.y], unit),
        tuple(series),
        ("system", "blocks on the host", what),
        tuple(
            (s.name, f"{x:,.0f}", f"{y:.2f} %" if unit == "%" else duration(float(y)))
            for s in series
            for x, y in zip(s.x, s.y, strict=True)
        ),
        note="More memory raises the hit rate; whether a tail falls hangs on the link.",
        legend=tuple((s.name, s.colour) for s in series),
    )


def by_source(run: RunFolder, colour: int) -> Chart | None:
    """A distribution of TTFT for each source of a prompt's first tokens: the lowest tier that gave any."""
    parts = [(name, values) for name, values in _ttft_by_source(run) if values.size]
    if not parts:
        return None
    last = max(float(np.quantile(values, CUT_AT)) for _, values in parts)
    x = axis("TTFT", [*(float(values[0]) for _, values in parts), last], "ms")
    series = []
    for i, (name, values) in enumerate(parts):
        inside = values <= x.high
        shares = 100 * (np.arange(values.size) + 1) / values.size
        series.append(Series(name, values[inside], shares[inside], i))
    told = [
        (name, f"{values.size:,}", *(duration(float(np.quantile(values, p))) for p in _TOLD)) for name, values in parts
    ]
    return Chart(
        "tiers",
        "TTFT by tier of the hit",
        x,
        Axis("finished sequences", unit="%", low=0, high=100),
        tuple(series),
        ("the lowest tier that gave any", "sequences", *(f"p{100 * p:g}" for p in _TOLD)),
        tuple(told),
        note=" ".join(filter(None, ("A line right of `computed` is a tier whose hits lost.", caution([run])))),
        run=(run.label, colour),
        legend=tuple((s.name, s.colour) for s in series),
    )


def _ttft_by_source(run: RunFolder) -> list[tuple[str, F64]]:
    """Sorted, in ms, of finished sequences; in the order of SOURCES."""
    r = run.requests
    if "cached_host_tokens" not in r:
        return []
    stored, host, cached = r["cached_storage_tokens"] > 0, r["cached_host_tokens"] > 0, r["cached_tokens"] > 0
    source = np.where(stored, 3, np.where(host, 2, np.where(cached, 1, 0)))
    done = (run.status == "finished") & np.isfinite(r["ttft_ms"])
    return [(name, np.sort(r["ttft_ms"][done & (source == i)])) for i, name in enumerate(SOURCES)]
