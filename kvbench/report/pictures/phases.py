"""Where the time of requests went: means by phase, of all and of the slowest, and single requests as rows of bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .chart import F64, PHASE, Axis, Bar, Chart, axis, duration
from .folders import RunFolder
from .labels import caution, drawn

PHASES = tuple(
    (name, PHASE + i)
    for i, name in enumerate(("tokenise", "queue", "prefill", "decode", "stall", "preempted", "transfer"))
)
"""Name and colour of each part of a request's life, as it is drawn."""
COLOUR = dict(PHASES)

GROUPS = (("all", 1.0, 1), ("slowest 10 %", 0.1, 20), ("slowest 1 %", 0.01, 200))
"""Name, share of the sequences, and fewest sequences of a run that has such a group."""

MOST_RUNS = 2
"""Runs beside the baseline whose means are drawn."""

MOST_ROWS = 40
"""Requests of a timeline."""


def phases(runs: Sequence[RunFolder]) -> list[Chart]:
    """Mean times by phase up to the first token, then of whole requests; a chart for each run, all on one scale."""
    shown = drawn(runs, MOST_RUNS)
    left_out = f"{len(shown)} of {len(runs)} runs are drawn. " * (len(shown) < len(runs))
    warning = caution([run for run, _ in shown])
    first = [
        _means(run, colour, ("phases-ttft", "Time to first token by phase"), _to_first_token(run), "ttft_ms")
        for run, colour in shown
    ]
    whole = [
        _means(run, colour, ("phases-e2el", "End-to-end latency by phase"), _whole(run), "e2el_ms")
        for run, colour in shown
    ]
    notes = f"Rest: tokenising, stalls, transfers. {left_out}{warning}", left_out + warning
    return [*_on_one_scale(first, notes[0]), *_on_one_scale(whole, notes[1])]


def _on_one_scale(charts: Sequence[Chart | None], note: str) -> list[Chart]:
    found = [chart for chart in charts if chart is not None]
    most = max((chart.x.high for chart in found), default=0.0)
    return [replace(chart, x=replace(chart.x, high=most), note=note.strip()) for chart in found]


def _to_first_token(run: RunFolder) -> dict[str, F64]:
    queue, prefill = _spent(run, "queue"), _spent(run, "prefill")
    return {"rest": run.requests["ttft_ms"] - queue - prefill, "queue": queue, "prefill": prefill}


def _whole(run: RunFolder) -> dict[str, F64]:
    return {name: _spent(run, name) for name, _ in PHASES}


def _means(run: RunFolder, colour: int, said: tuple[str, str], parts: dict[str, F64], latency: str) -> Chart | None:
    """Rows: groups of the sequences whose latency (a column) was longest. said: key and title."""
    names: list[str] = []
    bars: list[Bar] = []
    table = []
    for group, share, fewest in GROUPS:
        chosen = _slowest(run.requests[latency], parts, share, fewest)
        if not chosen.size:
            continue
        means = {part: float(values[chosen].mean()) for part, values in parts.items()}
        edges = np.concatenate(([0.0], np.cumsum(list(means.values())))).tolist()
        stretches = zip(pairwise(edges), means, strict=True)
        bars += [Bar(len(names), a, b, _colour(part)) for (a, b), part in stretches if b > a]
        names.append(group)
        table.append((group, f"{chosen.size:,}", *map(duration, means.values()), duration(edges[-1])))
    if not names:
        return None
    seen = {bar.colour for bar in bars}
    return Chart(
        *said,
        axis("mean", [0.0, *(bar.end for bar in bars)], "ms", zero=True),
        Axis("", low=0, high=len(names)),
        (),
        ("sequences", "n", *parts, "sum"),
        tuple(table),
        rows=tuple(names),
        bars=tuple(bars),
        legend=tuple((part, _colour(part)) for part in parts if _colour(part) in seen),
        run=(run.label, colour),
    )


def _slowest(latency: F64, parts: dict[str, F64], share: float, fewest: int) -> NDArray[np.int64]:
    """Rows of the given share that took longest; none where there are too few."""
    known = np.flatnonzero(np.isfinite(latency) & np.all([np.isfinite(v) for v in parts.values()], axis=0))
    if known.size < fewest:
        return known[:0]
    return known[np.argsort(-latency[known], kind="stable")[: max(round(share * known.size), 1)]]


def _colour(part: str) -> int:
    return COLOUR.get(part, COLOUR["tokenise"])


def _spent(run: RunFolder, phase: str) -> F64:
    return run.requests[f"time_{phase.replace('tokenise', 'tokenize')}_ms"]


def timeline(run: RunFolder, colour: int) -> Chart | None:
    """Consecutive requests by phase, around the one whose first token took longest."""
    r = run.requests
    ended = np.flatnonzero(np.isfinite(r["e2el_ms"]) & np.isfinite(r["time_queue_ms"]))
    if ended.size == 0:
        return None
    order = ended[np.argsort(r["arrival_ms"][ended], kind="stable")]
    middle = int(np.argmax(np.nan_to_num(r["ttft_ms"][order], nan=-1.0)))
    first = min(max(middle - MOST_ROWS // 2, 0), max(order.size - MOST_ROWS, 0))
    rows = order[first : first + MOST_ROWS]
    start = float(r["arrival_ms"][rows].min())
    bars = [bar for at, i in enumerate(rows) for bar in _life(run, int(i), at, start)]
    names = tuple(_name(run, int(i)) for i in rows)
    few = rows.size < run.status.size
    return Chart(
        "timeline",
        "Requests around the slowest first token" if few else "Requests by phase",
        axis(f"time from {start / 1000:,.3f} s on", [0.0, *(bar.end for bar in bars)], "ms", zero=True, steps=10),
        Axis("", low=0, high=rows.size),
        (),
        ("request", "arrival", *(name for name, _ in PHASES)),
        tuple(_told(run, int(i), name) for i, name in zip(rows, names, strict=True)),
        note=f"{rows.size} of {run.status.size:,} sequences. " * few
        + "Stalls and preemptions lie between tokens; each row draws them together, after its decode.",
        rows=names,
        bars=tuple(bars),
        legend=tuple(entry for entry in PHASES if entry[1] in {bar.colour for bar in bars}),
        wide=True,
        run=(run.label, colour),
    )


def _life(run: RunFolder, i: int, row: int, start: float) -> list[Bar]:
    """The parts of a sequence, in the order in which they begin, ms from `start`."""
    at, bars = float(run.requests["arrival_ms"][i]) - start, []
    for name, colour in PHASES:
        spent = float(_spent(run, name)[i])
        if spent > 0:
            bars.append(Bar(row, at, at + spent, colour))
            at += spent
    return bars


def _name(run: RunFolder, i: int) -> str:
    sample = int(run.requests["sample"][i])
    return f"{int(run.requests['request_id'][i])}" + (f".{sample}" if sample else "")


def _told(run: RunFolder, i: int, name: str) -> tuple[str, ...]:
    parts = (duration(float(_spent(run, phase)[i])) for phase, _ in PHASES)
    return (name, duration(float(run.requests["arrival_ms"][i])), *parts)
