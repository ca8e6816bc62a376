"""The Pareto front of points that trade one figure against another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

Pair = tuple[float | None, float | None]


def front(points: Sequence[Pair]) -> list[bool]:
    """Whether no other point is at least as good in both figures and better in one.

    points   (gain: more is better, cost: less is better); with a figure that does not exist, never on the front
    Equal points are on the front together.
    """
    known = [(-gain, cost, i) for i, (gain, cost) in enumerate(points) if gain is not None and cost is not None]
    marks = [False] * len(points)
    least = math.inf
    for _, group in groupby(sorted(known), key=lambda point: point[0]):
        same_gain = list(group)
        cost = same_gain[0][1]
        if cost < least:
            least = cost
            for _, other, i in same_gain:
                marks[i] = other == cost
    return marks
