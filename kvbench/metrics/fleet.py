"""What a run of several engines shows of each, and of how evenly they were used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.journal import FINISHED, NEVER, Counters, Journal
from ..core.requests import I64, Requests
from ..core.units import NS_PER_MS
from .latency import sequence_times
from .percentiles import distribution

HOT_PREFIXES = 10


@dataclass(frozen=True)
class EngineFigures:
    """One engine. requests: that it got. None: nothing was admitted, or finished."""

    engine: int
    group: str
    blocks: int
    requests: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    output_tokens: int
    steps: int
    busy_share: float
    queue_p50_ms: float | None
    queue_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    preemptions: int
    evicted_blocks: int


@dataclass(frozen=True)
class FleetFigures:
    """All engines.

    load_cv          coefficient of variation of requests in flight over the engines, mean over time
    hot_replicas     engines that served each of the hottest prefixes, mean; None where no two requests share one
    predicted_bias   tokens that the router believed cached minus those found, mean; None without a belief
    predicted_error  the same without sign
    against_belief   share of requests that went, for balance, elsewhere than where most was believed cached
    route_ms         what decisions took, mean
    """

    engines: tuple[EngineFigures, ...]
    load_cv: float | None
    hot_replicas: float | None
    predicted_bias: float | None
    predicted_error: float | None
    against_belief: float | None
    route_ms: float


@dataclass(frozen=True)
class Regret:
    """One figure, as the run's own router and as the oracle has it; None: it does not exist."""

    figure: str
    own: float | None
    oracle: float | None


def fleet_figures(
    journal: Journal,
    requests: Requests,
    counters: Sequence[Counters],
    groups: Sequence[str],
    first_keys: I64,
) -> FleetFigures:
    """counters: of each engine. first_keys: (sequences,) of the first block of each prompt; NEVER: it has none."""
    engine, times = journal.columns["engine"], sequence_times(journal)
    end = max((c.end_ns for c in counters), default=0)
    found = []
    for number, (count, group) in enumerate(zip(counters, groups, strict=True)):
        own = engine == number
        done = own & (journal.status == FINISHED)
        queue, ttft = distribution(times.queue_ns[done]), distribution(times.ttft_ns[done])
        asked = count.admitted_prompt_tokens
        found.append(
            EngineFigures(
                engine=number,
                group=group,
                blocks=count.num_blocks,
                requests=int(own.sum()),
                finished=int(done.sum()),
                prompt_tokens=int(requests.prompt_tokens[journal.request_index[own]].sum()),
                cached_tokens=count.matched_tokens,
                hit_rate=count.matched_tokens / asked if asked else None,
                output_tokens=int(journal.output_tokens[own].sum()),
                steps=count.num_steps,
                busy_share=_busy_share(count, end),
                queue_p50_ms=_ms(queue.p50),
                queue_p99_ms=_ms(queue.p99),
                ttft_p50_ms=_ms(ttft.p50),
                ttft_p99_ms=_ms(ttft.p99),
                preemptions=count.preemptions,
                evicted_blocks=count.evicted_blocks,
            )
        )
    predicted = journal.columns["predicted_cached_tokens"]
    known = (predicted != NEVER) & (journal.scheduled_ns != NEVER)
    against = (journal.columns["best_predicted_tokens"] > predicted)[predicted != NEVER]
    off = (predicted - journal.cached_tokens)[known]
    return FleetFigures(
        tuple(found),
        load_cv(journal, len(counters)),
        hot_replicas(engine, first_keys),
        float(off.mean()) if off.size else None,
        float(np.abs(off).mean()) if off.size else None,
        float(against.mean()) if against.size else None,
        _mean_route(journal),
    )


def _busy_share(count: Counters, end: int) -> float:
    """Of the ranks of an instance, the mean. A step that a restart cut short is counted whole."""
    return min(count.busy_ns / (end * count.num_engines), 1.0) if end else 0.0


def load_cv(journal: Journal, num_engines: int) -> float | None:
    """Standard deviation over mean of the requests in flight at each engine, mean over the time in which there are any.

    None for one engine, and where nothing took time.
    """
    sent = (journal.columns["engine"] != NEVER) & (journal.finish_ns != NEVER)
    engine = np.tile(journal.columns["engine"][sent], 2)
    time = np.concatenate([journal.arrival_ns[sent], journal.finish_ns[sent]])
    change = np.repeat([1, -1], int(sent.sum()))
    if num_engines < 2 or not time.size:
        return None
    by_engine = np.lexsort((change, time, engine))
    load = np.empty(time.size, np.int64)
    running = np.cumsum(change[by_engine])  # every engine comes back to 0, so one sum serves them all
    load[by_engine] = running - change[by_engine]
    by_time = np.argsort(time, kind="stable")
    total = np.cumsum(change[by_time])
    squares = np.cumsum((2 * load * change + 1)[by_time])
    lasts = np.diff(time[by_time], append=time[by_time][-1:])
    busy = (total > 0) & (lasts > 0)
    if not busy.any():
        return None
    mean = total[busy] / num_engines
    variance = np.maximum(squares[busy] / num_engines - mean**2, 0.0)
    return float(np.average(np.sqrt(variance) / mean, weights=lasts[busy]))


def hot_replicas(engine: I64, first_keys: I64) -> float | None:
    """On how many engines the prefixes that most requests begin with were computed or found, mean."""
    known = (engine != NEVER) & (first_keys != NEVER)
    keys, number, count = np.unique(first_keys[known], return_inverse=True, return_counts=True)
    shared = np.flatnonzero(count > 1)
    hottest = shared[np.argsort(-count[shared], kind="stable")][:HOT_PREFIXES]
    if not hottest.size:
        return None
    pairs = np.unique(np.stack([number, engine[known]]), axis=1)
    homes = np.bincount(pairs[0], minlength=keys.size)
    return float(homes[hottest].mean())


def _mean_route(journal: Journal) -> float:
    ns = journal.columns["route_ns"]
    known = ns != NEVER
    return float(ns[known].mean()) / NS_PER_MS if known.any() else 0.0


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS
