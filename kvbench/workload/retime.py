"""Changes to the times of a trace: window, scale, rate, jitter, drawn arrivals; a word on times too coarse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE, Requests
from ..core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from .arrivals import MAX_ARRIVAL_NS, arrival_times_ns
from .draws import Purpose, uniforms
from .rows import I64
from .table import taken

COARSE_ROWS = 100
COARSE_SHARE = 0.5
"""Arrivals are called coarse when at least 100 rows have fewer distinct times than half their number."""


def scaled(requests: Requests, factor: float) -> Requests:
    """Every time and every delay multiplied. UsageError beyond what the clock holds."""
    if factor == 1.0:
        return requests
    arrival, think = _stretched(requests.arrival_ns, factor), _stretched(requests.think_ns, factor)
    return replace(requests, arrival_ns=arrival, think_ns=think)


def window(requests: Requests, start_s: float, duration_s: float) -> Requests:
    """What arrives from start_s on, for duration_s (0 is to the end), with all that follows on it; from t = 0."""
    if start_s == 0.0 and duration_s == 0.0:
        return requests
    arrival_s = requests.arrival_ns[openers(requests.after)] / NS_PER_S
    inside = arrival_s >= start_s
    if duration_s:
        inside &= arrival_s < start_s + duration_s
    if not inside.any():
        raise UsageError(
            f"nothing arrives from trace.start_s {start_s:g} on for trace.duration_s {duration_s:g} (0 is to the "
            f"end); the trace lasts {arrival_s.max():.6g} s"
        )
    return from_zero(taken(requests, np.flatnonzero(inside)))


def at_rate(requests: Requests, rate: float) -> Requests:
    """Arrivals stretched to a mean rate (requests/s, inf for all at once); delays stay. 0 changes nothing."""
    if rate == 0.0 or len(requests) == 1:
        return requests
    if math.isinf(rate):
        return replace(requests, arrival_ns=np.zeros(len(requests), np.int64))
    gaps = int(np.count_nonzero(requests.after == NONE)) - 1
    span_ns = int(requests.arrival_ns.max())
    if gaps == 0:
        return requests
    if span_ns == 0:
        raise UsageError("trace.rate cannot stretch a trace whose rows all have one time; remove trace.rate")
    return replace(requests, arrival_ns=_stretched(requests.arrival_ns, gaps / rate * NS_PER_S / span_ns))


def drawn(requests: Requests, rate: float, burstiness: float, seed: int) -> Requests:
    """Arrivals for a trace that has none: gamma gaps between sessions (or requests outside one); 0 is all at once.

    The first arrives at 0.
    """
    free = np.flatnonzero(requests.after == NONE)
    if rate == 0.0:
        said = (
            f"the trace has no arrivals: all {free.size} sessions or requests start at once; trace.rate draws "
            "arrivals, --max-concurrency lets so many in"
        )
        return replace(requests, notes=(*requests.notes, said)) if free.size > 1 else requests
    times = arrival_times_ns("gamma", free.size, rate, burstiness, uniforms(seed, Purpose.GAP, free.size))
    arrival = np.zeros(len(requests), np.int64)
    arrival[free] = times - times[0]
    said = f"the trace has no arrivals: drawn at {rate:g}/s, burstiness {burstiness:g}, seed {seed}"
    return replace(requests, arrival_ns=arrival, notes=(*requests.notes, said))


def recorded_rate(requests: Requests) -> float:
    """Mean rate of the arrivals, requests/s; 0 where they tell none."""
    gaps = int(np.count_nonzero(requests.after == NONE)) - 1
    span_ns = int(requests.arrival_ns.max(initial=0))
    return gaps / span_ns * NS_PER_S if gaps > 0 and span_ns else 0.0


def as_poisson(requests: Requests, rate: float, seed: int) -> Requests:
    """The same requests in the same order with exponential gaps, at a rate or (0) at their own mean; delays stay."""
    rate = rate or recorded_rate(requests)
    if rate == 0.0 or math.isinf(rate):
        return at_rate(requests, rate)
    free = np.flatnonzero(requests.after == NONE)
    times = arrival_times_ns("gamma", free.size, rate, 1.0, uniforms(seed, Purpose.GAP, free.size))
    arrival = np.zeros(len(requests), np.int64)
    arrival[free[np.argsort(requests.arrival_ns[free], kind="stable")]] = times - times[0]
    said = f"arrivals are not the trace's: poisson at {rate:.4g}/s, seed {seed} (trace.arrivals)"
    return replace(requests, arrival_ns=arrival, notes=(*requests.notes, said))


def jittered(requests: Requests, jitter_ms: float, seed: int) -> Requests:
    """Arrivals moved by up to half of `jitter_ms` either way and sorted again, from 0; a note says so."""
    if jitter_ms == 0.0:
        return requests
    shift_us = (uniforms(seed, Purpose.JITTER, len(requests)) - 0.5) * (jitter_ms * NS_PER_MS / NS_PER_US)
    free = requests.after == NONE
    moved = requests.arrival_ns + _whole(shift_us) * NS_PER_US
    arrival = np.where(free, moved - moved[free].min(), 0)
    said = f"each arrival moved by up to {jitter_ms / 2:g} ms either way (trace.jitter_ms, seed {seed})"
    return in_order(replace(requests, arrival_ns=arrival, notes=(*requests.notes, said)))


def in_order(requests: Requests) -> Requests:
    """Sorted by arrival; what follows on another request stays behind it."""
    return taken(requests, np.argsort(requests.arrival_ns[openers(requests.after)], kind="stable"))


def from_zero(requests: Requests) -> Requests:
    """Arrivals counted from the first."""
    free = requests.after == NONE
    first = int(requests.arrival_ns[free].min())
    return replace(requests, arrival_ns=np.where(free, requests.arrival_ns - first, 0))


def coarse_note(requests: Requests) -> tuple[str, ...]:
    """A warning when many arrivals share one time: their queueing is the recorder's, not the users'."""
    times, counts = np.unique(requests.arrival_ns[requests.after == NONE], return_counts=True)
    total = int(counts.sum())
    if total < COARSE_ROWS or times.size >= COARSE_SHARE * total or times.size == 1:
        return ()
    tick_ms = float(np.median(np.diff(times))) / NS_PER_MS
    return (
        f"arrivals are coarse: {total} requests at {times.size} times, up to {counts.max()} at once, mostly "
        f"{tick_ms:g} ms apart; trace.jitter_ms={tick_ms:g} spreads them",
    )


def openers(after: I64) -> I64:
    """(n,) the row with a time of its own that each row follows, itself included."""
    opener = np.where(after == NONE, np.arange(after.size), after)
    while not np.array_equal(further := opener[opener], opener):
        opener = further
    return opener


def _stretched(times_ns: I64, factor: float) -> I64:
    stretched = times_ns * factor
    if float(stretched.max(initial=0.0)) > MAX_ARRIVAL_NS:
        raise UsageError("the trace's times reach beyond 70 years; check trace.time_scale and trace.rate")
    return _whole(stretched)


def _whole(values: NDArray[np.floating[Any]]) -> I64:
    return np.rint(values).astype(np.int64)
