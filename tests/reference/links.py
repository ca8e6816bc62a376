"""Queues of links as plain Python, in exact fractions: who moves, and when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Move:
    """work: ns that the link needs for it by itself."""

    number: int
    begin: int
    work: int
    end: Fraction = Fraction(-1)


def fifo(moves: list[Move]) -> None:
    """One after the other, in the order in which they came; each has the whole link."""
    free = Fraction(0)
    for move in moves:
        free = move.end = max(free, Fraction(move.begin)) + move.work


def fair(moves: list[Move]) -> None:
    """All that are under way have the same share at every moment. moves: in order of begin."""
    left: dict[int, Fraction] = {}
    by_number = {m.number: m for m in moves}
    coming = list(moves)
    now = Fraction(0)
    while coming or left:
        until = Fraction(coming[0].begin) if coming else None
        first = min(left.values()) * len(left) if left else None
        if first is not None and (until is None or now + first <= until):
            passed, now = first / len(left), now + first
            left = {n: w - passed for n, w in left.items()}
            for number in [n for n, w in left.items() if w == 0]:
                by_number[number].end = now
                del left[number]
        else:
            assert until is not None
            left = {n: w - (until - now) / len(left) for n, w in left.items()}
            now = until
            move = coming.pop(0)
            left[move.number] = Fraction(move.work)
            if move.work == 0:
                move.end = now
                del left[move.number]
