"""Variants of kernels that were compared with float64: a line for each kernel and type, and each failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .table import grid


@dataclass(frozen=True)
class CheckRow:
    """error: largest difference, or how many values differ where the bound is 0. seconds: compiling included."""

    kernel: str
    head_dim: int
    kv_dtype: str
    layout: str
    error: float
    bound: float
    seconds: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


def checks_report(rows: Sequence[CheckRow]) -> str:
    """Kernel x type with the worst error of all head sizes and layouts, then every variant that failed."""
    keys = list(dict.fromkeys((row.kernel, row.kv_dtype) for row in rows))
    lines = []
    for key in keys:
        same = [row for row in rows if (row.kernel, row.kv_dtype) == key]
        failed = sum(not row.passed for row in same)
        worst = max(row.error for row in same)
        lines.append([*key, str(len(same)), f"{worst:.2g}", f"{same[0].bound:.2g}", str(failed), _seconds(same)])
    header = ["kernel", "KV type", "variants", "largest error", "bound", "failed", "seconds"]
    failures = [
        f"FAILED: {r.kernel}, head size {r.head_dim}, {r.kv_dtype}, {r.layout}: error {r.error:.3g} > {r.bound:.3g}"
        for r in rows
        if not r.passed
    ]
    total = f"{len(rows)} variants compared with float64, {len(failures)} failed"
    return "\n".join([grid(header, lines), "", *failures, total]) + "\n"


def checks_document(rows: Sequence[CheckRow]) -> dict[str, Any]:
    return {
        "kind": "kvbench.kernels.check",
        "passed": all(row.passed for row in rows),
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
    }


def _seconds(rows: Sequence[CheckRow]) -> str:
    return f"{sum(row.seconds for row in rows):.1f}"
