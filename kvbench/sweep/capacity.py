"""The largest load that keeps its promises: a search by doubling or halving, then by halves of the bracket.

It takes for granted that more load never keeps a promise better; every point that was tried is told, so that one that
does is seen. Loads are rounded before they are tried, so a search is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_FLAT, _MOST_FLAT = 1.02, 2
"""Twice the rate, and no more is served, so often in a row: the workload cannot ask for more."""

DIGITS = 4
"""Significant digits of a rate that is tried."""


@dataclass(frozen=True)
class Point:
    """One load that was tried.

    share     of sequences that kept the joint promise; NaN: there is none
    figures   of its run, as report.grid.run_figures names them
    served    requests/s
    broke     the promise that it broke most, "" where it kept all
    promises  as --slo takes it -> what came of it, ms
    """

    load: float
    share: float
    met: bool
    figures: dict[str, Any]
    served: float = math.nan
    broke: str = ""
    promises: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Capacity:
    """low: largest load that met the promises, None: not even the least did. high: smallest above it that did not,
    None: no load up to the most failed. points: in the order in which they were tried.
    """

    low: float | None
    high: float | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Scale:
    """What loads there are. precision: the bracket ends at high / low <= 1 + precision (whole: side by side)."""

    start: float
    least: float
    most: float
    whole: bool
    precision: float

    def between(self, low: float, high: float) -> float | None:
        """The load to try next; None: the bracket is narrow enough."""
        if self.whole:
            return (low + high) // 2 if high - low > 1 else None
        middle = rounded(math.sqrt(low * high))
        return middle if high / low > 1 + self.precision and low < middle < high else None

    def doubled(self, load: float) -> float:
        return min(rounded(load * 2), self.most)

    def halved(self, load: float) -> float:
        return max(load // 2 if self.whole else rounded(load / 2), self.least)


def rounded(load: float) -> float:
    return float(f"{load:.{DIGITS}g}")


def search(scale: Scale, try_load: Callable[[float], Point]) -> Capacity:
    """Bracket the capacity, then narrow the bracket down. Points that fail below one that met are told, not heeded."""
    points = [try_load(scale.start)]
    low, high = (scale.start, None) if points[0].met else (None, scale.start)
    flat = 0
    while high is None and low is not None and low < scale.most and flat < _MOST_FLAT:
        points.append(try_load(scale.doubled(low)))
        low, high = (points[-1].load, None) if points[-1].met else (low, points[-1].load)
        is_flat = not scale.whole and points[-1].served <= _FLAT * points[-2].served
        flat = flat + 1 if is_flat else 0
    while low is None and high is not None and high > scale.least:
        points.append(try_load(scale.halved(high)))
        low, high = (points[-1].load, high) if points[-1].met else (None, points[-1].load)
    while low is not None and high is not None and (middle := scale.between(low, high)) is not None:
        points.append(try_load(middle))
        low, high = (middle, high) if points[-1].met else (low, middle)
    return Capacity(low, high, tuple(points))
