"""Runs of one workload from different states of its tiers, beside each other: whose first tokens come how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .record import RunRecord
from .run_json import summary_document
from .table import grid, note, run_head

_FIGURES = {
    "hit rate, %": ("hit_rate", 100.0, 2),
    "of that device, %": ("hit_rate_device", 100.0, 2),
    "of that host, %": ("hit_rate_host", 100.0, 2),
    "of that storage, %": ("hit_rate_storage", 100.0, 2),
    "TTFT p50, ms": ("median_ttft_ms", 1.0, 2),
    "TTFT p90": ("p90_ttft_ms", 1.0, 2),
    "TTFT p99": ("p99_ttft_ms", 1.0, 2),
    "fetch wait, s": ("fetch_wait", 1.0, 3),
    "hits that lost": ("hits_lost", 1.0, 0),
    "E2EL p99, ms": ("p99_e2el_ms", 1.0, 2),
}
"""Row -> metric of summary_document, factor, digits."""


def tier_states(records: Mapping[str, RunRecord]) -> str:
    """A column for each state, by its name."""
    documents = [summary_document(record) for record in records.values()]
    rows = []
    for title, (name, factor, digits) in _FIGURES.items():
        values = [d.get(name) for d in documents]
        if any(value is not None for value in values):
            rows.append([title, *("-" if v is None else f"{v * factor:,.{digits}f}" for v in values)])
    told = note(
        "Only the first column is a first visit. In the others the workload has been through the tiers named before "
        "t = 0, and nothing below them was asked for."
    )
    first = next(iter(records.values()))
    return "\n\n".join([run_head(first, " | ".join(records)), grid(["", *records], rows), told])


def tier_states_document(records: Mapping[str, RunRecord]) -> dict[str, Any]:
    """State -> summary."""
    return {name: summary_document(record) for name, record in records.items()}
