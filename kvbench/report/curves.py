"""The lines of a grid's picture: which points belong together, and where their names go. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from .grid import CAPACITY, POLICY, Grid, GridRow


@dataclass(frozen=True)
class Line:
    """points: (x, y) in order of x, those without a figure left out. look: number of its colour and marker."""

    name: str
    points: tuple[tuple[float, float], ...]
    look: int = 0


def horizontal(axes: Mapping[str, Sequence[str]]) -> str | None:
    """The axis to draw over: the capacity, else the first one of several numbers."""
    numeric = [key for key, values in axes.items() if len(set(values)) > 1 and all(map(_is_number, values))]
    return CAPACITY if CAPACITY in numeric else next(iter(numeric), None)


def lines_of(result: Grid, over: str, figure: Callable[[GridRow], float | None]) -> list[Line]:
    """A line for each combination of the axes other than `over`; lines of the same points are one, with all names."""
    at = result.keys.index(over)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        others = [(key, value) for key, value in zip(result.keys, row.values, strict=True) if key != over]
        points = found.setdefault(_name(result, others), [])
        value = figure(row)
        if value is not None:
            points.append((float(row.values[at]), value))
    merged: dict[tuple[tuple[float, float], ...], Line] = {}
    for look, (name, points) in enumerate(found.items()):
        line = Line(name, tuple(sorted(points)), look)
        same = merged.get(line.points)
        merged[line.points] = line if same is None else replace(same, name=f"{same.name}, {name}")
    return [line for line in merged.values() if line.points]


def lowest(lines: Sequence[Line], name: str) -> Line:
    """The least of several lines at each x."""
    best: dict[float, float] = {}
    for line in lines:
        for x, y in line.points:
            best[x] = min(best.get(x, y), y)
    return Line(name, tuple(sorted(best.items())))


def short_number(value: float) -> str:
    """1000 -> 1k, 2500000 -> 2.5M."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _name(result: Grid, others: Sequence[tuple[str, str]]) -> str:
    """A policy says by itself what it is; other values stand with their keys."""
    if not others:
        return result.policy
    if len(others) == 1 and others[0][0] == POLICY:
        return others[0][1]
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in others)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
