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
    has_limit, has_peer = any(r.limit for r in rows), any(r.peer for r in rows)
    header = [rows[0].group, "threads", "ms", "+-", rows[0].unit]
    header += ["of limit", "", "target"] if has_limit else []
    header += [f"x {next(r.peer for r in rows if r.peer)}"] if has_peer else []
    return grid([*header, "first s"], [_cells(row, has_limit, has_peer) for row in rows])


def _cells(row: KernelRow, has_limit: bool, has_peer: bool) -> list[str]:
    cells = [row.shape, str(row.threads), short(row.milliseconds), f"{100 * row.spread:.0f} %", short(row.rate / 1e9)]
    cells += [share(row.ratio), row.limit, share(row.target)] if has_limit else []
    if has_peer:
        cells.append("" if row.peer_milliseconds is None else f"{row.peer_milliseconds / row.milliseconds:.1f}")
    return [*cells, f"{row.first_s:.2f}"]


def _foot(report: KernelReport) -> str:
    rounds = sorted({row.rounds for row in report.rows})
    machine = report.machine
    lines = [
        f"{machine['cpu']}, {machine['cpus']} processors, vectors of {machine['vector_lanes']} float32; "
        f"load before {report.load_before:.2f}",
        f"ms: median of {rounds[0]} to {rounds[-1]} interleaved rounds; +-: half the distance of their quartiles. "
        f"first s: the first call, which compiles ({report.compiled_s:.1f} s in all) or loads, and is not in ms.",
        "of limit: the rate over the same machine's rate of plain reading, memcpy, FMA, matrix product or comparison, "
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
