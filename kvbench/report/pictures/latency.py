"""Charts of latency: distributions, percentile spectra, runs against their baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...metrics.percentiles import ALPHA
from .chart import F64, GREY, TAIL, Axis, Chart, Rule, Series, axis, duration
from .folders import RunFolder
from .labels import caution, drawn

TITLES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}
LONG_TAIL = 3
"""A distribution is drawn as far as p99 where its end is so many times later."""
WIDE_RATIO = 4
"""Ratios that lie so far apart are drawn on a logarithmic axis."""

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


@dataclass(frozen=True)
class Sample:
    """One latency of one run: values at shares of its n samples, both rising from 0 to 1."""

    run: RunFolder
    colour: int
    shares: F64
    values: F64
    n: int

    def at(self, shares: F64) -> F64:
        """Quantiles, linear between order statistics, in ms."""
        return np.asarray(np.interp(shares, self.shares, self.values))


def _samples(runs: Sequence[RunFolder], name: str) -> list[Sample]:
    """Of the runs that are drawn, those that have any."""
    found = []
    for run, colour in drawn(runs):
        if name == "itl":
            shares, values = run.itl
            n = int(run.figure(name, "n")) if values.size else 0
        else:
            values = run.finished(f"{name}_ms")
            shares, n = np.linspace(0, 1, values.size), values.size
        if n:
            found.append(Sample(run, colour, shares, values, n))
    return found


def cdfs(runs: Sequence[RunFolder]) -> list[Chart]:
    """How many sequences (of ITL: gaps between tokens) were done within a time."""
    return [chart for name in TITLES if (chart := _cdf(runs, name))]


def _cdf(runs: Sequence[RunFolder], name: str) -> Chart | None:
    samples = _samples(runs, name)
    if not samples:
        return None
    told = _percentiles(samples)
    last = max(float(s.values[-1]) for s in samples)
    shown = max(float(s.at(np.array([0.99]))[0]) for s in samples)
    cut = last > LONG_TAIL * shown  # a tail so long would make walls of the curves
    x = axis(name.upper(), [*(float(s.values[0]) for s in samples), shown if cut else last], "ms")
    notes = [
        f"Cut behind p99; the slowest took {duration(last)} (see the percentiles)." if cut else "",
        DOUBT.replace("*", "* in the table:") * _is_doubted(told[1]),
        caution(runs),
    ]
    return Chart(
        f"cdf-{name}",
        TITLES[name],
        x,
        Axis("gaps between tokens" if name == "itl" else "finished sequences", unit="%", low=0, high=100),
        tuple(_rising(s, x.high) for s in samples),
        *told,
        note=" ".join(filter(None, notes)),
        rules=tuple(promises(runs, name, "x")),
        legend=tuple((s.run.label, s.colour) for s in samples),
    )


def _rising(sample: Sample, until: float) -> Series:
    values = sample.at(_SHARES)
    inside = values <= until
    return Series(sample.run.label, values[inside], 100 * _SHARES[inside], sample.colour)


def spectra(runs: Sequence[RunFolder]) -> list[Chart]:
    """Latency over the percentile, far into the tail; thin where there are too few samples for an interval."""
    return [chart for name in TITLES if (chart := _spectrum(runs, name))]


def _spectrum(runs: Sequence[RunFolder], name: str) -> Chart | None:
    samples = _samples(runs, name)
    if not samples:
        return None
    lines = [line for sample in samples for line in _spectrum_lines(sample)]
    header, rows = _percentiles(samples)
    thin = any(line.style == "thin" for line in lines)
    said = "Thin, and * in the table: too few samples for a 95 % interval of that percentile. " if thin else ""
    reached = max(float(line.x[-1]) for line in lines)
    return Chart(
        f"spectrum-{name}",
        TITLES[name],
        Axis("percentile", "tail", low=0, high=next((p for p in TAIL if p >= reached), TAIL[-1])),
        axis(name.upper(), [float(v) for line in lines for v in line.y], "ms"),
        tuple(lines),
        header,
        rows,
        note=f"{said}{caution(runs)}".strip(),
        rules=tuple(promises(runs, name, "y")),
    )


def _spectrum_lines(sample: Sample) -> list[Series]:
    """Solid as far as percentiles have an interval, thin from there."""
    last = min(1 - 1 / max(sample.n, 2), TAIL[-1])
    sure = min(_surest(sample.n), last)
    shares = np.unique(np.concatenate((_SHARES[: np.searchsorted(_SHARES, last)], [sure, last])))
    found = sample.at(shares)
    solid, rest = shares <= sure, shares >= sure
    line = Series(sample.run.label, shares[solid], found[solid], sample.colour)
    if rest.sum() < 2:
        return [line]
    return [replace(line, name=""), Series(sample.run.label, shares[rest], found[rest], sample.colour, "thin")]


def _percentiles(samples: Sequence[Sample]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = [(s.run.label, f"{s.n:,}", *(_quantile(s, p) for p in _TOLD)) for s in samples]
    return ("run", "n", *(f"p{100 * p:g}" for p in _TOLD)), tuple(rows)


def _quantile(sample: Sample, p: float) -> str:
    return duration(float(np.interp(p, sample.shares, sample.values))) + "*" * (p > _surest(sample.n))


def _is_doubted(rows: Sequence[Sequence[str]]) -> bool:
    return any(cell.endswith("*") for row in rows for cell in row[1:])


def _surest(n: int) -> float:
    """The last percentile whose interval has an upper end: p ** n <= alpha / 2."""
    return float((ALPHA / 2) ** (1 / n))


def promises(runs: Sequence[RunFolder], name: str, across: str) -> list[Rule]:
    bounds = {float(run.setting(f"slo.{name}") or 0) for run in runs} - {0.0}
    return [Rule(bound, f"SLO {duration(bound)}", across) for bound in sorted(bounds)]


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
    found = [float(v) for line in values for v in line if v > 0 and math.isfinite(v)]
    table = tuple(
        (name, f"{base.figure(metric, p):,.4g}", *(f"{v[i]:.4f}" for v in values))
        for i, (name, metric, p) in enumerate(kept)
    )
    return Chart(
        "ratios",
        f"Divided by the baseline, {base.label}",
        axis("ratio", [0.95, 1.05, *found], log=max(found) > WIDE_RATIO * min(found)),
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
