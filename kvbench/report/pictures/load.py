"""Latency against load: a line for each system, its points the loads that it was given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..grid import Grid
from .chart import F64, GREY, INK, Chart, Rule, Series, axis, duration
from .folders import RunFolder, Sources
from .labels import LOADS, MOST_LINES, clocks, drawn, systems
from .latency import promises


@dataclass(frozen=True)
class Point:
    """One load of a curve.

    line     what it belongs to
    times    latency -> p99 in ms
    colours  of the runs that it is of, those that have one
    """

    line: str
    clock: str
    load: float
    throughput: float
    times: Mapping[str, float]
    colours: frozenset[int] = frozenset()


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
    if max(map(len, lines.values()), default=0) < 2:
        return []
    return [chart for name in ("ttft", "tpot") if (chart := _curve(sources, lines, name))]


def _curve(sources: Sources, lines: Mapping[str, list[Point]], name: str) -> Chart | None:
    series = _series(lines, name)
    if not any(np.isfinite(line.y).any() for line in series):
        return None
    rows = tuple(
        (line, f"{p.load:,g}", f"{p.throughput:,.1f}", duration(p.times[name]) if name in p.times else "-")
        for line, points in lines.items()
        for p in points
    )
    promised = sorted({r for run in sources.runs for r in promises([run], name, "y")}, key=lambda rule: rule.at)
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


def _series(lines: Mapping[str, list[Point]], name: str) -> list[Series]:
    """A system of one run has that run's colour; else each dot has its own, and the line the first of them."""
    series: list[Series] = []
    for i, (line, points) in enumerate(lines.items()):
        x, y = np.array([p.throughput for p in points]), np.array([p.times.get(name, math.nan) for p in points])
        colour = i if i < MOST_LINES else GREY
        dots: tuple[int, ...] = ()
        own = [next(iter(p.colours), None) if len(p.colours) == 1 else None for p in points]
        if any(colour is not None for colour in own):
            free = [c for c in own if c is not None and c not in {s.colour for s in series}]
            colour = free[0] if free else INK
            dots = tuple(INK if c is None else c for c in own)
        series.append(Series(line if i < MOST_LINES else "", x, y, colour, "joined", dots=dots))
    return series


def _promises_of(slo: str, name: str) -> list[Rule]:
    bounds = dict(part.split(":") for part in slo.split() if ":" in part)
    return [Rule(float(bounds[name]), f"SLO {duration(float(bounds[name]))}")] if name in bounds else []


def _points_of_runs(runs: Sequence[RunFolder]) -> list[Point]:
    colours = {run.path: colour for run, colour in drawn(runs)}
    names = systems(runs)
    found = []
    for run, system in zip(runs, names, strict=True):
        load = next((float(run.setting(key)) for key in LOADS if run.setting(key)), math.nan)
        times = {name: run.figure(name, "p99") for name in ("ttft", "tpot") if run.summary[name]["p99"]}
        line = run.label if names.count(system) == 1 else system
        own = frozenset({colours[run.path]} if run.path in colours else ())
        found.append(Point(line, run.head["clock"], load, run.figure("output_throughput"), times, own))
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
        colours = same[0].colours if len(same) == 1 else frozenset[int]()
        found.append(Point(same[0].line, same[0].clock, load, throughput, times, colours))
    return found


def capacity_charts(document: Mapping[str, Any]) -> list[Chart]:
    """Each promised tail over the loads that a search tried, with its promise and the capacity as lines."""
    points = sorted(document["points"], key=lambda p: float(p["load"]))
    loads = np.array([float(p["load"]) for p in points])
    wanted = [_tail_of(text, [p["promises"].get(text) for p in points]) for text in document["promises"]]
    for name, bound in (part.split(":") for part in str(document["slo"]).split()):
        wanted.append((f"{name.upper()} p99", float(bound), _numbers([p.get(f"p99_{name}_ms") for p in points])))
    unit = {"rate": "requests/s", "concurrency": "requests in flight"}[document["over"]]
    low = document["median"]
    who = f"{document['model']} on {document['device']} ({document['preset']}): {document['run']}"
    return [
        Chart(
            f"capacity-{i}",
            f"{name}: {who}",
            axis(unit, loads),
            axis(name, [*values, bound], "ms"),
            (Series("", loads, values, 0, "joined"),),
            (unit, name),
            tuple((f"{x:g}", duration(float(y))) for x, y in zip(loads, values, strict=True)),
            note=str(document["answer"]) * (i == len(wanted) - 1),
            rules=(Rule(bound, f"{duration(bound)} promised"), *([Rule(low, f"carries {low:g}", "x")] if low else [])),
        )
        for i, (name, bound, values) in enumerate(wanted)
        if np.isfinite(values).any()
    ]


def _tail_of(promise: str, values: Sequence[float | None]) -> tuple[str, float, F64]:
    what, _, bound = promise.partition(":")
    name, _, percentile = what.partition(".")
    return f"{name.upper()} {percentile}", float(bound), _numbers(values)


def _numbers(values: Sequence[float | None]) -> F64:
    return np.array([math.nan if value is None else value for value in values], np.float64)
