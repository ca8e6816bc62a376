"""What became of the fault scenarios: right and broken engines side by side, and effects as figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from .table import WIDTH, grid


@dataclass(frozen=True)
class FaultLine:
    """One scenario. right, broken: what the checks said of each engine, "" if nothing."""

    name: str
    source: str
    key: str
    right: str
    broken: str
    passed: bool


@dataclass(frozen=True)
class FigureLine:
    """One figure of an effect, under its first and its second setting."""

    name: str
    source: str
    settings: str
    figure: str
    first: float
    second: float
    direction: str
    passed: bool


def faults_report(faults: Sequence[FaultLine], figures: Sequence[FigureLine]) -> str:
    """The whole report, at most 100 columns wide."""
    rows = [[f.name, f.source, "FAILS" if f.right else "passes", "caught" if f.broken else "MISSED"] for f in faults]
    parts = [grid(["fault", "reported as", "right engine", "broken engine"], rows)]
    parts += ["\n".join(_said(f) for f in faults)]
    measured = [[f.name, f.source, f.figure, f"{f.first:,.4g}", f"{f.second:,.4g}", _verdict(f)] for f in figures]
    parts.append(grid(["effect", "reported as", "figure", "first", "second", "expected"], measured))
    parts.append("\n".join(dict.fromkeys(f"{f.name}: {f.settings}" for f in figures)))
    wrong = sum(not f.passed for f in faults) + sum(not f.passed for f in figures)
    parts.append(f"{len(faults)} faults, {len(figures)} figures: {wrong} do not behave")
    return "\n\n".join(parts) + "\n"


def _said(fault: FaultLine) -> str:
    text = f"{fault.name}, {fault.key}: {fault.broken or 'nothing was noticed'}"
    if fault.right:
        text += f"; the right engine: {fault.right}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _verdict(figure: FigureLine) -> str:
    return f"{figure.direction}, {'yes' if figure.passed else 'NO'}"
