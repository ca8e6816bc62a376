"""The front against its definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.metrics.pareto import front

FIGURE = st.one_of(st.none(), st.integers(0, 5).map(float))


def beaten(point, other) -> bool:
    return other[0] >= point[0] and other[1] <= point[1] and other != point


@settings(max_examples=200)
@given(st.lists(st.tuples(FIGURE, FIGURE), max_size=12))
def test_a_point_is_on_the_front_when_nothing_beats_it(points):
    known = [p for p in points if None not in p]
    expected = [None not in p and not any(beaten(p, other) for other in known) for p in points]
    assert front(points) == expected


def test_an_example():
    assert front([(10, 5), (8, 3), (8, 4), (10, 5), (2, 3), (None, 0)]) == [True, True, False, True, False, False]
