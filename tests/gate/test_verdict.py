"""Verdicts: what they say of known pairs, and that they are the opposite when the sides change places."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.gate.verdict import (
    BETTER,
    CHANGED,
    FEWEST_PAIRS,
    INCONCLUSIVE,
    MODELLED,
    NOT_MEASURED,
    SAME,
    WORSE,
    compare,
    geometric_mean,
)
from kvbench.metrics.catalogue import HIGHER, LOWER, NEITHER

OPPOSITE = {BETTER: WORSE, WORSE: BETTER}
values = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.floats(1e-6, 1e6))
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=9)
directions = st.sampled_from([LOWER, HIGHER, NEITHER])
clocks = st.sampled_from([MODELLED, "measured"])


@settings(max_examples=80)
@given(pairs, directions, clocks)
def test_the_verdict_is_the_opposite_with_the_sides_changed(given_pairs, direction, clock):
    there = compare("m", "", direction, given_pairs, clock)
    back = compare("m", "", direction, [(b, a) for a, b in given_pairs], clock)
    assert back.verdict == OPPOSITE.get(there.verdict, there.verdict)
    if there.ratio is None:
        assert back.ratio is None
    else:
        assert back.ratio == pytest.approx(1 / there.ratio)
    if there.low is not None:
        assert (back.low, back.high) == (pytest.approx(1 / there.high), pytest.approx(1 / there.low))


@settings(max_examples=100)
@given(pairs, clocks)
def test_what_is_better_when_less_is_worse_when_more(given_pairs, clock):
    less, more = (compare("m", "", direction, given_pairs, clock).verdict for direction in (LOWER, HIGHER))
    assert more == OPPOSITE.get(less, less)


@settings(max_examples=100)
@given(pairs, clocks)
def test_same_is_equality_of_every_pair(given_pairs, clock):
    verdict = compare("m", "", LOWER, given_pairs, clock).verdict
    assert (verdict == SAME) == all(a == b and a is not None for a, b in given_pairs)


@given(pairs, directions, clocks)
def test_a_side_without_a_value_is_no_verdict(given_pairs, direction, clock):
    found = compare("m", "", direction, given_pairs, clock)
    assert (found.verdict == NOT_MEASURED) == any(None in pair for pair in given_pairs)
    assert bool(found.without) == (found.verdict == NOT_MEASURED)


@pytest.mark.parametrize(
    ("given_pairs", "direction", "verdict"),
    [
        ([(10.0, 10.000001)], LOWER, WORSE),
        ([(10.0, 9.0)], LOWER, BETTER),
        ([(10.0, 9.0)], HIGHER, WORSE),
        ([(10.0, 9.0)], NEITHER, CHANGED),
        ([(10.0, 9.0), (10.0, 10.0)], LOWER, BETTER),
        ([(10.0, 9.0), (10.0, 11.0)], LOWER, INCONCLUSIVE),
        ([(0.0, 3.0)], LOWER, WORSE),
        ([(None, 3.0)], LOWER, NOT_MEASURED),
        ([(3.0, None)], HIGHER, NOT_MEASURED),
        ([(10.0, 5.0)] * 8 + [(10.0, 10.1)], LOWER, BETTER),
        ([(10.0, 5.0), (5.0, 10.0)] * 4, LOWER, INCONCLUSIVE),
    ],
)
def test_modelled_values_are_exact(given_pairs, direction, verdict):
    assert compare("m", "", direction, given_pairs, MODELLED).verdict == verdict


def test_measured_values_need_pairs_and_an_interval():
    few = [(10.0, 5.0)] * (FEWEST_PAIRS - 1)
    assert compare("m", "", LOWER, few, "measured").verdict == INCONCLUSIVE
    enough = [(10.0, 5.0 + i / 10) for i in range(FEWEST_PAIRS)]
    found = compare("m", "", LOWER, enough, "measured")
    assert found.verdict == BETTER
    assert found.low < found.ratio < found.high < 1
    noise = [(10.0, 10.0 + (-1) ** i) for i in range(FEWEST_PAIRS + 1)]
    assert compare("m", "", LOWER, noise, "measured").verdict == INCONCLUSIVE


def test_geometric_mean_of_ratios():
    halved, doubled = ([(2.0, 2.0 * f), (3.0, 3.0 * f)] for f in (0.5, 8.0))
    compared = [compare(name, "ms", LOWER, pairs, MODELLED) for name, pairs in (("a", halved), ("b", doubled))]
    assert geometric_mean(compared, MODELLED).ratio == pytest.approx(math.sqrt(0.5 * 8))
    assert geometric_mean([compare("a", "", LOWER, [(0.0, 1.0)], MODELLED)], MODELLED) is None
