"""All charts of all sources, in the order of a page: sections of charts, by the names that `kvbench plot` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from . import latency, misses, over_time
from .chart import Chart
from .folders import RunFolder, Sources, read_sources
from .labels import named


@dataclass(frozen=True)
class Kind:
    """What --what names. title: of a section; needs: what a folder lacks when there is nothing to draw."""

    title: str
    needs: str


KINDS = {
    "ratios": Kind("Against the baseline", "two runs"),
    "cdf": Kind("Latency distributions", "finished sequences"),
    "spectrum": Kind("Percentile spectra", "finished sequences"),
    "curve": Kind("Throughput and latency", "two runs at least, a grid or a sweep"),
    "misses": Kind("Miss ratio", "a grid.csv of --grid cache.blocks=..."),
    "timeline": Kind("Requests by phase", "requests that ended, with their times"),
    "occupancy": Kind("KV blocks", "steps.csv: run with --steps"),
    "hits": Kind("Hit rate", "requests that were admitted"),
    "batch": Kind("Batches", "steps.csv: run with --steps"),
}


def read_named(paths: Sequence[Path], baseline: Path | None) -> Sources:
    """The sources, runs labelled. Of several folders the first is the baseline unless another is named."""
    found = read_sources(paths)
    several = len(found.runs) > 1 and len(paths) > 1 and (paths[0] / "run.json").exists()
    found.runs = named(found.runs, baseline or (paths[0] if several else None))
    return found


def charts_of(sources: Sources, kind: str) -> list[Chart]:
    """The charts of one kind; none where the sources do not hold what it needs."""
    runs: list[RunFolder] = sources.runs
    if kind in ("timeline", "occupancy", "batch"):
        return over_time.of_each(runs, kind)
    if kind == "misses":
        return [chart for table in sources.tables if (chart := misses.miss_chart(table))]
    if kind == "curve":
        return latency.curve_charts(sources)
    if kind in ("ratios", "hits"):
        chart = latency.ratios(runs) if kind == "ratios" else over_time.hit_rates(runs)
        return [chart] if chart else []
    return latency.cdfs(runs) if kind == "cdf" else latency.spectra(runs)


def one_kind(sources: Sources, kind: str) -> list[Chart]:
    """The same. UsageError: nothing to draw."""
    found = charts_of(sources, kind)
    if not found:
        raise UsageError(f"--what {kind}: nothing to draw; it needs {KINDS[kind].needs}")
    return found
