"""Predictions beside measurements: what a comparison holds, and as text of at most 100 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .table import WIDTH, grid, note

METRICS = ("ttft", "tpot", "e2el")
STATISTICS = ("mean", "p50", "p90", "p99")
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
WORST = 5
BETWEEN = 2
"""Columns between those of a table, and the least beside its titles."""


@dataclass(frozen=True)
class Figure:
    """One number of one case, in ms."""

    metric: str
    statistic: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Case:
    """A deployment or run, measured and predicted.

    load        "1024+128, 16 in flight", "300 requests"
    client      protocol that was assumed; "" where the arrivals are known
    step_times  where they come from, one line
    doubt       why the measurement may not be what it says
    notes       one line each on the prediction: short of memory, beyond the tables, constants chosen on these rows
    """

    name: str
    kind: str
    source: str
    engine: str
    model: str
    device: str
    dtype: str
    tp: int
    step_times: str
    figures: tuple[Figure, ...]
    load: str = ""
    client: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    concurrency: int = 0
    kv_blocks: int = 0
    doubt: str = ""
    notes: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Cases of one server and model."""
        return f"{self.engine}, {self.model}, {self.device}, {self.dtype}"

    def error(self, metric: str, statistic: str = "mean") -> float:
        """NaN: that figure was not measured."""
        return next((f.error for f in self.figures if (f.metric, f.statistic) == (metric, statistic)), float("nan"))


@dataclass(frozen=True)
class Scores:
    """All cases in the order of their files.

    not_scored  (what, why)
    beside      figures of others on these very cases, a line each
    """

    folder: str
    cases: tuple[Case, ...]
    not_scored: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Spread:
    """Errors of one metric over some cases, in per cent: bias is the median with its sign."""

    cases: int
    median: float
    p90: float
    bias: float
    worst: float


def spread(cases: Iterable[Case], metric: str, statistic: str = "mean") -> Spread | None:
    """None: nobody measured it."""
    found = np.array([e for case in cases if np.isfinite(e := case.error(metric, statistic))]) * 100.0
    if found.size == 0:
        return None
    size = np.abs(found)
    median, p90 = np.percentile(size, [50.0, 90.0])
    return Spread(found.size, float(median), float(p90), float(np.median(found)), float(size.max()))


def fidelity_table(scores: Scores) -> str:
    """Every case, then groups, worst cases, the summary, and what was not scored."""
    deployments = [case for case in scores.cases if case.kind == "deployment"]
    others = [case for case in scores.cases if case.kind != "deployment"]
    tables = [
        _deployments(group, [case for case in deployments if case.group == group])
        for group in dict.fromkeys(case.group for case in deployments)
    ]
    parts = [*tables, *map(_run, others), _groups(scores.cases), _worst(scores.cases)]
    parts += [_summary(scores), _not_scored(scores.not_scored)]
    return "\n\n".join(part for part in parts if part)


def _deployments(group: str, cases: Sequence[Case]) -> str:
    rows = [
        [
            f"{case.tp}",
            case.load,
            *(text for metric in ("ttft", "tpot") for text in _cells(case, metric)),
            f"{case.kv_blocks:,}",
            ("?" if case.doubt else "") + ("m" if any(n.startswith("short of memory") for n in case.notes) else ""),
        ]
        for case in cases
    ]
    header = ["tp", "load", "TTFT", "predicted", "%", "TPOT", "predicted", "%", "blocks", ""]
    clients = ", ".join(dict.fromkeys(case.client for case in cases))
    said = f"{group}: means in ms; client assumed: {clients}. ?: doubtful, m: short of KV memory"
    return f"{note(said)}\n\n{grid(header, rows)}"


def _cells(case: Case, metric: str) -> list[str]:
    figure = next((f for f in case.figures if (f.metric, f.statistic) == (metric, "mean")), None)
    if figure is None:
        return ["-", "-", "-"]
    digits = 1 if metric == "ttft" else 2
    values = f"{figure.measured:,.{digits}f}", f"{figure.predicted:,.{digits}f}"
    return [*values, f"{100 * figure.error:+.1f}"]


def _run(case: Case) -> str:
    by_name = {(f.metric, f.statistic): f for f in case.figures}
    rows = []
    for metric in METRICS:
        figures = [by_name[metric, statistic] for statistic in STATISTICS if (metric, statistic) in by_name]
        rows += [
            [TITLES[metric] if i == 0 else "", f.statistic, f"{f.measured:,.2f}", f"{f.predicted:,.2f}",
             f"{100 * f.error:+.2f}"]
            for i, f in enumerate(figures)
        ]  # fmt: skip
    head = note(f"{case.name}: {case.group}, tp {case.tp}; {case.load}; step times {case.step_times}")
    told = "".join(f"\n{note(text)}" for text in (case.doubt, *case.notes) if text)
    return f"{head}\n\n{grid(['ms', '', 'measured', 'predicted', 'error %'], rows, _NAMES)}{told}"


_GROUPS: tuple[Callable[[Case], str], ...] = (
    lambda case: case.group,
    lambda case: f"tp {case.tp}",
    lambda case: f"{case.prompt_tokens:,} in" if case.prompt_tokens else "",
    lambda case: f"{case.output_tokens:,} out" if case.output_tokens else "",
    lambda case: _load_class(case.concurrency),
)
"""What a case has in common with others; "": nothing."""


def _groups(cases: Sequence[Case]) -> str:
    """Bias by what cases have in common, deployments and runs apart."""
    rows = []
    for of in _GROUPS:
        names = list(dict.fromkeys(name for case in cases if (name := of(case))))
        for name in names if of is _GROUPS[0] else sorted(names, key=_natural):
            alike = [case for case in cases if of(case) == name]
            rows.append([name, *_spreads(alike)])
    said = "%: the median error with its sign; median and p90 of its size"
    return f"{_named_grid(['group', *_SPREADS], rows, 0)}\n\n{note(said)}" if cases else ""


_SPREADS = ("n", "TTFT %", "median", "p90", "TPOT %", "median", "p90")
_NAMES = ("left", "left", *["right"] * 7)


def _named_grid(header: Sequence[str], rows: Sequence[Sequence[str]], named: int, align: Sequence[str] = ()) -> str:
    """A table whose column `named` has what the others leave of the width: names are whole where they fit."""
    columns = list(zip(header, *rows, strict=True))
    others = [max(len(title) + BETWEEN, *map(len, cells)) + BETWEEN for title, *cells in columns]
    room = WIDTH - sum(others) + others[named]
    cut = [[_cut(cell, room) if i == named else cell for i, cell in enumerate(row)] for row in rows]
    return grid(header, cut, align)


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 3]}..."


def _spreads(cases: Sequence[Case]) -> list[str]:
    cells = [str(len(cases))]
    for metric in ("ttft", "tpot"):
        found = spread(cases, metric)
        cells += ["-"] * 3 if found is None else [f"{found.bias:+.1f}", f"{found.median:.1f}", f"{found.p90:.1f}"]
    return cells


def _load_class(concurrency: int) -> str:
    bounds = (0, 8, 32, 128)
    if not concurrency:
        return ""
    low = max(b for b in bounds if b < concurrency)
    above = [b for b in bounds if b >= concurrency]
    return f"{low + 1}-{above[0]} in flight" if above else f"over {low} in flight"


def _natural(name: str) -> tuple[float, str]:
    digits = "".join(c for c in name.split(" ")[0 if name[0].isdigit() else 1] if c.isdigit())
    return (float(digits or 0) + (1e9 if name.startswith("over") else 0), name)


def _worst(cases: Sequence[Case]) -> str:
    rows = []
    for metric in ("ttft", "tpot"):
        ranked = sorted((c for c in cases if np.isfinite(c.error(metric))), key=lambda c: -abs(c.error(metric)))
        rows += [
            [TITLES[metric] if i == 0 else "", f"{100 * case.error(metric):+.1f}", _about(case)]
            for i, case in enumerate(ranked[:WORST])
        ]
    return _named_grid(["worst", "%", ""], rows, 2, ("left", "right", "left")) if rows else ""


def _about(case: Case) -> str:
    doubt = "? " if case.doubt else ""
    return f"{doubt}{case.model} {case.engine.split(' ')[0]} tp {case.tp}, {case.load}"


def _summary(scores: Scores) -> str:
    rows = []
    for kind in dict.fromkeys(case.kind for case in scores.cases):
        cases = [case for case in scores.cases if case.kind == kind]
        statistics = ("mean",) if kind == "deployment" else STATISTICS
        for metric in METRICS:
            for statistic in statistics:
                found = spread(cases, metric, statistic)
                if found is not None:
                    values = (f"{v:.1f}" for v in (found.median, found.p90, found.worst))
                    rows.append([kind, TITLES[metric], statistic, str(found.cases), *values, f"{found.bias:+.1f}"])
    header = ["|error| %", "", "", "n", "median", "p90", "worst", "bias"]
    table = grid(header, rows, ("left", "left", "left", *["right"] * 5)) if rows else ""
    sources = Counter(case.step_times for case in scores.cases)
    lines = [f"Step times of {count}: {source}" for source, count in sources.items()]
    lines += [*scores.beside, *scores.notes]
    return "\n".join([f"{table}\n", *map(note, lines)])


def _not_scored(rows: Sequence[tuple[str, str]]) -> str:
    """A line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for what, why in rows:
        by_reason.setdefault(why, []).append(what)
    lines = [f"{', '.join(names[:2])}{_more(len(names) - 2)}: {why}" for why, names in by_reason.items()]
    return "\n".join(["not scored:", *map(note, lines)]) if rows else ""


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
