"""Comparisons and a gate's report as text of at most 100 columns, and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..metrics.catalogue import LOWER
from ..report.csv_files import csv_number
from ..report.grid import csv_line
from ..report.record import SCHEMA
from ..report.table import grid, note
from .judge import PASSED, UNJUDGED, Outcome, Report
from .metrics import MAIN, is_latency
from .numbers import both, ratio
from .pairing import Group
from .runs import Run
from .verdict import FEWEST_PAIRS, MODELLED, NOT_MEASURED, Comparison, geometric_mean

MODELLED_NOTE = "Latencies in ms. clock modelled: values are exact, and any difference is a change. "
MEASURED_NOTE = "Latencies in ms. clock measured: wall time; the verdict is that of the interval. "
RATIO_NOTE = "ratio: candidate / baseline, the geometric mean over the pairs; 95 %: bootstrap over the pairs"

MOST_NAMED = 24
"""Judged metrics that the gate's table shows although they passed."""


def with_mean(compared: Sequence[Comparison], clock: str) -> list[Comparison]:
    """Those that a run has, and the geometric mean of the ratios of their latencies below them."""
    there = [c for c in compared if c.exists]
    mean = geometric_mean([c for c in there if is_latency(c.metric) and c.direction == LOWER], clock)
    return [*there, *([] if mean is None else [mean])]


def comparison_table(group: Group, compared: Sequence[Comparison], names: tuple[str, str]) -> str:
    """One group: values of both sides, ratio, interval, verdict. names: of baseline and candidate."""
    first, second = group.pairs[0]
    rows = [[name, *cells] for name, _, *cells in map(comparison_cells, compared)]  # without the unit, for the width
    header = ["metric", "baseline", "candidate", "ratio", "95 %", "verdict"]
    presets = first["preset"] if first["preset"] == second["preset"] else f"{first['preset']} and {second['preset']}"
    head = [note(f"{title:<9}  {name}") for title, name in zip(header[1:3], names, strict=True)]
    head.append(note(f"{group.name}; {presets}; cache {first['cache_state']}; {_pairs(group)}"))
    text = note((MODELLED_NOTE if group.clock == MODELLED else MEASURED_NOTE) + RATIO_NOTE + _needed(group))
    return "\n".join(head) + f"\n\n{grid(header, rows)}\n\n{text}"


def _pairs(group: Group) -> str:
    return "1 pair" if len(group.pairs) == 1 else f"means of {len(group.pairs)} pairs"


def _needed(group: Group) -> str:
    """How many pairs an interval takes, where there are too few."""
    there = len(group.pairs)
    return "." if there >= FEWEST_PAIRS else f", which takes {FEWEST_PAIRS} of them and has {there}: --seeds."


def comparison_cells(c: Comparison) -> list[str]:
    """Metric, unit, baseline, candidate, ratio, interval, verdict."""
    return [c.metric, _unit(c.unit), *both(c.baseline, c.candidate), ratio(c.ratio), _interval(c), c.verdict]


def _interval(c: Comparison) -> str:
    if c.low is not None:
        return f"{ratio(c.low)} .. {ratio(c.high)}"
    return f"needs {FEWEST_PAIRS} pairs" if c.ratio is not None and len(c.pairs) < FEWEST_PAIRS else "-"


def comparison_document(group: Group, compared: Sequence[Comparison], names: tuple[str, str]) -> dict[str, Any]:
    """What `--json` prints of one group."""
    return {
        "schema": SCHEMA,
        "group": group.name,
        "clock": group.clock,
        "baseline": names[0],
        "candidate": names[1],
        "pairs": len(group.pairs),
        "pairs_needed": FEWEST_PAIRS,
        "metrics": [
            {
                "metric": c.metric,
                "unit": c.unit,
                "baseline": c.baseline,
                "candidate": c.candidate,
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "verdict": c.verdict,
            }
            for c in compared
        ],
    }


def comparison_csv(compared: Sequence[Comparison]) -> Iterator[str]:
    """A row for each metric: means of the sides over the pairs, ratio, its interval, verdict."""
    yield csv_line(["metric", "unit", "pairs", "baseline", "candidate", "ratio", "low", "high", "verdict"])
    for c in compared:
        numbers = map(csv_number, (c.baseline, c.candidate, c.ratio, c.low, c.high))
        yield csv_line([c.metric, c.unit, str(len(c.pairs)), *numbers, c.verdict])


def report_table(report: Report) -> str:
    """What was judged (all of it, where it is little), what changed beside it, and the verdict."""
    shown = shown_outcomes(report)
    if not shown:
        return note(report.headline)
    several = len({one.group for one in report.outcomes}) > 1
    rows = [[*([_short(one.group)] if several else []), *_outcome_cells(one)] for one in shown]
    header = [*(["run"] if several else []), "metric", "baseline", "candidate", "ratio", "limit", "outcome"]
    return f"{grid(header, rows)}\n\n{note(report.headline)}"


def shown_outcomes(report: Report) -> list[Outcome]:
    """Judged ones that did not simply pass, or all where they are few; then main metrics that changed, not judged."""
    judged = report.judged
    if len(judged) > MOST_NAMED:
        judged = [one for one in judged if one.outcome != PASSED]
    return judged + [one for one in report.of(UNJUDGED) if one.changed and one.compared.metric in MAIN]


def _outcome_cells(one: Outcome) -> list[str]:
    c = one.compared
    outcome = f"{c.verdict}, {UNJUDGED}" if one.outcome == UNJUDGED else one.outcome
    return [c.metric, *both(c.baseline, c.candidate), ratio(c.ratio), limit(one), outcome]


def limit(one: Outcome) -> str:
    return "-" if one.limit is None else f"{100 * one.limit:g} %"


def report_document(report: Report) -> dict[str, Any]:
    """Every outcome, for a program."""
    outcomes = [
        {
            "run": one.group,
            "metric": one.compared.metric,
            "unit": one.compared.unit,
            "baseline": one.compared.baseline,
            "candidate": one.compared.candidate,
            "ratio": one.compared.ratio,
            "limit": one.limit,
            "outcome": one.outcome,
            "change": one.compared.verdict if one.compared.exists else NOT_MEASURED,
            "reason": one.reason,
        }
        for one in report.outcomes
    ]
    return {
        "exit_code": report.exit_code,
        "verdict": report.headline,
        "reason": report.refusal,
        "clock": report.clock,
        "outcomes": outcomes,
    }


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
                lines.append(f"{name}: {metric} {' -> '.join(both(a, b))}")
    return lines


def baseline_key(run: Run) -> tuple[str, str, str]:
    """What tells the runs of a baseline apart."""
    return run["run"], run["preset"], run["seed"]


def _unit(unit: str) -> str:
    return unit.removeprefix("share of ") if len(unit) > 12 else unit


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else "..." + text[3 - most :]
