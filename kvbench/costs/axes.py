"""The axis of every cost table: counts from 1 on, every octave cut into 2**bits equal parts.

    point i  =  2**(i >> bits) * (1 + (i & (2**bits - 1)) / 2**bits)

A float64 is built the same way: its exponent is the octave, its first mantissa bits are the part and the
rest is how far into the part it lies. So the place of a count in a table is two shifts of its bit pattern:
no search, no stored axis, exact. Between points a straight cost is exact; with relative spacing h a square
is off by at most h^2 / 4 and a kink (compute-bound from here on) by at most h / 4, where h <= 2**-bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Line:
    """A cost over one count: ns (points,) at the points of an axis of `bits`."""

    bits: int
    ns: F64


@dataclass(frozen=True)
class Grid:
    """A cost over two counts: the larger of two bounds, each (row points, column points).

    The bounds are kept apart because each is smooth, while their maximum has a kink along a curve, which
    a coarse grid would blur. A measured cost is one bound; the other is zeros.
    """

    row_bits: int
    column_bits: int
    compute_ns: F64
    memory_ns: F64


def axis_points(bits: int, last: int) -> F64:
    """The points of an axis, at least two, from 1 to the first one at or above `last`."""
    index = np.arange(((max(last, 2) - 1).bit_length() << bits) + 1)
    octave = (1 << (index >> bits)).astype(np.float64)
    return octave * (1.0 + (index & ((1 << bits) - 1)) / (1 << bits))


def sample_line(cost: Callable[[F64], F64], bits: int, last: int) -> Line:
    """Sample cost(count) for counts 1..last."""
    return Line(bits, cost(axis_points(bits, last)))
