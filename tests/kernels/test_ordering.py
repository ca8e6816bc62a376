"""The stable sort and the seeded shuffle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.kernels import ordering

from ..reference.splitmix import SplitMix, shuffled


@entry
def sort_by_key(key, value, n):
    """Python calls entries only."""
    ordering.sort_by_key(key, value, n)


@entry
def _shuffle(value, n, state):
    return ordering.shuffle(value, n, state)


def shuffle(value, n, state):
    """Compiled code hands out Python's int, and would take one for an int64."""
    return np.uint64(_shuffle(value, n, np.uint64(state)))


@given(st.lists(st.integers(-3, 3), max_size=60), st.integers(0, 5))
def test_the_sort_is_that_of_python(keys, spare):
    n = len(keys)
    key = np.array([*keys, *[9] * spare], np.int64)
    value = np.arange(n + spare)
    sort_by_key(key, value, n)
    order = sorted(range(n), key=keys.__getitem__)
    assert value.tolist() == [*order, *range(n, n + spare)]  # what lies behind n stays
    assert key[:n].tolist() == sorted(keys)


def test_the_generator_is_splitmix64():
    # The first outputs from state 0, as published with the generator.
    draws = SplitMix(0)
    assert [hex(draws()) for _ in range(3)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@given(st.integers(0, 2**63 - 1), st.integers(0, 40))
def test_the_shuffle_is_that_of_plain_python(seed, n):
    value = np.arange(n)
    state = shuffle(value, n, np.uint64(seed))
    again = shuffle(value, n, state)
    draws = SplitMix(seed)
    first = shuffled(list(range(n)), draws)
    assert value.tolist() == shuffled(first, draws)
    assert int(again) == draws.state


@pytest.mark.parametrize("n", [2, 5])
def test_every_place_is_as_likely(n):
    counts = np.zeros((n, n), np.int64)
    state = np.uint64(7)
    for _ in range(3000):
        value = np.arange(n)
        state = shuffle(value, n, state)
        counts[np.arange(n), value] += 1
    expected = 3000 / n
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
