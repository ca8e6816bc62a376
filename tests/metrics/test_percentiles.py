"""Percentiles against numpy over the expanded samples; the interval against scipy's binomial."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from kvbench.metrics.percentiles import (
    EMPTY,
    SMALLEST_FOR_P99,
    binomial_quantile,
    distribution,
    fewest_samples,
    order_statistics,
)

rows = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 40)), max_size=60)


@given(rows)
def test_weighted_rows_are_the_expanded_samples(pairs):
    values = np.array([v for v, _ in pairs], np.int64)
    counts = np.array([c for _, c in pairs], np.int64)
    samples = np.repeat(values, counts)
    found = distribution(values, counts)
    if samples.size == 0:
        assert found == EMPTY
        return
    assert found.n == samples.size
    assert [found.p50, found.p90, found.p99] == np.percentile(samples, [50, 90, 99]).tolist()
    assert found.mean == sum(samples.tolist()) / samples.size
    assert found == distribution(samples)


@given(st.integers(1, 5000), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_bounds_are_the_order_statistics_of_the_binomial(n, p):
    low, high = binom.ppf(0.025, n, p), binom.ppf(0.975, n, p) + 1
    expected = (int(low) if low >= 1 else None, int(high) if high <= n else None)
    assert order_statistics(n, p, 0.05) == expected


@pytest.mark.parametrize("n", [10_000, 1_000_000, 40_000_000])
def test_binomial_quantile_of_large_n(n):
    for q in (0.025, 0.5, 0.975):
        assert binomial_quantile(q, n, 0.99) == int(binom.ppf(q, n, 0.99))


def test_both_bounds_of_p99_exist_from_368_on():
    values = np.arange(SMALLEST_FOR_P99, dtype=np.int64)
    assert distribution(values).p99_high == values[-1]
    assert distribution(values[:-1]).p99_high is None
    assert distribution(values[:-1]).p99_low is not None


def test_mean_of_samples_whose_sum_exceeds_int64():
    values = np.full(4, 1 << 62, np.int64)
    assert distribution(values).mean == float(1 << 62)
    assert distribution(np.array([10**13], np.int64), np.array([10**7], np.int64)).mean == 1e13


@pytest.mark.parametrize(("p", "needs"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_fewest_samples_for_both_bounds(p, needs):
    assert fewest_samples(p) == needs


@given(rows)
def test_every_interval_is_of_its_order_statistics(pairs):
    samples = np.sort(np.repeat([v for v, _ in pairs], [c for _, c in pairs]).astype(np.int64))
    found = distribution(samples)
    for p, low, high in ((0.5, found.p50_low, found.p50_high), (0.9, found.p90_low, found.p90_high)):
        ranks = order_statistics(samples.size, p, 0.05) if samples.size else (None, None)
        assert [low, high] == [None if k is None else samples[k - 1] for k in ranks]
