"""Charts over the time of a run: requests by phase, blocks, hits, and what the batch was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .chart import F64, INK, Axis, Bar, Chart, Rule, Series, axis, duration, short
from .folders import RunFolder
from .labels import caution, drawn

BINS = 200
"""Stretches of time that a chart of steps averages over."""

MOST_ROWS = 40
"""Requests of a timeline."""

MOST_RUNS = {"timeline": 2, "occupancy": 3, "batch": 3}
"""Runs beside the baseline that have a chart of their own."""

LEAST_IN_BIN = 10
"""Requests in one stretch of the hit rate."""

PHASES = (("tokenise", 8), ("queue", 4), ("prefill", 0), ("decode", 2), ("stall", 1), ("preempted", 3), ("transfer", 6))
"""Name and colour of each part of a request's life, as it is drawn."""
_COLOUR = dict(PHASES)


def timeline(run: RunFolder) -> Chart | None:
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
    some = (
        f"{rows.size} of {run.status.size:,} sequences: those around the slowest first token. "
        if rows.size < run.status.size
        else ""
    )
    return Chart(
        "timeline",
        f"Where requests spent their time: {run.label}",
        Axis(f"time from {start / 1000:,.3f} s on", unit="ms", high=max(bar.end for bar in bars)),
        Axis("", low=0, high=rows.size),
        (),
        ("request", "arrival", *(name for name, _ in PHASES)),
        tuple(_told(run, int(i), name) for i, name in zip(rows, names, strict=True)),
        note=f"{some}Stalls and preemptions lie between tokens; each row draws them together, after its decode.",
        rows=names,
        bars=tuple(bars),
        legend=PHASES,
        wide=True,
    )


def _life(run: RunFolder, i: int, row: int, start: float) -> list[Bar]:
    """The parts of a sequence, in the order in which they begin, ms from `start`."""
    r = run.requests
    spent = {name: float(r[f"time_{name.replace('tokenise', 'tokenize')}_ms"][i]) for name, _ in PHASES}
    at, bars = float(r["arrival_ms"][i]) - start, []
    for name, _ in PHASES:
        if spent[name] > 0:
            bars.append(Bar(row, at, at + spent[name], _COLOUR[name]))
            at += spent[name]
    return bars


def _name(run: RunFolder, i: int) -> str:
    sample = int(run.requests["sample"][i])
    return f"{int(run.requests['request_id'][i])}" + (f".{sample}" if sample else "")


def _told(run: RunFolder, i: int, name: str) -> tuple[str, ...]:
    r = run.requests
    parts = (duration(float(r[f"time_{p.replace('tokenise', 'tokenize')}_ms"][i])) for p, _ in PHASES)
    return (name, duration(float(r["arrival_ms"][i])), *parts)


def hit_rates(runs: Sequence[RunFolder]) -> Chart | None:
    """Prompt tokens taken from the cache, by the time of first admission."""
    lines, rows = [], []
    for run, colour in drawn(runs):
        at, cached, prompt = _admissions(run)
        if at.size == 0 or prompt.sum() == 0:
            continue
        bins = max(min(40, at.size // LEAST_IN_BIN), 1)
        parts = [part for part in np.array_split(np.arange(at.size), bins) if part.size]
        times = np.array([at[part].mean() for part in parts]) / 1000
        shares = np.array([100 * cached[part].sum() / max(prompt[part].sum(), 1) for part in parts])
        lines.append(Series(run.label, times, shares, colour, "joined" if bins < 8 else "solid"))
        rows.append(
            (run.label, f"{100 * cached.sum() / prompt.sum():.2f} %", f"{shares.min():.2f} %", f"{shares.max():.2f} %")
        )
    if not lines:
        return None
    return Chart(
        "hits",
        "Hit rate over time",
        axis("time (s)", [x for line in lines for x in (0.0, *line.x)], log=False),
        Axis("prompt tokens from cache", unit="%", high=100),
        tuple(lines),
        ("run", "whole run", "lowest stretch", "highest stretch"),
        tuple(rows),
        note=f"Stretches of equally many admissions, {LEAST_IN_BIN} at least. {caution(runs)}".strip(),
    )


def _admissions(run: RunFolder) -> tuple[F64, F64, F64]:
    """(admission ms, cached tokens, prompt tokens) of sequences that ran, in order of admission."""
    r = run.requests
    at = r["arrival_ms"] + r["queue_ms"]
    order = np.argsort(at, kind="stable")
    order = order[np.isfinite(at[order])]
    return at[order], r["cached_tokens"][order], r["prompt_tokens"][order]


def occupancy(run: RunFolder) -> Chart | None:
    """Blocks that running sequences refer to, and blocks that only the prefix cache holds."""
    if run.steps is None or run.steps["start_ms"].size == 0:
        return None
    edges = _edges(run)
    used, cached = (_means(run, name, edges, name == "cached_blocks") for name in ("used_blocks", "cached_blocks"))
    blocks = int(run.setting("cache.blocks") or 0)
    time = (edges[1:] + edges[:-1]) / 2000
    series = (
        Series("in use", time, used, 0, "solid", np.zeros_like(used)),
        Series("cached only", time, used + cached, 5, "solid", used),
    )
    near = blocks and (used + cached).max() > 0.4 * blocks
    return Chart(
        "occupancy",
        f"KV blocks over time: {run.label}",
        axis("time (s)", [0, *time], log=False),
        axis("blocks", [*(used + cached), *([blocks] if near else [])], log=False),
        series,
        ("blocks", "mean", "highest mean of a stretch", "share of all"),
        tuple(_row(name, values, blocks) for name, values in (("in use", used), ("cached only", cached))),
        note=_averaged(run) + ("" if near or not blocks else f" The cache has {blocks:,} blocks."),
        rules=(Rule(blocks, f"{short(blocks)} blocks"),) if near else (),
    )


def _row(name: str, values: F64, blocks: int) -> tuple[str, ...]:
    share = f"{100 * values.max() / blocks:.2f} %" if blocks else "-"
    return name, f"{values.mean():,.1f}", f"{values.max():,.1f}", share


def batches(run: RunFolder) -> Chart | None:
    """Sequences that a step computes, by what it does for them, and those that wait."""
    if run.steps is None or run.steps["start_ms"].size == 0:
        return None
    edges = _edges(run)
    decode, prefill, waiting = (_means(run, name, edges) for name in ("decode_seqs", "prefill_seqs", "waiting"))
    time = (edges[1:] + edges[:-1]) / 2000
    lines = [
        Series("decode", time, decode, 2, "solid", np.zeros_like(decode)),
        Series("prefill", time, decode + prefill, 0, "solid", decode),
    ]
    if waiting.max() > 0:
        lines.append(Series("waiting", time, waiting, INK, "dash"))
    return Chart(
        "batch",
        f"Batch over time: {run.label}",
        axis("time (s)", [0, *time], log=False),
        axis("sequences", [*(decode + prefill), *waiting], log=False),
        tuple(lines),
        ("sequences", "mean", "highest mean of a stretch"),
        tuple(_row(n, v, 0)[:3] for n, v in (("decode", decode), ("prefill", prefill), ("waiting", waiting))),
        note=_averaged(run),
    )


def _edges(run: RunFolder) -> F64:
    assert run.steps is not None
    ends = run.steps["start_ms"] + run.steps["duration_ms"]
    return np.linspace(0, float(ends.max()), min(BINS, max(run.steps["start_ms"].size, 1)) + 1)


def _means(run: RunFolder, name: str, edges: F64, holds: bool = False) -> F64:
    """Time-weighted means between edges of a column: it counts while its step runs, or until the next one (holds)."""
    assert run.steps is not None
    starts, values = run.steps["start_ms"], run.steps[name]
    ends = np.append(starts[1:], edges[-1]) if holds else starts + run.steps["duration_ms"]
    points = np.stack([starts, np.maximum(ends, starts)], axis=1).ravel()
    areas = np.stack([np.zeros_like(values), values * np.maximum(ends - starts, 0)], axis=1).ravel()
    whole = np.interp(edges, points, np.cumsum(areas))
    whole[edges < points[0]] = 0.0
    return np.diff(whole) / np.diff(edges)


def _averaged(run: RunFolder) -> str:
    assert run.steps is not None
    count = run.steps["start_ms"].size
    return f"{count:,} steps as time-weighted means of {min(BINS, count)} equal stretches; nothing runs between steps."


def of_each(runs: Sequence[RunFolder], kind: str) -> list[Chart]:
    """A chart for each run that has what it takes, of which a page holds so many."""
    make = {"timeline": timeline, "occupancy": occupancy, "batch": batches}[kind]
    chosen = [run for run, _ in drawn(runs, MOST_RUNS[kind])]
    charts = [chart for run in chosen if (chart := make(run)) is not None]
    if len(chosen) == len(runs):
        return charts
    return [replace(chart, note=f"{chart.note} One of {len(chosen)} runs drawn of {len(runs)}.") for chart in charts]
