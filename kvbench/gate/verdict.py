"""One metric of two sides, in pairs: ratio, interval, verdict.

A pair is the two sides under one seed. On the modelled clock values are exact: any difference is a change, and where
all pairs change the same way, that is the verdict. Else, and always on the measured clock, the verdict is that of a
bootstrap interval over the pairs, which takes at least FEWEST_PAIRS of them.

    better, worse   by the direction of the metric        same          equal in every pair
    changed         of a metric without a better side     inconclusive  the pairs do not agree, or are too few
    not measured    a side of a pair has no value: nothing is known of the difference
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics.bootstrap import mean_interval
from ..metrics.catalogue import NEITHER

BETTER, WORSE, SAME, CHANGED, INCONCLUSIVE = "better", "worse", "same", "changed", "inconclusive"
NOT_MEASURED = "not measured"

MODELLED = "modelled"

FEWEST_PAIRS = 5
"""Below, a bootstrap draws so few different means that its interval is far too narrow."""

Pair = tuple[float | None, float | None]


@dataclass(frozen=True)
class Comparison:
    """A metric on both sides: (baseline, candidate) of each pair, means over the pairs in which both exist.

    ratio       geometric mean of candidate / baseline; None where a value is not above 0
    low, high   its 95 % interval over the pairs; None below FEWEST_PAIRS, or without a ratio
    """

    metric: str
    unit: str
    direction: int
    pairs: tuple[Pair, ...]
    baseline: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str

    @property
    def without(self) -> list[str]:
        """The sides that have no value in some pair."""
        sides = ("baseline", "candidate")
        return [side for i, side in enumerate(sides) if not self.pairs or any(pair[i] is None for pair in self.pairs)]

    @property
    def exists(self) -> bool:
        """Some run has a value."""
        return any(value is not None for pair in self.pairs for value in pair)


def compare(metric: str, unit: str, direction: int, pairs: Sequence[Pair], clock: str) -> Comparison:
    """Compare the candidate of each pair with the baseline."""
    there = [(a, b) for a, b in pairs if a is not None and b is not None]
    logs = [math.log(b) - math.log(a) for a, b in there if a > 0 and b > 0]
    has_ratio = bool(there) and len(logs) == len(there)
    ratio = math.exp(math.fsum(logs) / len(logs)) if has_ratio else None
    bounds = mean_interval(np.array(logs)) if has_ratio and len(logs) >= FEWEST_PAIRS else None
    return Comparison(
        metric=metric,
        unit=unit,
        direction=direction,
        pairs=tuple(pairs),
        baseline=_mean([a for a, _ in there]),
        candidate=_mean([b for _, b in there]),
        ratio=ratio,
        low=None if bounds is None else math.exp(bounds[0]),
        high=None if bounds is None else math.exp(bounds[1]),
        verdict=_verdict(direction, pairs, clock),
    )


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _verdict(direction: int, pairs: Sequence[Pair], clock: str) -> str:
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < len(pairs) or not pairs:
        return NOT_MEASURED
    differing = [(a, b) for a, b in known if a != b]
    if not differing:
        return SAME
    if direction == NEITHER:
        return CHANGED
    signs = {direction if b > a else -direction for a, b in differing}
    if clock == MODELLED and len(signs) == 1:
        return BETTER if signs.pop() > 0 else WORSE
    if len(known) < FEWEST_PAIRS:
        return INCONCLUSIVE
    low, high = mean_interval(_differences(known))
    if low <= 0 <= high:
        return INCONCLUSIVE
    return BETTER if (low > 0) == (direction > 0) else WORSE


def _differences(pairs: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of logarithms where all values are above 0, so that a ratio is judged; else of the values."""
    a, b = (np.array([pair[i] for pair in pairs], np.float64) for i in (0, 1))
    return np.log(b) - np.log(a) if (a > 0).all() and (b > 0).all() else b - a


def geometric_mean(compared: Sequence[Comparison], clock: str) -> Comparison | None:
    """Of the ratios of metrics of one direction that both sides measured, judged as a metric; None: there is none."""
    with_ratio = [c for c in compared if c.ratio is not None and not c.without]
    if not with_ratio:
        return None
    pairs: list[Pair] = []
    for own in zip(*(c.pairs for c in with_ratio), strict=True):
        logs = [math.log(b) - math.log(a) for a, b in own if a is not None and b is not None]
        pairs.append((1.0, math.exp(math.fsum(logs) / len(logs))))
    return compare("geometric mean", "", with_ratio[0].direction, pairs, clock)
