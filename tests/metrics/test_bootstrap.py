"""Bootstraps: coverage of correlated series by simulation, and what must hold of any interval."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.metrics.bootstrap import FEWEST_BLOCKS, block_interval, block_length, mean_interval
from kvbench.metrics.percentiles import distribution

SERIES = 1000 if "KVBENCH_LONG" in os.environ else 60
RHO, P90_OF_NORMAL = 0.9, 1.2815515655446004


def autoregressive(series: int, n: int) -> np.ndarray:
    """(series, n) of unit variance whose neighbours correlate with RHO, in whole units of 1e-6."""
    random = np.random.Generator(np.random.PCG64(5))
    noise = random.normal(size=(series, n))
    x = noise.copy()
    for i in range(1, n):
        x[:, i] = RHO * x[:, i - 1] + np.sqrt(1 - RHO**2) * noise[:, i]
    return np.rint(x * 1e6).astype(np.int64)


def test_blocks_cover_a_correlated_percentile_where_order_statistics_do_not():
    truth = P90_OF_NORMAL * 1e6
    iid = blocks = refused = 0
    for x in autoregressive(SERIES, 1500):
        d = distribution(x)
        iid += d.p90_low <= truth <= d.p90_high
        interval = block_interval(x, 0.9)
        refused += interval is None  # it seems correlated so far that too few blocks are left
        blocks += interval is not None and interval[0] <= truth <= interval[1]
    assert refused / SERIES < 0.05
    assert iid / SERIES < 0.75  # as said: 0.63 at rho 0.9
    assert blocks / SERIES > 0.85


def test_independent_samples_need_no_long_blocks():
    random = np.random.Generator(np.random.PCG64(1))
    lengths = [block_length(random.integers(0, 10**9, 4000)) for _ in range(5)]
    assert max(lengths) <= 20
    assert block_length(autoregressive(1, 4000)[0]) > 30


def test_a_short_series_has_no_interval():
    assert block_interval(np.arange(FEWEST_BLOCKS, dtype=np.int64), 0.5) is None
    assert block_interval(np.zeros(0, np.int64), 0.5) is None
    assert block_interval(np.full(200, 7, np.int64), 0.99) == (7.0, 7.0)


def test_the_same_series_has_the_same_interval():
    x = autoregressive(1, 800)[0]
    assert block_interval(x, 0.99) == block_interval(x.copy(), 0.99)


@settings(max_examples=25)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_the_interval_of_a_mean_is_mirrored_and_holds_it(values):
    x = np.array(values)
    low, high = mean_interval(x)
    assert x.min() - 1e-9 <= low <= high <= x.max() + 1e-9
    assert mean_interval(-x) == pytest.approx((-high, -low), abs=1e-9)


def test_the_interval_of_a_mean_covers_it():
    random = np.random.Generator(np.random.PCG64(3))
    drawn = random.normal(2.0, 1.0, (200, 20))
    covered = [low <= 2.0 <= high for low, high in map(mean_interval, drawn)]
    assert 0.85 < np.mean(covered) < 0.99
