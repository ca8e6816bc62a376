"""All charts of all sources, in the order of a page: sections of charts, by the names that `kvbench plot` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.errors import UsageError
from ..grid import CAPACITY
from . import accuracy, advice, experts, fleet, latency, load, misses, over_time, phases, tiers
from .chart import Chart
from .folders import RunFolder, Sources, read_sources
from .labels import drawn, named


@dataclass(frozen=True)
class Kind:
    """What --what names. title: of a section; needs: what a folder lacks when there is nothing to draw."""

    title: str
    needs: str


KINDS = {
    "ratios": Kind("Against the baseline", "two runs"),
    "cdf": Kind("Latency distributions", "finished sequences"),
    "spectrum": Kind("Percentile spectra", "finished sequences"),
    "curve": Kind("Throughput and latency", "runs of several loads, a grid or a sweep over them"),
    "misses": Kind("Miss ratio", "a grid.csv of --grid cache.blocks=..."),
    "phases": Kind("Requests by phase", "requests that ended, with their times"),
    "timeline": Kind("Single requests", "requests that ended, with their times"),
    "occupancy": Kind("KV blocks", "steps.csv: run with --steps"),
    "hits": Kind("Hit rate", "requests that were admitted"),
    "batch": Kind("Batches", "steps.csv: run with --steps"),
    "fleet": Kind("Routers", "runs of several engines: --replicas N, or a grid over router.policy"),
    "engines": Kind("Engines of a fleet", "steps.csv of several engines: --replicas N --steps"),
    "tiers": Kind("Tiers", "a grid over tiers.host.ratio, or runs with a host tier"),
    "experts": Kind("Balance of experts", "experts.csv: a run with --ep"),
    "devices": Kind("Load of expert devices", "experts.csv: a run with --ep"),
    "advice": Kind("What each change is worth", "advice.json: kvbench advise X -o"),
    "accuracy": Kind("Predicted and measured", "fidelity.csv: kvbench validate DIR -o"),
}


OF_ONE = {
    "timeline": (phases.timeline, 1),
    "occupancy": (over_time.occupancy, 3),
    "batch": (over_time.batches, 3),
    "engines": (over_time.engines, 3),
    "experts": (experts.experts, 3),
    "devices": (experts.devices, 1),
}
"""Kinds that draw one run, and how many runs beside the baseline have such a chart on a page."""


_OF_ALL = {"ratios": latency.ratios, "hits": over_time.hit_rates}
"""Kinds that draw all runs in one chart."""


def read_named(paths: Sequence[Path], baseline: Path | None) -> Sources:
    """The sources, runs labelled. Of several folders the first is the baseline unless another is named."""
    found = read_sources(paths)
    several = len(found.runs) > 1 and len(paths) > 1 and (paths[0] / "run.json").exists()
    found.runs = named(found.runs, baseline or (paths[0] if several else None))
    return found


def charts_of(sources: Sources, kind: str) -> list[Chart]:
    """The charts of one kind; none where the sources do not hold what it needs."""
    runs: list[RunFolder] = sources.runs
    if kind in OF_ONE:
        return _of_each(runs, kind)
    if kind == "phases":
        return phases.phases(runs)
    if kind == "accuracy":
        return accuracy.accuracy_charts(sources.accuracies)
    if kind == "advice":
        return [chart for document in sources.advices for chart in advice.advice_charts(document)]
    if kind == "misses":
        over_capacity = [table for table in sources.tables if CAPACITY in table.keys]
        return [chart for table in over_capacity for chart in misses.grid_charts(table)]
    if kind == "tiers":
        return tiers.tier_charts(sources)
    if kind == "fleet":
        return fleet.fleet_charts(sources)
    if kind == "curve":
        return load.curve_charts(sources)
    if kind in _OF_ALL:
        chart = _OF_ALL[kind](runs)
        return [chart] if chart else []
    return latency.cdfs(runs) if kind == "cdf" else latency.spectra(runs)


def _of_each(runs: Sequence[RunFolder], kind: str) -> list[Chart]:
    """A chart for each run that has what it takes, of which a page holds so many."""
    make, most = OF_ONE[kind]
    chosen = drawn(runs, most)
    charts = [chart for run, colour in chosen if (chart := make(run, colour)) is not None]
    if len(chosen) == len(runs):
        return charts
    return [replace(chart, note=f"{chart.note} {len(chosen)} of {len(runs)} runs are drawn.") for chart in charts]


def one_kind(sources: Sources, kind: str) -> list[Chart]:
    """The same. UsageError: nothing to draw."""
    found = charts_of(sources, kind)
    if not found:
        raise UsageError(f"--what {kind}: nothing to draw; it needs {KINDS[kind].needs}")
    return found
