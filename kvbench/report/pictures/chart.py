"""What a chart says, before anybody draws it: series, axes, lines of reference, and the same as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

GREY, INK = -1, -2
"""Colours that are no colour: the baseline, and bounds."""

LOG_FROM = 10
"""An axis is logarithmic when its values span at least this factor."""

TAIL = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
"""Ticks of an axis of percentiles."""


@dataclass(frozen=True)
class Axis:
    """scale: linear, log, or tail (percentiles as -log10(1 - p)). unit: "ms" and "%" are written at each tick."""

    label: str
    scale: str = "linear"
    unit: str = ""
    low: float = 0.0
    high: float = 1.0

    def place(self, values: F64 | float) -> F64:
        """0 at the low end, 1 at the high end."""
        low, high = self._bent(np.array([self.low, self.high])).tolist()
        return np.clip((self._bent(np.asarray(values, np.float64)) - low) / max(high - low, 1e-300), -0.5, 1.5)

    def _bent(self, values: F64) -> F64:
        if self.scale == "log":
            return np.log10(np.maximum(values, self.low * 1e-3))
        return -np.log10(np.maximum(1 - values, 1e-12)) if self.scale == "tail" else values

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """(value, text) from low to high."""
        if self.scale == "tail":
            return [(p, f"p{100 * p:.6g}") for p in TAIL if self.low <= p <= self.high]
        values = _log_ticks(self.low, self.high, most) if self.scale == "log" else _ticks(self.low, self.high, most)
        return [(value, self.text(value)) for value in values]

    def text(self, value: float) -> str:
        """A value of this axis in words."""
        if self.unit == "ms":
            return duration(value)
        return short(value) + ("%" if self.unit == "%" else "")


@dataclass(frozen=True)
class Series:
    """One line. base: lower edge of an area. style: solid, dash, thin, or dots (points alone, with `joined` a line)."""

    name: str
    x: F64
    y: F64
    colour: int
    style: str = "solid"
    base: F64 | None = None


@dataclass(frozen=True)
class Rule:
    """A line of reference across the chart, at a value of the y axis (or x)."""

    at: float
    name: str
    across: str = "y"


@dataclass(frozen=True)
class Bar:
    """A stretch of a row."""

    row: int
    start: float
    end: float
    colour: int


@dataclass(frozen=True)
class Chart:
    """One picture. rows: names of rows from the top, where y is not a number. legend: colours of the bars.

    note     what a reader must know to read it rightly
    header, table   the same in numbers
    wide     wants the whole width
    """

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    note: str = ""
    rules: tuple[Rule, ...] = ()
    rows: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    legend: tuple[tuple[str, int], ...] = ()
    wide: bool = False

    @property
    def said(self) -> str:
        """The chart in a sentence, for who does not see it."""
        names = ", ".join(dict.fromkeys(s.name for s in self.series if s.name))
        what = f"{self.y.label or 'rows'} over {self.x.label}" + (f": {names}" if names else "")
        return f"{what}. {self.note} The numbers are in the table.".replace("  ", " ")


def axis(label: str, values: Iterable[float], unit: str = "", log: bool | None = None) -> Axis:
    """An axis that holds these values: from 0, or logarithmic where they span a lot (or where `log` says so)."""
    found = np.array([v for v in values if math.isfinite(v)], np.float64)
    if found.size == 0:
        return Axis(label, unit=unit)
    low, high = float(found.min()), float(found.max())
    if log is None:
        log = low > 0 and high >= LOG_FROM * low
    if log and low > 0:
        return Axis(label, "log", unit, low, high if high > low else 2 * low)
    top = _ticks(0, high or 1.0, 5)
    step = top[1] - top[0] if len(top) > 1 else high
    return Axis(label, "linear", unit, min(low, 0.0), math.ceil((high or 1.0) / step * (1 - 1e-9)) * step)


def duration(ms: float) -> str:
    """12 ms, 1.5 s, 20 µs."""
    if ms == 0:
        return "0"
    if abs(ms) >= 1000:
        return f"{ms / 1000:,.4g} s"
    return f"{ms:.4g} ms" if abs(ms) >= 0.1 else f"{1000 * ms:.4g} µs"


def short(value: float) -> str:
    """1000 -> 1k, 2500000 -> 2.5M."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, most: int) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """The densest of 1-2-5, decades, and every second, third ... decade that is not too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [[f * 10.0**d for d in decades for f in (1, 2, 5)]]
    choices += [[10.0**d for d in decades if d % every == 0] for every in range(1, len(decades) + 1)]
    inside = [[v for v in ticks if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)] for ticks in choices]
    fit = next((ticks for ticks in inside if 2 <= len(ticks) <= most), None)
    return fit or _ticks(low, high, most)


def runs_of_finite(x: F64, y: F64) -> list[slice]:
    """Stretches without a gap: where both are numbers."""
    good = np.concatenate(([False], np.isfinite(x) & np.isfinite(y), [False]))
    edges = np.flatnonzero(good[1:] != good[:-1])
    return [slice(int(a), int(b)) for a, b in pairwise(edges) if good[a + 1]]
