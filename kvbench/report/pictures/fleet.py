"""Routers beside each other: what the engines of each run find in their caches, and how long requests wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .chart import Chart, Series, axis
from .folders import RunFolder
from .labels import drawn


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
