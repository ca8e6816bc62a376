"""What a reader must be told lest he read more into the numbers than they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.journal import FINISHED, Journal

_NS_PER_S = 1e9
_BACKLOG_SHARE = 0.2
"""A run that goes on for this share of its arrivals' span after the last of them was overloaded."""

HIT_RATE_TOLERANCE = 0.01
"""How far the generated workload may be from the hit rate that is asked for."""

_OF_STATE = {
    "warm": "the cache has seen this very workload once before t = 0: its hits stand for a second visit, "
    "never for a first one",
    "prefilled": "prefixes that several requests share lie in the cache at t = 0: no request pays for them",
}


def honest_notes(cache_state: str, journal: Journal) -> tuple[str, ...]:
    """One line each, none where there is nothing to warn of."""
    notes = []
    if cache_state in _OF_STATE:
        notes.append(_OF_STATE[cache_state])
    finished = journal.status == FINISHED
    if np.count_nonzero(finished) > 1:
        arrivals = journal.arrival_ns[finished]
        span = int(arrivals.max() - arrivals.min())
        rest = int(journal.finish_ns[finished].max() - arrivals.max())
        if span > 0 and rest > _BACKLOG_SHARE * span and _queue_grew(journal, finished):
            offered, served = _rate(finished, span), _rate(finished, span + rest)
            notes.append(
                f"overloaded: {offered:.3g} requests/s arrived and {served:.3g} were served, so the queue grew all "
                "along; these latencies measure the backlog, not the system at a rate it can bear"
            )
    return tuple(notes)


def outside_notes(outside: int, steps: int) -> tuple[str, ...]:
    """How many steps the step times were not measured for."""
    if outside == 0:
        return ()
    return (
        f"{outside:,} of {steps:,} steps lie beyond what the step times were measured for (`kvbench device show`): "
        "there they go on as they grew before",
    )


def excluded_notes(excluded: Sequence[str]) -> tuple[str, ...]:
    """What is not in the results."""
    if not excluded:
        return ()
    return (
        f"left out of latencies, throughput and hit rate: {', '.join(excluded)}; blocks, steps, evictions and "
        "preemptions are of the whole run",
    )


def target_notes(asked: float, found: int | None, prompt_tokens: int) -> tuple[str, ...]:
    """Whether an infinite cache finds the share of prompt tokens that sharing.hit_rate asks for."""
    if asked == 0.0 or found is None or prompt_tokens == 0:
        return ()
    share = found / prompt_tokens
    verdict = "is met" if abs(share - asked) <= HIT_RATE_TOLERANCE else "IS MISSED"
    return (f"sharing.hit_rate = {asked:g} {verdict}: an infinite cache finds {100 * share:.2f} % of prompt tokens",)


def beam_notes(width: int, skew: float) -> tuple[str, ...]:
    """What the rows of a run with beams stand for."""
    if width == 0:
        return ()
    return (
        f"beam search: {width} beams of every request run and hold memory, and the best is its one result; survivors "
        f"draw parents of place i as {skew:g} ** i, a stand-in for scores",
    )


def fault_notes(faults: Sequence[str]) -> tuple[str, ...]:
    """One line for each planted fault. They belong before everything else: such a table cannot be trusted."""
    return tuple(
        f"PLANTED FAULT faults.{name}: this engine is wrong on purpose, and so is the table" for name in faults
    )


def _queue_grew(journal: Journal, finished: NDArray[np.bool_]) -> bool:
    """Later arrivals waited longer: the median queue time of the last quarter is above that of the first, by far."""
    waited = (journal.scheduled_ns - journal.arrival_ns)[finished]
    waited = waited[np.argsort(journal.arrival_ns[finished], kind="stable")]
    quarter = max(waited.size // 4, 1)
    return bool(np.median(waited[-quarter:]) > 2 * np.median(waited[:quarter]) + _NS_PER_S)


def _rate(finished: NDArray[np.bool_], span_ns: int) -> float:
    return float(np.count_nonzero(finished) / (span_ns / _NS_PER_S))
