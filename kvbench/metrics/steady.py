"""The steady part of a run, with filling and draining apart.

Filling ends when the sequences in the system first reach the median that they have while requests arrive; draining
begins with the last arrival. Where all arrive at once there is no steady part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.journal import FINISHED, Journal
from ..core.units import NS_PER_S
from .percentiles import Distribution, distribution

I64 = NDArray[np.int64]

STAGES = ("fill", "steady", "drain")


@dataclass(frozen=True)
class Stage:
    """A stretch of the run. ttft: of finished sequences that arrived in it, in ns; finished: that ended in it.

    The last arrival belongs to the steady part.
    """

    start_ns: int
    end_ns: int
    arrived: int
    finished: int
    output_tokens: int
    ttft: Distribution

    @property
    def per_second(self) -> float | None:
        """Sequences that finished in it, a second."""
        return self.finished * NS_PER_S / (self.end_ns - self.start_ns) if self.end_ns > self.start_ns else None


def stages(journal: Journal) -> dict[str, Stage]:
    """STAGES -> what happened there; empty when nothing finished."""
    done = journal.status == FINISHED
    if not done.any():
        return {}
    arrival, finish = journal.arrival_ns[done], journal.finish_ns[done]
    first, last, end = int(arrival.min()), int(arrival.max()), int(finish.max())
    full = fill_end(arrival, finish)
    bounds = (first, full, last, end)
    tokens, ttft = journal.output_tokens[done], (journal.first_token_ns - journal.arrival_ns)[done]
    ended, came = _stage_of(finish, full, last), np.where(arrival < full, 0, 1)
    found = {}
    for i, name in enumerate(STAGES):
        found[name] = Stage(
            bounds[i],
            bounds[i + 1],
            int((came == i).sum()),
            int((ended == i).sum()),
            int(tokens[ended == i].sum()),
            distribution(ttft[came == i]),
        )
    return found


def _stage_of(moment: I64, full: int, last: int) -> I64:
    return np.where(moment < full, 0, np.where(moment <= last, 1, 2))


def fill_end(arrival: I64, finish: I64) -> int:
    """When the number of sequences between arrival and finish first reaches its median over the arrivals, in ns."""
    first, last = int(arrival.min()), int(arrival.max())
    if first == last:
        return first
    moments = np.concatenate((arrival, finish))
    steps = np.concatenate((np.ones(arrival.size, np.int64), np.full(finish.size, -1, np.int64)))
    order = np.argsort(moments, kind="stable")
    moments, inside = moments[order], np.cumsum(steps[order])
    weight = np.diff(np.minimum(moments, last), append=last)
    by_count = np.argsort(inside, kind="stable")
    reached = np.cumsum(weight[by_count])
    median = inside[by_count[np.searchsorted(reached, (last - first + 1) // 2)]]
    return int(moments[np.argmax((inside >= median) & (weight > 0))])
