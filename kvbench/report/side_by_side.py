"""Two runs of one workload beside each other, with the ratio of every number: cold and warm caches."""

from __future__ import annotations

from typing import Any

from .record import RunRecord
from .run_json import summary_document
from .table import grid, note, run_head

_FIGURES = {
    "hit rate, %": ("hit_rate", 100.0, 2),
    "TTFT mean, ms": ("mean_ttft_ms", 1.0, 2),
    "TTFT p50": ("median_ttft_ms", 1.0, 2),
    "TTFT p99": ("p99_ttft_ms", 1.0, 2),
    "TPOT mean": ("mean_tpot_ms", 1.0, 2),
    "TPOT p99": ("p99_tpot_ms", 1.0, 2),
    "ITL p99": ("p99_itl_ms", 1.0, 2),
    "E2EL mean": ("mean_e2el_ms", 1.0, 2),
    "E2EL p99": ("p99_e2el_ms", 1.0, 2),
    "queue p99": ("p99_queue_ms", 1.0, 2),
    "output tokens/s": ("output_throughput", 1.0, 1),
    "evicted blocks": ("evicted_blocks", 1.0, 0),
    "preemptions": ("preemptions", 1.0, 0),
}
"""Row -> metric of summary_document, factor, digits."""


def side_by_side(first: RunRecord, second: RunRecord) -> str:
    """Head of the first run, then a row for each figure: both, and second / first."""
    one, other = summary_document(first), summary_document(second)
    rows = []
    for title, (name, factor, digits) in _FIGURES.items():
        values = [None if d[name] is None else d[name] * factor for d in (one, other)]
        ratio = _ratio(*values)
        rows.append([title, *(_shown(v, digits) for v in values), _shown(ratio, 3)])
    names = [first.cache_state, second.cache_state]
    common = set(first.notes) & set(second.notes)
    notes = [f"{r.cache_state}: {text}" for r in (first, second) for text in r.notes if text not in common]
    parts = [run_head(first, " | ".join(names)), grid(["", *names, f"{names[1]} / {names[0]}"], rows)]
    return "\n\n".join([*parts, *map(note, notes)])


def side_by_side_document(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """Both summaries under the names of their cache states, and second / first of every number of both."""
    one, other = summary_document(first), summary_document(second)
    ratios = {}
    for name, value in one.items():
        if name not in ("schema", "seed") and _is_number(value) and _is_number(other[name]):
            ratios[name] = _ratio(value, other[name])
    return {first.cache_state: one, second.cache_state: other, "ratio": ratios}


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None or first == 0 else second / first


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
