"""Two values that differ look different, and equal ones alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbench.gate.numbers import both, ratio

micros = st.one_of(st.none(), st.integers(0, 10**13).map(lambda n: n / 1e6), st.integers(0, 3000).map(float))
"""What summary.csv holds: six digits after the point."""


@given(micros, micros)
def test_a_difference_is_seen(a, b):
    shown = both(a, b)
    assert (shown[0] == shown[1]) == (a == b)


@given(st.integers(1, 10**9), st.sampled_from([-1, 1]))
def test_so_is_one_beside_the_last_digit(n, step):
    shown = both(n / 1e6, (n + step) / 1e6)
    assert shown[0] != shown[1]


def test_a_ratio_that_is_not_1_does_not_look_like_it():
    assert ratio(1.0) == "1.0000"
    assert ratio(1.0000001) == "1.0000001"
    assert ratio(0.99999) == "0.99999"
    assert ratio(1.5) == "1.5000"
    assert ratio(None) == "-"
