"""Kernels beside the limits of the machine: a table per group, and the document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .table import grid, note


@dataclass(frozen=True)
class KernelRow:
    """One kernel on one shape with one number of threads.

    rate           units a second: bytes, floating-point operations or tokens
    limit          what of the machine it is measured against, "" where nothing fits; limit_rate in the same units
    target         the share of the limit that the kernel is meant to reach
    spread         half the distance of the quartiles over the median
    peer           name of another implementation of the same, "" where none is installed
    first_s        the first call, which compiles or loads from disk; in no other figure
    """

    group: str
    shape: str
    threads: int
    milliseconds: float
    spread: float
    rounds: int
    rate: float
    unit: str
    limit: str = ""
    limit_rate: float | None = None
    target: float | None = None
    peer: str = ""
    peer_milliseconds: float | None = None
    first_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The share of the limit that was reached."""
        return None if self.limit_rate is None else self.rate / self.limit_rate


@dataclass(frozen=True)
class KernelReport:
    """All rows of a measurement and what it was measured on."""

    rows: Sequence[KernelRow]
    machine: Mapping[str, Any]
    load_before: float
    compiled_s: float
    warnings: Sequence[str] = field(default=())


def kernels_report(report: KernelReport) -> str:
    """The whole text, at most 100 columns wide."""
    groups = list(dict.fromkeys(row.group for row in report.rows))
    parts = [_group([row for row in report.rows if row.group == name]) for name in groups]
    return "\n\n".join([*parts, _foot(report)]) + "\n"


def _group(rows: Sequence[KernelRow]) -> str:
    """One table; columns that no row fills are left out."""
    limits = sorted({row.limit for row in rows} - {""})
    peers = sorted({row.peer for row in rows} - {""})
    columns: dict[str, Sequence[str]] = {
        rows[0].group: [row.shape for row in rows],
        "thr.": [str(row.threads) for row in rows],
        "ms": [short(row.milliseconds) for row in rows],
        "+-": [f"{100 * row.spread:.0f} %" for row in rows],
        rows[0].unit: [short(row.rate / 1e9) for row in rows],
        f"of\n{limits[0] if len(limits) == 1 else 'limit'}": [_of_limit(row, len(limits) > 1) for row in rows],
        "target": [share(row.target) for row in rows],
        f"x\n{', '.join(peers)}": [_beside_peer(row) for row in rows],
        "first\ns": [f"{row.first_s:.2f}" for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return grid(list(shown), list(zip(*shown.values(), strict=True)))


def _of_limit(row: KernelRow, named: bool) -> str:
    return f"{share(row.ratio)}{f' {row.limit}' if named else ''}".strip()


def _beside_peer(row: KernelRow) -> str:
    """How many times faster the kernel is."""
    return "" if row.peer_milliseconds is None else f"{row.peer_milliseconds / row.milliseconds:.1f}"


def _foot(report: KernelReport) -> str:
    rounds = sorted({row.rounds for row in report.rows})
    machine = report.machine
    lines = [
        f"{machine['cpu']}, {machine['cpus']} processors, vectors of {machine['vector_lanes']} float32; "
        f"load before {report.load_before:.2f}",
        f"ms: median of {rounds[0]} to {rounds[-1]} interleaved rounds; +-: half the distance of their quartiles. "
        f"first s: the first call, which compiles ({report.compiled_s:.1f} s in all) or loads, and is not in ms.",
        "of limit: the rate over the same machine's rate of plain reading, memcpy, FMA, sgemm or comparison, "
        "measured in the same rounds.",
    ]
    return "\n".join(note(line) for line in lines)


def kernels_document(report: KernelReport) -> dict[str, Any]:
    """The same for a program: rates in units per second, times in milliseconds."""
    rows = [asdict(row) | {"ratio": row.ratio} for row in report.rows]
    return {**asdict(report), "kind": "kvbench.kernels", "clock": "measured", "rows": rows}


def share(value: float | None) -> str:
    """A share of a limit, two digits; more than 1 can be: a copy past the caches beats memcpy."""
    return "" if value is None else f"{value:.2f}"


def short(value: float) -> str:
    """Three digits that count, and never an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"
