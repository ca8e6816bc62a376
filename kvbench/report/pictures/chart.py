"""What a chart says, before anybody draws it: series, axes, lines of reference, and the same as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

GREY, INK = -1, -2
"""Colours that are no colour: the baseline, and bounds. Colours from 0 on are runs, from PHASE on parts of a life."""
PHASE = 100

LOG_FROM = 10
"""An axis is logarithmic when its values span at least this factor."""
DECADES_FROM = 300
"""... and ends at decades from this factor on, else at 1, 2 or 5 of one."""
LEAST_SPAN = 5e-3
ZERO_FROM = 0.3
"""A linear axis begins at 0 where the least value is below this share of the greatest, else where the data is."""

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

    def ticks(self, most: int = 7) -> list[tuple[float, str]]:
        """(value, text) from low to high; both ends of an axis that `axis` made are among them."""
        if self.scale == "tail":
            return [(p, f"p{100 * p:.6g}") for p in TAIL if self.low <= p <= self.high]
        values = _log_ticks(self.low, self.high, most) if self.scale == "log" else _ticks(self.low, self.high, most)
        return [(value, self.text(value)) for value in values]

    def text(self, value: float) -> str:
        """A value of this axis in words. Times share the unit that fits the greatest of the axis."""
        if self.unit == "ms":
            if self.scale == "linear" and value and max(abs(self.low), abs(self.high)) >= 1000:
                return f"{value / 1000:,.4g} s"
            return duration(value)
        return short(value) + ("%" if self.unit == "%" else "")

    def round_ticks(self, most: int) -> list[tuple[float, str]]:
        """Ticks at round values within, for an axis whose ends are what another axis makes them."""
        if self.scale == "log":
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            choices = [[float(f"{f}e{d}") for d in decades for f in factors] for factors in ((1, 2, 5), (1, 3), (1,))]
        else:
            step = _step(self.high - self.low, max(most, 1))
            choices = [[_round(i, step) for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]]
        inside = [[v for v in values if self.low <= v <= self.high] for values in choices]
        return [(v, self.text(v)) for v in next((values for values in inside if len(values) <= most), inside[-1])]

    def scaled(self, factor: float, label: str) -> Axis:
        """The same places in another unit."""
        return replace(self, label=label, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True)
class Series:
    """One line.

    style  solid, dash, thin, or dots (points alone, with `joined` a line); of an area also faint
    base   lower edge of an area
    dots   a colour for each point, where points belong to runs and the line to none of them
    """

    name: str
    x: F64
    y: F64
    colour: int
    style: str = "solid"
    base: F64 | None = None
    dots: tuple[int, ...] = ()


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
    """One picture.

    run      the run that all of it shows, with its colour; None: several, or none
    rows     names of rows from the top, where y is not a number
    legend   names and colours, where they do not stand at the ends of lines: bars, and lines that end in one place
    twin     the x axis in another unit, along the top
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
    run: tuple[str, int] | None = None
    twin: Axis | None = None

    @property
    def names(self) -> tuple[tuple[str, int, str], ...]:
        """Every name with its colour and style: the legend, else that of the lines."""
        if self.legend:
            return tuple((name, colour, "") for name, colour in self.legend)
        return tuple(dict.fromkeys((s.name, s.colour, s.style) for s in self.series if s.name))

    @property
    def heading(self) -> str:
        """The title, with the run that all of it shows."""
        return f"{self.title}: {self.run[0]}" if self.run else self.title

    @property
    def said(self) -> str:
        """The chart in a sentence, for who does not see it."""
        names = ", ".join(dict.fromkeys(s.name for s in self.series if s.name))
        what = f"{self.y.label or 'rows'} over {self.x.label}" + (f": {names}" if names else "")
        return f"{what}. {self.note} The numbers are in the table.".replace("  ", " ")


def axis(
    label: str, values: Iterable[float], unit: str = "", log: bool | None = None, zero: bool = False, steps: int = 5
) -> Axis:
    """An axis that begins and ends at ticks around these values.

    log    logarithmic; None: where the values are above 0 and span a lot
    zero   begins at 0, as areas and counts must; lines begin where the data is
    steps  most steps from end to end: more of them end nearer to the data
    """
    found = np.array([v for v in values if math.isfinite(v)], np.float64)
    if found.size == 0:
        return Axis(label, unit=unit)
    low, high = float(found.min()), float(found.max())
    if log is None:
        log = not zero and low > 0 and high >= LOG_FROM * low
    if log and low > 0:
        return Axis(label, "log", unit, *_log_ends(low, high))
    if zero or low < ZERO_FROM * high:
        low = min(low, 0.0)
    if high - low < LEAST_SPAN * abs(high):  # ticks of four digits would be equal
        low, high = low - LEAST_SPAN * abs(high), high + LEAST_SPAN * abs(high)
    high = high if high > low else low + 1.0
    step = _step(high - low, steps)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(label, "linear", unit, _round(first, step), _round(last, step))


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """The nearest 1, 2 or 5 of a decade below and above, or the decades themselves."""
    factors = (1,) if high >= DECADES_FROM * low else (1, 2, 5)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{f}e{d}") for d in decades for f in factors]
    below = max(v for v in steps if v <= low * (1 + 1e-9))
    above = min(v for v in steps if v >= high * (1 - 1e-9))
    return (below, above) if above > below else (below, steps[steps.index(below) + 1])


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


def _step(span: float, most: int) -> float:
    """1, 2 or 5 of a decade, so that `span` holds at most so many."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most * (1 + 1e-9))


def _round(count: int, step: float) -> float:
    """count x step without the dust of binary fractions."""
    return float(f"{count * step:.12g}")


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Steps of 1, 2 or 5 of a decade on which both ends lie, at most so many; else the ends alone."""
    span = high - low
    if span <= 0:
        return [low]
    step = _step(span, max(most - 1, 1))
    for _ in range(6):
        first, last = round(low / step), round(high / step)
        if max(abs(first * step - low), abs(last * step - high)) <= 1e-6 * span:
            return [_round(i, step) for i in range(first, last + 1)]
        step = _step(span, max(math.floor(span / step * (1 - 1e-6)), 1)) if span > step else span
    return [low, (low + high) / 2, high] if most >= 3 else [low, high]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """The densest of 1-2-5, decades, and every second, third ... decade that is not too many; always both ends."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [[float(f"{f}e{d}") for d in decades for f in (1, 2, 5)]]
    choices += [[float(f"1e{d}") for d in decades if d % every == 0] for every in range(1, len(decades) + 1)]
    least = math.log10(high / low) / max(most, 1)
    for ticks in choices:
        inside = [v for v in ticks if low * (1 + 1e-9) < v < high * (1 - 1e-9)]
        if ticks is not choices[0]:  # an end that is no decade may stand too near to one
            inside = [v for v in inside if min(math.log10(v / low), math.log10(high / v)) > 0.8 * least]
        if len(inside) + 2 <= most:
            return [low, *inside, high]
    return [low, high]


def runs_of_finite(x: F64, y: F64) -> list[slice]:
    """Stretches without a gap: where both are numbers."""
    good = np.concatenate(([False], np.isfinite(x) & np.isfinite(y), [False]))
    edges = np.flatnonzero(good[1:] != good[:-1])
    return [slice(int(a), int(b)) for a, b in pairwise(edges) if good[a + 1]]
