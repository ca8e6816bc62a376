"""An experiment on kernels: one table, what was held fixed, and the lines or bars of its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .table import grid, note


@dataclass(frozen=True)
class Experiment:
    """header, rows: formatted. held: one sentence on what all rows share. x, lines: (name, a value for each x)."""

    name: str
    held: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    x_label: str
    x: Sequence[float | str]
    y_label: str
    lines: Sequence[tuple[str, Sequence[float]]]
    warnings: Sequence[str] = ()


def experiment_report(found: Experiment) -> str:
    """The whole text, at most 100 columns wide."""
    return f"{note(found.held)}\n\n{grid(found.header, found.rows)}\n"


def experiment_document(found: Experiment) -> dict[str, Any]:
    return {"kind": "kvbench.kernels.experiment", "clock": "measured", **asdict(found)}
