"""A hash ring: every engine owns many points, a key belongs to the engine of the next point. No float, no Python hash.

An engine that takes no requests is passed over: its keys go to those behind its points, all others stay.

source: uhashring, the ring of vLLM's production stack, in its default form (MD5; not its ketama form)
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5

import numpy as np

from ..core.jit import inline
from ..core.requests import I64

_DROPPED_BITS = 65
"""Of the 128 of MD5: a point is a positive int64, in the same order."""


def engine_name(engine: int) -> str:
    """What an engine is called on the ring: adding one moves no other."""
    return f"engine-{engine}"


def point_of(name: str) -> int:
    """The point of a name, 63 bits."""
    return int.from_bytes(md5(name.encode(), usedforsecurity=False).digest(), "big") >> _DROPPED_BITS


def make_ring(names: Sequence[str], points_each: int) -> tuple[I64, I64]:
    """(points,) ascending and (points,) the number of the name that owns each."""
    owner = {point_of(f"{name}-{i}"): number for number, name in enumerate(names) for i in range(points_each)}
    points = np.array(sorted(owner), np.int64)
    return points, np.array([owner[int(p)] for p in points], np.int64)


@inline
def ring_place(points, point):
    """Place of the first point at or after a key's; beyond the last one it is the first."""
    low, high = 0, points.size
    while low < high:
        middle = (low + high) >> 1
        if points[middle] < point:
            low = middle + 1
        else:
            high = middle
    return low if low < points.size else 0
