"""Intervals by resampling: blocks of a correlated series, and pairs of replicates. Seeds are fixed, so are the results.

block_interval   a percentile of latencies in order of arrival: neighbours share a queue, so whole stretches of them
                 are drawn, long enough to hold their correlation (circular block bootstrap, Politis and Romano 1992)
mean_interval    the mean of independent differences, one for each pair of replicates
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

RESAMPLES = 400
"""Of a series; two of its 400 means lie outside each bound of 95 % by chance alone, which is enough for a table."""

PAIR_RESAMPLES = 4000

FEWEST_BLOCKS = 10
"""A series that has fewer blocks than this says nothing of how much they differ."""


def block_interval(values: I64, p: float, alpha: float = 0.05) -> tuple[float, float] | None:
    """Interval of the p-quantile of a correlated series; None where it holds fewer than FEWEST_BLOCKS blocks.

    values   (n,) in order of time
    cost     O(RESAMPLES x n)
    """
    n = values.size
    length = block_length(values)
    if n < FEWEST_BLOCKS * length:
        return None
    order = np.argsort(values, kind="stable")
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    ordered = values[order].astype(np.float64)
    random = np.random.Generator(np.random.PCG64(0))
    blocks = -(-n // length)
    within = np.arange(length)
    found = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        starts = random.integers(0, n, blocks)
        drawn = rank[(starts[:, None] + within).ravel()[:n] % n]
        ends = np.cumsum(np.bincount(drawn, minlength=n))
        found[i] = ordered[np.searchsorted(ends, math.floor((n - 1) * p), side="right")]
    low, high = np.quantile(found, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def block_length(values: I64) -> int:
    """Length of a block: four times the stretch over which the series is correlated, at least n ** (1/3).

    The stretch is 1 + 2 x the sum of the autocorrelations of the ranks, up to the first pair of them that is not
    positive (Geyer 1992): ranks, so that one outlier does not hide the rest.
    """
    n = values.size
    if n < 2:
        return 1
    ordered = np.sort(values)
    ranks = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - n) / 2
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(ranks, size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    correlation /= max(correlation[0], 1.0)
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else pairs.size
    stretch = max(2 * float(pairs[:positive].sum()) - 1, 1.0)
    return min(max(math.ceil(n ** (1 / 3)), math.ceil(4 * stretch)), n)


def mean_interval(values: F64, alpha: float = 0.05) -> tuple[float, float]:
    """Interval of the mean of n >= 2 independent values. Of -values it is the mirror image."""
    random = np.random.Generator(np.random.PCG64(0))
    drawn = random.integers(0, values.size, (PAIR_RESAMPLES, values.size))
    means = np.sort(values[drawn].mean(axis=1))
    outside = int(PAIR_RESAMPLES * alpha / 2)
    return float(means[outside]), float(means[-1 - outside])
