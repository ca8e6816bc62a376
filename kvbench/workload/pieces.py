"""Pieces of prompts, some for each request, and how the prompts of turns grow out of each other.

    prompt of a turn = prompt of the turn it goes on from + answer of that turn + its own pieces

A piece is a run of a virtual stream: (stream, start, length). Rows of pieces are ragged arrays; all is done for whole
columns, one level of turns at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_SEGMENTS = 30_000_000
"""A session of t turns has about t * t pieces; beyond this the table takes over 2 GB."""


@dataclass(frozen=True)
class Pieces:
    """Row i owns runs[:, offset[i] : offset[i + 1]]; runs is (3, m): stream, start, length."""

    offset: I64
    runs: I64

    @property
    def counts(self) -> I64:
        return np.diff(self.offset)

    def of(self, rows: I64) -> Pieces:
        """Those of some rows, in that order; a row NONE has none."""
        counts = np.where(rows == NONE, 0, self.counts[rows])
        offset = _offsets(counts)
        place = np.arange(offset[-1]) + np.repeat(self.offset[rows] - offset[:-1], counts)
        return Pieces(offset, self.runs[:, place])


def single(stream: I64, length: I64, start: I64 | int = 0) -> Pieces:
    """One piece a row; none where the length is 0."""
    kept = length > 0
    runs = np.stack([stream[kept], np.broadcast_to(start, length.shape)[kept], length[kept]])
    return Pieces(_offsets(kept.astype(np.int64)), runs)


def side_by_side(*parts: Pieces) -> Pieces:
    """The pieces of each row of the first, then of the second, and so on."""
    counts = [part.counts for part in parts]
    offset = _offsets(sum(counts[1:], start=counts[0]))
    runs = np.empty((3, int(offset[-1])), np.int64)
    begin = offset[:-1].copy()
    for part, count in zip(parts, counts, strict=True):
        runs[:, np.arange(part.runs.shape[1]) + np.repeat(begin - part.offset[:-1], count)] = part.runs
        begin += count
    return Pieces(offset, runs)


def one_below_the_other(parts: list[Pieces]) -> Pieces:
    """The rows of the first, then those of the second, and so on."""
    counts = np.concatenate([part.counts for part in parts])
    return Pieces(_offsets(counts), np.concatenate([part.runs for part in parts], axis=1))


def prompts(parent: I64, answer: Pieces, own: Pieces) -> Pieces:
    """The prompt of every row. parent: (n,) the row that it goes on from, before it; NONE for an opener."""
    levels = _levels(parent)
    _check_size(parent, levels, answer.counts, own.counts)
    if len(levels) == 1:
        return own
    level = own.of(levels[0])
    place = np.empty(parent.size, np.int64)  # of a row in its level
    built = [level]
    for above, rows in pairwise(levels):
        place[above] = np.arange(above.size)
        level = side_by_side(level.of(place[parent[rows]]), answer.of(parent[rows]), own.of(rows))
        built.append(level)
    order = np.argsort(np.concatenate(levels), kind="stable")
    return one_below_the_other(built).of(order)


def _levels(parent: I64) -> list[I64]:
    """Rows by their number of ancestors."""
    depth = np.where(parent == NONE, 0, 1)
    further = np.where(parent == NONE, np.arange(parent.size), parent)
    while not np.array_equal(next_ := further[further], further):
        depth += depth[further]
        further = next_
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1])


def _check_size(parent: I64, levels: list[I64], answer: I64, own: I64) -> None:
    counts = own.copy()
    total = int(counts[levels[0]].sum())
    for rows in levels[1:]:
        counts[rows] += counts[parent[rows]] + answer[parent[rows]]
        total += int(counts[rows].sum())
        if total > MAX_SEGMENTS:
            raise UsageError(f"sessions.turns makes over {MAX_SEGMENTS} prompt pieces; lower it or num_prompts")


def _offsets(counts: I64) -> I64:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
