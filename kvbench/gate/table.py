"""Comparisons and a gate's report as text of at most 100 columns, and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..report.record import SCHEMA
from ..report.table import grid, note
from .judge import PASSED, Report
from .metrics import LOWER, is_latency
from .pairing import Group
from .runs import Run
from .verdict import FEWEST_PAIRS, MODELLED, Comparison, geometric_mean

MODELLED_NOTE = (
    "Latencies in ms. clock modelled: values are exact, and any difference is a change. ratio: second / first, the "
    f"geometric mean over the seeds; 95 %: bootstrap over the pairs of seeds, from {FEWEST_PAIRS} of them on."
)
MEASURED_NOTE = (
    "Latencies in ms. clock measured: wall time. ratio: second / first, the geometric mean over the pairs; 95 %: "
    f"bootstrap over the pairs, from {FEWEST_PAIRS} of them on; the verdict is that of the interval."
)


def with_mean(compared: Sequence[Comparison], clock: str) -> list[Comparison]:
    """The comparisons, and the geometric mean of the ratios of their latencies below them."""
    mean = geometric_mean([c for c in compared if is_latency(c.metric) and c.direction == LOWER], clock)
    return [*compared, *([] if mean is None else [mean])]


def comparison_table(group: Group, compared: Sequence[Comparison], names: tuple[str, str]) -> str:
    """One group: values of both sides, ratio, interval, verdict."""
    first, second = group.pairs[0]
    rows = [[name, *cells] for name, _, *cells in map(comparison_cells, compared)]  # without the unit, for the width
    header = ["metric", *map(_short, names), "ratio", "95 %", "verdict"]
    pairs = "" if len(group.pairs) == 1 else f"; means of {len(group.pairs)} pairs"
    presets = first["preset"] if first["preset"] == second["preset"] else f"{first['preset']} and {second['preset']}"
    text = note(MODELLED_NOTE if group.clock == MODELLED else MEASURED_NOTE)
    head = note(f"{group.name}; {presets}; cache {first['cache_state']}{pairs}")
    return f"{head}\n\n{grid(header, rows)}\n\n{text}"


def comparison_cells(c: Comparison) -> list[str]:
    interval = "-" if c.low is None else f"{c.low:.4f} .. {c.high:.4f}"
    ratio = "-" if c.ratio is None else f"{c.ratio:.4f}"
    return [c.metric, _unit(c.unit), _value(c.first), _value(c.second), ratio, interval, c.verdict]


def comparison_document(group: Group, compared: Sequence[Comparison], names: tuple[str, str]) -> dict[str, Any]:
    """What `--json` prints of one group."""
    return {
        "schema": SCHEMA,
        "group": group.name,
        "clock": group.clock,
        "first": names[0],
        "second": names[1],
        "pairs": len(group.pairs),
        "metrics": [
            {
                "metric": c.metric,
                "unit": c.unit,
                "first": c.first,
                "second": c.second,
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "verdict": c.verdict,
            }
            for c in compared
        ],
    }


def report_table(report: Report) -> str:
    """What did not simply pass, and the verdict."""
    told = [one for one in report.outcomes if one.outcome != PASSED]
    if not told:
        return report.headline
    several = len({one.group for one in report.outcomes}) > 1
    rows = [
        [
            *([_short(one.group, 24)] if several else []),
            one.compared.metric,
            _value(one.compared.first),
            _value(one.compared.second),
            "-" if one.compared.ratio is None else f"{one.compared.ratio:.4f}",
            f"{100 * one.limit:g} %",
            one.outcome,
        ]
        for one in told
    ]
    header = [*(["run"] if several else []), "metric", "baseline", "candidate", "ratio", "limit", "outcome"]
    return f"{grid(header, rows)}\n\n{report.headline}"


def report_document(report: Report) -> dict[str, Any]:
    """Every outcome, for a program."""
    outcomes = [
        {
            "run": one.group,
            "metric": one.compared.metric,
            "baseline": one.compared.first,
            "candidate": one.compared.second,
            "ratio": one.compared.ratio,
            "limit": one.limit,
            "outcome": one.outcome,
        }
        for one in report.outcomes
    ]
    return {"exit_code": report.exit_code, "verdict": report.headline, "clock": report.clock, "outcomes": outcomes}


def update_lines(baseline: Sequence[Run], merged: Sequence[Run]) -> list[str]:
    """What an update changes, a line each."""
    old = {baseline_key(run): run for run in baseline}
    lines = []
    for run in merged:
        before = old.get(baseline_key(run))
        name = " / ".join(baseline_key(run)[:2]) + f", seed {run['seed']}"
        if before is None:
            lines.append(f"{name}: new")
            continue
        lines += [
            f"{name}: {column} {before[column][:16]} -> {run[column][:16]}"
            for column in run.identity
            if column != "machine" and run[column] != before[column]
        ]
        for metric in dict.fromkeys((*before.values, *run.values)):
            a, b = before.values.get(metric), run.values.get(metric)
            if a != b:
                lines.append(f"{name}: {metric} {_value(a)} -> {_value(b)}")
    return lines


def baseline_key(run: Run) -> tuple[str, str, str]:
    """What tells the runs of a baseline apart."""
    return run["run"], run["preset"], run["seed"]


def _unit(unit: str) -> str:
    return unit.removeprefix("share of ") if len(unit) > 12 else unit


def _short(text: str, most: int = 14) -> str:
    return text if len(text) <= most else "..." + text[3 - most :]


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) < 1:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 and value == int(value) else f"{value:,.2f}"
