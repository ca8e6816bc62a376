"""Timing: every probe once in each round, so that a slow moment of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_ROUNDS, MOST_ROUNDS = 3, 15

Progress = Callable[[int, int], None]


def _nothing() -> None:
    """A probe that needs no preparation."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What is timed. run() does `work` bytes, operations or tokens; prepare() goes before it and is not timed."""

    name: str
    run: Callable[[], object]
    work: float
    prepare: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Timing:
    """seconds: the median of the rounds. spread: half the distance of its quartiles over it. first_s: the first call,
    which compiles or loads, and is in no other figure."""

    seconds: float
    spread: float
    rounds: int
    first_s: float
    work: float

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / self.seconds


def time_rounds(probes: Sequence[Probe], seconds: float, progress: Progress) -> dict[Probe, Timing]:
    """All of them in interleaved rounds, as many as fit into `seconds` within LEAST_ROUNDS and MOST_ROUNDS.

    Two calls of each come first: one that may compile, one that warms and says how long a round is.
    """
    first = {}
    for i, probe in enumerate(probes):
        first[probe] = _timed(probe)
        progress(i + 1, 2 * len(probes))
    warm = sum(_timed(probe) for probe in probes)
    rounds = int(min(max(seconds / max(warm, 1e-9), LEAST_ROUNDS), MOST_ROUNDS))
    taken: dict[Probe, list[float]] = {probe: [] for probe in probes}
    for i in range(rounds):
        for probe in probes:
            taken[probe].append(_timed(probe))
        progress(len(probes) + len(probes) * (i + 1) // rounds, 2 * len(probes))
    return {probe: _timing(taken[probe], first[probe], probe.work) for probe in probes}


def _timed(probe: Probe) -> float:
    probe.prepare()
    begin = time.perf_counter()
    probe.run()
    return time.perf_counter() - begin


def _timing(taken: Sequence[float], first_s: float, work: float) -> Timing:
    low, median, high = np.quantile(taken, (0.25, 0.5, 0.75))
    return Timing(float(median), float((high - low) / 2 / median), len(taken), first_s, work)
