"""Promises about latency: joint ones, which each sequence keeps or breaks, and ones about a percentile of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.journal import CANCELLED, FINISHED, NEVER, Journal
from ..core.units import NS_PER_MS

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Slo:
    """Upper bounds in ms, allowed themselves; 0 promises nothing. tpot of a single token is kept by any bound."""

    ttft: float = 0.0
    tpot: float = 0.0
    e2el: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.ttft or self.tpot or self.e2el)

    def __str__(self) -> str:
        """As --goodput takes it."""
        bounds = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2el}
        return " ".join(f"{name}:{bound:g}" for name, bound in bounds.items() if bound)


def kept(slo: Slo, journal: Journal, ttft_ns: I64, tpot_ns: I64, e2el_ns: I64) -> NDArray[np.bool_]:
    """(num_sequences,) finished within every bound. The times are those of metrics.latency.SequenceTimes."""
    good = journal.status == FINISHED
    for bound, times in ((slo.ttft, ttft_ns), (slo.tpot, tpot_ns), (slo.e2el, e2el_ns)):
        if bound:
            good &= (times == NEVER) | (times <= bound * NS_PER_MS)
    return good


def promised(journal: Journal) -> int:
    """Sequences that count against a share of kept promises: all but those that their clients gave up."""
    return int((journal.status != CANCELLED).sum())


@dataclass(frozen=True)
class Promise:
    """A percentile of one latency stays within a bound of ms, by itself: `ttft.p99:500`."""

    latency: str
    percentile: float
    bound: float

    def __str__(self) -> str:
        return f"{self.latency}.p{self.percentile:g}:{self.bound:g}"

    @property
    def name(self) -> str:
        return f"{self.latency.upper()} p{self.percentile:g}"


def percentile_of_all(times_ns: I64, journal: Journal, percentile: float) -> float:
    """In ms, over all sequences but cancelled ones; those that did not finish count as endless. NaN: there is none."""
    counted = journal.status != CANCELLED
    finished = journal.status == FINISHED
    has = counted & ~(finished & (times_ns == NEVER))
    values = np.sort(np.where(finished, times_ns / NS_PER_MS, np.inf)[has])
    if not values.size:
        return float("nan")
    position = (values.size - 1) * percentile / 100
    below = int(position)
    low, high = float(values[below]), float(values[min(below + 1, values.size - 1)])
    share = position - below
    return low if share == 0 or low == high else low + (high - low) * share
