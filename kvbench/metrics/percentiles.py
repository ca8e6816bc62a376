"""Percentiles, exact: of samples and of weighted (value, count) rows, with the interval beside p99.

Linear interpolation between order statistics, as numpy.percentile does it. Rows are never expanded: the
order statistics of the pooled samples are found in the running sum of the counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

ALPHA = 0.05
"""Of the two-sided interval around p99."""

SMALLEST_FOR_P99 = 368
"""Fewest samples for which both bounds of that interval exist."""


@dataclass(frozen=True)
class Distribution:
    """What a table says about one latency, in the unit of the values; None: the number does not exist.

    p99_low, p99_high   order statistics that hold the true p99 with 95 % if the samples are independent
                        (latencies in a queue are not: the interval is too narrow then); so for the others
    """

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p99_low: float | None
    p99_high: float | None
    n: int
    p50_low: float | None = None
    p50_high: float | None = None
    p90_low: float | None = None
    p90_high: float | None = None


_AT_ONCE = 1 << 18
"""Rows of a sum, whose parts take memory of their own."""

EMPTY = Distribution(None, None, None, None, None, None, 0)


def distribution(values: I64, counts: I64 | None = None) -> Distribution:
    """The distribution of samples, or of rows with counts >= 0.

    values   (rows,) int64, in any order
    counts   (rows,) int64, how often each value occurred; None = once
    cost     O(rows log rows), independent of the counts
    """
    order = np.argsort(values, kind="stable")
    values, counts = values[order], np.ones(values.size, np.int64) if counts is None else counts[order]
    del order  # this and all below is what a run of a million requests takes most memory for
    ends = np.cumsum(counts)
    n = int(ends[-1]) if ends.size else 0
    if n == 0:
        return EMPTY

    def bounds(p: float) -> list[float | None]:
        return [None if k is None else _ranked(values, ends, k - 1) for k in order_statistics(n, p, ALPHA)]

    (p50_low, p50_high), (p90_low, p90_high), (p99_low, p99_high) = map(bounds, (0.5, 0.9, 0.99))
    return Distribution(
        mean=_total(values, counts) / n,
        p50=_percentile(values, ends, 50),
        p90=_percentile(values, ends, 90),
        p99=_percentile(values, ends, 99),
        p99_low=p99_low,
        p99_high=p99_high,
        n=n,
        p50_low=p50_low,
        p50_high=p50_high,
        p90_low=p90_low,
        p90_high=p90_high,
    )


def percentiles(values: I64, counts: I64, percents: Sequence[float]) -> list[float]:
    """These percentiles of rows with counts >= 0, as `distribution` has them; empty where there are no samples."""
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    if not ends.size or not ends[-1]:
        return []
    return [_percentile(values, ends, percent) for percent in percents]


def _total(values: I64, counts: I64) -> int:
    """Sum of values x counts, exact: hours in ns times a million samples do not fit in an int64."""
    total = 0
    for first in range(0, values.size, _AT_ONCE):
        part, count = values[first : first + _AT_ONCE], counts[first : first + _AT_ONCE]
        total += (int(((part >> 32) * count).sum()) << 32) + int(((part & 0xFFFFFFFF) * count).sum())
    return total


def _ranked(values: I64, ends: I64, rank: int) -> float:
    """The sample of this rank (from 0). ends[i] samples lie at or before row i."""
    return float(values[np.searchsorted(ends, rank, side="right")])


def _percentile(values: I64, ends: I64, percent: float) -> float:
    n = int(ends[-1])
    position = (n - 1) * (percent / 100)
    below = math.floor(position)
    share = position - below
    a, b = _ranked(values, ends, below), _ranked(values, ends, min(below + 1, n - 1))
    # numpy interpolates from the nearer end, so that the result is monotone in `share`
    return a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share)


def order_statistics(n: int, p: float, alpha: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the two-sided interval around the p-quantile of n independent samples.

    l = binom.ppf(alpha / 2, n, p), u = binom.ppf(1 - alpha / 2, n, p) + 1; None where l < 1 or u > n.
    """
    low = binomial_quantile(alpha / 2, n, p)
    high = binomial_quantile(1 - alpha / 2, n, p) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def fewest_samples(p: float, alpha: float = ALPHA) -> int:
    """Fewest samples for which both bounds of that interval exist: 36 for p90, 72 for p95, 368 for p99."""
    n = 1
    while None in order_statistics(n, p, alpha):
        n += 1
    return n


def binomial_quantile(q: float, n: int, p: float) -> int:
    """The smallest k with P(Binomial(n, p) <= k) >= q.

    Sums the probabilities of a window of 12 standard deviations around the mean, found by recurrence from
    the mode and normalised, which is exact to 1e-12 there. (scipy.stats gives the same and takes longer to
    import than a run of a whole trace.)
    """
    reach = int(12 * math.sqrt(n * p * (1 - p))) + 30
    mode = min(int((n + 1) * p), n)
    first, last = max(mode - reach, 0), min(mode + reach, n)
    up = np.arange(mode, last, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    odds = p / (1 - p)
    above = np.cumprod((n - up) / (up + 1) * odds)
    below = np.cumprod(down / (n - down + 1) / odds)[::-1]
    mass = np.concatenate((below, [1.0], above))
    return first + int(np.searchsorted(np.cumsum(mass) / mass.sum(), q, side="left"))
