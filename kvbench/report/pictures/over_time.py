"""Charts over the time of a run: blocks, hits, and what the batch was made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .chart import F64, INK, PHASE, Axis, Chart, Rule, Series, axis, short
from .folders import RunFolder
from .labels import caution, drawn
from .phases import COLOUR

BINS = 200
"""Stretches of time that a chart of steps averages over."""

LEAST_IN_BIN = 10
"""Requests in one stretch of the hit rate."""


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
        axis("time (s)", [x for line in lines for x in (0.0, *line.x)], zero=True, steps=10),
        Axis("prompt tokens from cache", unit="%", high=100),
        tuple(lines),
        ("run", "whole run", "lowest stretch", "highest stretch"),
        tuple(rows),
        note=f"Stretches of equally many admissions, {LEAST_IN_BIN} at least. {caution(runs)}".strip(),
    )


def _admissions(run: RunFolder) -> tuple[F64, F64, F64]:
    """(admission ms, cached tokens, prompt tokens) of sequences that ran, in order of admission."""
    r = run.requests
    at = r["arrival_ms"] + r["queue_ms"] + np.nan_to_num(r["time_tokenize_ms"])
    order = np.argsort(at, kind="stable")
    order = order[np.isfinite(at[order])]
    return at[order], r["cached_tokens"][order], r["prompt_tokens"][order]


def occupancy(run: RunFolder, colour: int) -> Chart | None:
    """Blocks that running sequences refer to, and blocks that only the prefix cache holds."""
    if run.steps is None or run.steps["start_ms"].size == 0:
        return None
    edges = _edges(run)
    used, cached = (_means(run, name, edges, name == "cached_blocks") for name in ("used_blocks", "cached_blocks"))
    blocks = int(run.setting("cache.blocks") or 0)
    time = (edges[1:] + edges[:-1]) / 2000
    series = (
        Series("in use", time, used, colour, "solid", np.zeros_like(used)),
        Series("cached only", time, used + cached, colour, "faint", used),
    )
    near = blocks and (used + cached).max() > 0.4 * blocks
    return Chart(
        "occupancy",
        "KV blocks over time",
        axis("time (s)", [0, *time], zero=True, steps=10),
        axis("blocks", [*(used + cached), *([blocks] if near else [])], zero=True),
        series,
        ("blocks", "mean", "highest mean of a stretch", "share of all"),
        tuple(_row(name, values, blocks) for name, values in (("in use", used), ("cached only", cached))),
        note=_averaged(run) + ("" if near or not blocks else f" The cache has {blocks:,} blocks."),
        rules=(Rule(blocks, f"{short(blocks)} blocks"),) if near else (),
        run=(run.label, colour),
    )


def _row(name: str, values: F64, blocks: int) -> tuple[str, ...]:
    share = f"{100 * values.max() / blocks:.2f} %" if blocks else "-"
    return name, f"{values.mean():,.1f}", f"{values.max():,.1f}", share


def batches(run: RunFolder, colour: int) -> Chart | None:
    """Sequences that a step computes, by what it does for them, and those that wait."""
    if run.steps is None or run.steps["start_ms"].size == 0:
        return None
    edges = _edges(run)
    decode, prefill, waiting = (_means(run, name, edges) for name in ("decode_seqs", "prefill_seqs", "waiting"))
    time = (edges[1:] + edges[:-1]) / 2000
    lines = [
        Series("decode", time, decode, COLOUR["decode"], "solid", np.zeros_like(decode)),
        Series("prefill", time, decode + prefill, COLOUR["prefill"], "solid", decode),
    ]
    if waiting.max() > 0:
        lines.append(Series("waiting", time, waiting, INK, "dash"))
    return Chart(
        "batch",
        "Batch over time",
        axis("time (s)", [0, *time], zero=True, steps=10),
        axis("sequences", [*(decode + prefill), *waiting], zero=True),
        tuple(lines),
        ("sequences", "mean", "highest mean of a stretch"),
        tuple(_row(n, v, 0)[:3] for n, v in (("decode", decode), ("prefill", prefill), ("waiting", waiting))),
        note=_averaged(run),
        run=(run.label, colour),
    )


MOST_ENGINES = 7
"""Of more, the chart shows least, median and most."""


def engines(run: RunFolder, colour: int) -> Chart | None:
    """Sequences that run or wait on each engine of a fleet."""
    if run.steps is None or "engine" not in run.steps or run.steps["start_ms"].size == 0:
        return None
    edges = _edges(run)
    number = run.steps["engine"]
    each = {
        int(e): sum(_means_of(run, name, edges, True, number == e) for name in ("running", "waiting"))
        for e in np.unique(number)
    }
    time = (edges[1:] + edges[:-1]) / 2000
    if len(each) > MOST_ENGINES:
        loads, of = np.stack(list(each.values())), f"of {len(each)}"
        named = [(f"most {of}", _most(loads)), (f"median {of}", _middle(loads)), (f"least {of}", _least(loads))]
        styles = ("solid", "dash", "faint")
        lines = [Series(n, time, v, colour, style) for (n, v), style in zip(named, styles, strict=True)]
    else:
        named = [(f"engine {e}", np.asarray(load)) for e, load in each.items()]
        lines = [Series(n, time, v, PHASE + i) for i, (n, v) in enumerate(named)]
    return Chart(
        "engines",
        "Load of each engine over time",
        axis("time (s)", [0, *time], zero=True, steps=10),
        axis("sequences, running and waiting", [v for _, load in named for v in load], zero=True),
        tuple(lines),
        ("engine", "mean", "highest mean of a stretch"),
        tuple(_row(name, load, 0)[:3] for name, load in named),
        note=_averaged(run),
        run=(run.label, colour),
    )


def _most(loads: F64) -> F64:
    return np.asarray(loads.max(axis=0))


def _middle(loads: F64) -> F64:
    return np.asarray(np.median(loads, axis=0))


def _least(loads: F64) -> F64:
    return np.asarray(loads.min(axis=0))


def _edges(run: RunFolder) -> F64:
    assert run.steps is not None
    ends = run.steps["start_ms"] + run.steps["duration_ms"]
    return np.linspace(0, float(ends.max()), min(BINS, max(run.steps["start_ms"].size, 1)) + 1)


def _means(run: RunFolder, name: str, edges: F64, holds: bool = False) -> F64:
    """Time-weighted means between edges of a column: it counts while its step runs, or until the next one (holds).

    Of several engines their sum.
    """
    assert run.steps is not None
    engines = run.steps.get("engine", np.zeros_like(run.steps["start_ms"]))
    return sum((_means_of(run, name, edges, holds, engines == e) for e in np.unique(engines)), np.zeros(edges.size - 1))


def _means_of(run: RunFolder, name: str, edges: F64, holds: bool, own: NDArray[np.bool_]) -> F64:
    assert run.steps is not None
    starts, values = run.steps["start_ms"][own], run.steps[name][own]
    ends = np.append(starts[1:], edges[-1]) if holds else starts + run.steps["duration_ms"][own]
    points = np.stack([starts, np.maximum(ends, starts)], axis=1).ravel()
    areas = np.stack([np.zeros_like(values), values * np.maximum(ends - starts, 0)], axis=1).ravel()
    whole = np.interp(edges, points, np.cumsum(areas))
    whole[edges < points[0]] = 0.0
    return np.diff(whole) / np.diff(edges)


def _averaged(run: RunFolder) -> str:
    assert run.steps is not None
    count = run.steps["start_ms"].size
    return f"{count:,} steps as time-weighted means of {min(BINS, count)} equal stretches; nothing runs between steps."
