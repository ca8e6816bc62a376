"""Charts of latency: distributions, percentile spectra, throughput against latency, runs against their baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...metrics.percentiles import ALPHA
from ..grid import Grid
from .chart import GREY, Axis, Chart, Rule, Series, axis, duration
from .folders import RunFolder, Sources
from .labels import LOADS, MOST_LINES, caution, clocks, drawn, systems

TITLES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}
OF_REQUESTS = ("ttft", "tpot", "e2el")
"""Those of which requests.csv has every value; of ITL summary.csv has percentiles."""

_SHARES = np.unique(np.concatenate((np.linspace(0, 1, 161), 1 - 10.0 ** -np.linspace(0.5, 6, 111))))
_TOLD = (0.5, 0.9, 0.95, 0.99, 0.999)
DOUBT = "* too few samples for a 95 % interval."
COMPARED = (
    *((f"{name.upper()} {p}", name, p) for name in ("ttft", "tpot", "itl", "e2el") for p in ("p50", "p99")),
    ("output tokens/s", "output_throughput", "mean"),
    ("goodput", "goodput", "mean"),
    ("hit rate", "hit_rate", "mean"),
    ("preemptions", "preemptions", "mean"),
)


def cdfs(runs: Sequence[RunFolder]) -> list[Chart]:
    """How many sequences were done within a time, for each latency that requests.csv holds."""
    return [chart for name in OF_REQUESTS if (chart := _cdf(runs, name))]


def _cdf(runs: Sequence[RunFolder], name: str) -> Chart | None:
    values = [(run, colour, run.finished(f"{name}_ms")) for run, colour in drawn(runs)]
    values = [entry for entry in values if entry[2].size]
    if not values:
        return None
    told = _percentiles([(run.label, found) for run, _, found in values])
    return Chart(
        f"cdf-{name}",
        TITLES[name],
        axis(name.upper(), [v for _, _, found in values for v in (found[0], found[-1])], "ms"),
        Axis("finished sequences", unit="%", low=0, high=100),
        tuple(Series(run.label, np.quantile(v, _SHARES), 100 * _SHARES, colour) for run, colour, v in values),
        *told,
        note=" ".join(filter(None, (DOUBT.replace("*", "* in the table:") * _is_doubted(told[1]), caution(runs)))),
        rules=tuple(_promises(runs, name, "x")),
    )


def spectra(runs: Sequence[RunFolder]) -> list[Chart]:
    """Latency over the percentile, far into the tail; thin where there are too few samples for an interval."""
    return [chart for name in TITLES if (chart := _spectrum(runs, name))]


def _spectrum(runs: Sequence[RunFolder], name: str) -> Chart | None:
    lines, table = [], []
    for run, colour in drawn(runs):
        if name in OF_REQUESTS:
            values = run.finished(f"{name}_ms")
            lines += _spectrum_lines(run.label, values, colour) if values.size else []
            table.append((run.label, values))
        elif math.isfinite(run.figure(name, "p50")):
            shares = np.array([0.5, 0.9, 0.99])
            told = np.array([run.figure(name, p) for p in ("p50", "p90", "p99")])
            lines.append(Series(run.label, shares, told, colour, "joined"))
    if not lines:
        return None
    header, rows = _percentiles(table) if table else _three(lines)
    thin = any(line.style == "thin" for line in lines)
    said = "Thin, and * in the table: too few sequences for a 95 % interval of that percentile. " if thin else ""
    known = "" if name in OF_REQUESTS else "Of ITL a run keeps p50, p90 and p99. "
    return Chart(
        f"spectrum-{name}",
        TITLES[name],
        Axis("percentile", "tail", low=0, high=max(float(line.x[-1]) for line in lines)),
        axis(name.upper(), [v for line in lines for v in line.y], "ms"),
        tuple(lines),
        header,
        rows,
        note=f"{said}{known}{caution(runs)}".strip(),
        rules=tuple(_promises(runs, name, "y")),
    )


def _spectrum_lines(label: str, values: np.ndarray[Any, Any], colour: int) -> list[Series]:
    """Solid as far as percentiles have an interval, thin from there."""
    last = 1 - 1 / max(values.size, 2)
    sure = min(_surest(values.size), last)
    shares = np.unique(np.concatenate((_SHARES[: np.searchsorted(_SHARES, last)], [sure, last])))
    found = np.quantile(values, shares)
    solid, rest = shares <= sure, shares >= sure
    line = Series(label, shares[solid], found[solid], colour)
    if rest.sum() < 2:
        return [line]
    return [replace(line, name=""), Series(label, shares[rest], found[rest], colour, "thin")]


def _percentiles(values: Sequence[tuple[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = [(label, f"{found.size:,}", *(_quantile(found, p) for p in _TOLD)) for label, found in values]
    return ("run", "n", *(f"p{100 * p:g}" for p in _TOLD)), tuple(rows)


def _quantile(values: np.ndarray[Any, Any], p: float) -> str:
    if values.size == 0:
        return "-"
    return duration(float(np.quantile(values, p))) + "*" * (p > _surest(values.size))


def _is_doubted(rows: Sequence[Sequence[str]]) -> bool:
    return any(cell.endswith("*") for row in rows for cell in row[1:])


def _surest(n: int) -> float:
    """The last percentile whose interval has an upper end: p ** n <= alpha / 2."""
    return float((ALPHA / 2) ** (1 / n))


def _three(lines: Sequence[Series]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    return ("run", "p50", "p90", "p99"), tuple((line.name, *(duration(float(v)) for v in line.y)) for line in lines)


def _promises(runs: Sequence[RunFolder], name: str, across: str) -> list[Rule]:
    bounds = {float(run.setting(f"slo.{name}") or 0) for run in runs} - {0.0}
    return [Rule(bound, f"SLO {duration(bound)}", across) for bound in sorted(bounds)]


@dataclass(frozen=True)
class Point:
    """One load of a curve. line: what it belongs to. times: latency -> p99 in ms."""

    line: str
    clock: str
    load: float
    throughput: float
    times: Mapping[str, float]


def curve_charts(sources: Sources) -> list[Chart]:
    """p99 of TTFT and TPOT over throughput: a line for each system, its points the loads that it was given."""
    points = [*_points_of_runs(sources.runs)]
    if not sources.runs:
        points += [point for table in sources.tables if not table.cache_only for point in _points_of_table(table)]
    points += [point for document in sources.capacities for point in _points_of_search(document)]
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point.line, []).append(point)
    lines = {name: _meaned(found) for name, found in lines.items()}
    if sum(map(len, lines.values())) < 2:
        return []
    return [chart for name in ("ttft", "tpot") if (chart := _curve(sources, lines, name))]


def _curve(sources: Sources, lines: Mapping[str, list[Point]], name: str) -> Chart | None:
    series = []
    for i, (line, points) in enumerate(lines.items()):
        x, y = np.array([p.throughput for p in points]), np.array([p.times.get(name, math.nan) for p in points])
        named = i < MOST_LINES
        series.append(Series(line if named else "", x, y, i if named else GREY, "joined"))
    if not any(np.isfinite(line.y).any() for line in series):
        return None
    rows = tuple(
        (line, f"{p.load:,g}", f"{p.throughput:,.1f}", duration(p.times[name]) if name in p.times else "-")
        for line, points in lines.items()
        for p in points
    )
    promised = sorted({r for run in sources.runs for r in _promises([run], name, "y")}, key=lambda rule: rule.at)
    promised += [rule for d in sources.capacities for rule in _promises_of(str(d.get("slo", "")), name)]
    left_out = (
        f"{MOST_LINES} of {len(lines)} systems have a colour; the table names all. " if len(lines) > MOST_LINES else ""
    )
    return Chart(
        f"curve-{name}",
        f"{name.upper()} p99 against throughput",
        axis("output tokens/s", [x for line in series for x in line.x], log=False),
        axis(f"{name.upper()} p99", [v for line in series for v in line.y] + [r.at for r in promised], "ms"),
        tuple(series),
        ("system", "load", "output tokens/s", f"{name.upper()} p99"),
        rows,
        note=left_out + " ".join(clocks([p.clock for points in lines.values() for p in points])),
        rules=tuple(dict.fromkeys(promised)),
    )


def _promises_of(slo: str, name: str) -> list[Rule]:
    bounds = dict(part.split(":") for part in slo.split() if ":" in part)
    return [Rule(float(bounds[name]), f"SLO {duration(float(bounds[name]))}")] if name in bounds else []


def _points_of_runs(runs: Sequence[RunFolder]) -> list[Point]:
    found = []
    for run, system in zip(runs, systems(runs), strict=True):
        load = next((float(run.setting(key)) for key in LOADS if run.setting(key)), math.nan)
        times = {name: run.figure(name, "p99") for name in ("ttft", "tpot") if run.summary[name]["p99"]}
        found.append(Point(system, run.head["clock"], load, run.figure("output_throughput"), times))
    return found


def _points_of_table(table: Grid) -> list[Point]:
    at = next((table.keys.index(key) for key in LOADS if key in table.keys), None)
    if at is None:
        return []
    found = []
    for row in table.rows:
        if row.figures.get("output_throughput") is None:
            continue
        name = ", ".join(value for i, value in enumerate(row.values) if i != at) or table.run
        found.append(_point(name, row.figures.get("clock") or "", float(row.values[at]), row.figures))
    return found


def _points_of_search(document: Mapping[str, Any]) -> list[Point]:
    clock = str(document.get("clock", ""))
    return [_point(str(document["run"]), clock, float(p["load"]), p) for p in document["points"]]


def _point(line: str, clock: str, load: float, figures: Mapping[str, Any]) -> Point:
    times = {n: float(figures[f"p99_{n}_ms"]) for n in ("ttft", "tpot") if figures.get(f"p99_{n}_ms") is not None}
    return Point(line, clock, load, float(figures.get("output_throughput") or math.nan), times)


def _meaned(points: Sequence[Point]) -> list[Point]:
    """Seeds of one load are one point: their means. In order of load."""
    by_load: dict[float, list[Point]] = {}
    for point in points:
        by_load.setdefault(point.load, []).append(point)
    found = []
    for load, same in sorted(by_load.items()):
        names = set.intersection(*(set(p.times) for p in same))
        times = {name: float(np.mean([p.times[name] for p in same])) for name in sorted(names)}
        throughput = float(np.mean([p.throughput for p in same]))
        found.append(Point(same[0].line, same[0].clock, load, throughput, times))
    return found


def ratios(runs: Sequence[RunFolder]) -> Chart | None:
    """Every run divided by the baseline, metric by metric."""
    base = next((run for run in runs if run.baseline), None)
    others = [(run, colour) for run, colour in drawn(runs) if not run.baseline]
    if base is None or not others:
        return None
    kept = [
        entry
        for entry in COMPARED
        if base.figure(*entry[1:]) > 0 and any(run.figure(*entry[1:]) > 0 for run, _ in others)
    ]
    if not kept:
        return None
    at = np.arange(len(kept), dtype=np.float64) + 0.5
    values = [np.array([run.figure(*e[1:]) / base.figure(*e[1:]) for e in kept], np.float64) for run, _ in others]
    series = [Series(run.label, v, at, colour, "dots") for (run, colour), v in zip(others, values, strict=True)]
    span = 1.1 * max(1.25, *(max(v, 1 / v) for found in values for v in found if v > 0 and math.isfinite(v)))
    table = tuple(
        (name, f"{base.figure(metric, p):,.4g}", *(f"{v[i]:.4f}" for v in values))
        for i, (name, metric, p) in enumerate(kept)
    )
    return Chart(
        "ratios",
        f"Divided by the baseline, {base.label}",
        Axis("ratio", "log", "", 1 / span, span),
        Axis("", low=0, high=len(kept)),
        tuple(series),
        ("metric", base.label, *(f"{run.label} / baseline" for run, _ in others)),
        table,
        note="Left of the grey line is less: better for a latency, worse for a rate. Verdicts: kvbench compare. "
        + caution(runs),
        rules=(Rule(1.0, base.label, "x"),),
        rows=tuple(name for name, _, _ in kept),
        legend=tuple((run.label, colour) for run, colour in [(base, GREY), *others]),
    )
