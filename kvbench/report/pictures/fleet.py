"""Routers beside each other: what the engines of each run find in their caches, how long requests wait for them, and
where one policy crosses another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..curves import horizontal
from ..grid import Grid
from .chart import Chart, Rule, Series, axis, short
from .folders import RunFolder, Sources
from .labels import MOST_LINES, drawn

ROUTER = "router.policy"
_STYLES = ("solid", "dash", "thin")
"""Of the lines of a policy, one for each load."""


def fleet_charts(sources: Sources) -> list[Chart]:
    """Engines of each router, and where policies cross."""
    charts = [by_router(sources.runs), *(crossing(table) for table in sources.tables)]
    return [chart for chart in charts if chart is not None]


def crossing(table: Grid) -> Chart | None:
    """TTFT p99 of each policy over that of the first one, over the first axis of numbers, a line for each other value.

    None: the grid has no two policies, or no such axis.
    """
    axes = {key: list(dict.fromkeys(row.values[i] for row in table.rows)) for i, key in enumerate(table.keys)}
    over = horizontal({key: values for key, values in axes.items() if key != ROUTER})
    if over is None or len(axes.get(ROUTER, ())) < 2:
        return None
    first, *others = axes[ROUTER]
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    found = {row.values: row.figures.get("p99_ttft_ms") for row in table.rows}
    for values, tail in found.items():
        at = dict(zip(table.keys, values, strict=True))
        base = found.get(tuple((at | {ROUTER: first})[key] for key in table.keys))
        if at[ROUTER] in others and tail and base:
            rest = ", ".join(f"{key.rpartition('.')[2]} {at[key]}" for key in axes if key not in (ROUTER, over))
            lines.setdefault((at[ROUTER], rest), []).append((float(at[over]), tail / base))
    kept = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    if not kept:
        return None
    loads = list(dict.fromkeys(rest for _, rest in kept))
    series = [
        Series(
            f"{policy}, {rest}" if rest else policy,
            np.array([x for x, _ in points]),
            np.array([y for _, y in points]),
            others.index(policy),
            _STYLES[loads.index(rest) % len(_STYLES)],
        )
        for (policy, rest), points in list(kept.items())[:MOST_LINES]
    ]
    left_out = f" {MOST_LINES} of {len(kept)} lines are drawn." if len(kept) > MOST_LINES else ""
    unit = table.units.get(over)
    return Chart(
        "crossing",
        f"TTFT p99 against {first}",
        axis(f"{over} ({unit})" if unit else over, [x for s in series for x in s.x]),
        axis(f"times that of {first}", [1.0, *(y for s in series for y in s.y)]),
        tuple(series),
        (over.rpartition(".")[2], *(s.name for s in series)),
        tuple(
            (short(x), *(f"{dict(zip(s.x, s.y, strict=True)).get(x, np.nan):.3f}" for s in series))
            for x in sorted({x for s in series for x in s.x.tolist()})
        ),
        note=f"Below 1 a policy has the shorter tail; where its line goes through 1 the two cross.{left_out}",
        rules=(Rule(1.0, first),),
        wide=True,
    )


def engines_of(run: RunFolder) -> list[dict[str, Any]]:
    """Rows of a fleet's engines that have both figures; none where the run has one engine."""
    fleet = run.document.get("fleet") or {}
    rows: list[dict[str, Any]] = fleet.get("engines", [])
    return [row for row in rows if row["hit_rate"] is not None and row["queue_p99_ms"] is not None]


def by_router(runs: Sequence[RunFolder]) -> Chart | None:
    """A dot for each engine: to the right more hits, further up a longer queue."""
    found = [(run, colour, rows) for run, colour in drawn(runs) if (rows := engines_of(run))]
    if not found:
        return None
    hits = {run.path: np.array([100.0 * row["hit_rate"] for row in rows]) for run, _, rows in found}
    queues = {run.path: np.array([float(row["queue_p99_ms"]) for row in rows]) for run, _, rows in found}
    series = [Series(run.label, hits[run.path], queues[run.path], colour, "dots") for run, colour, _ in found]
    return Chart(
        "fleet",
        "Hit rate and queue p99 of each engine",
        axis("hit rate", [v for values in hits.values() for v in values], "%"),
        axis("queue p99", [v for values in queues.values() for v in values], "ms"),
        tuple(series),
        ("", "router", "hit rate", "least", "most", "queue p99, median", "most"),
        tuple(_row(run, hits[run.path], queues[run.path]) for run, _, _ in found),
        note="A dot is an engine. Affinity moves dots to the right; where one engine has too much, one dot rises.",
        legend=tuple((run.label, colour) for run, colour, _ in found),
    )


def _row(run: RunFolder, hits: Any, queues: Any) -> tuple[str, ...]:
    whole = 100 * run.figure("hit_rate")
    return (
        run.label or "run",
        str(run.document["fleet"]["router"]),
        f"{whole:.2f} %",
        f"{hits.min():.2f} %",
        f"{hits.max():.2f} %",
        f"{np.median(queues):,.1f} ms",
        f"{queues.max():,.1f} ms",
    )
