"""Changes to the times of a trace: scale, rate, jitter; and a word on times that are too coarse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from ..core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from .arrivals import MAX_ARRIVAL_NS
from .draws import Purpose, uniforms
from .rows import I64, Rows

COARSE_ROWS = 100
COARSE_SHARE = 0.5
"""Arrivals are called coarse when at least 100 rows have fewer distinct times than half their number."""


def scaled(rows: Rows, factor: float) -> Rows:
    """Every time and every delay multiplied. UsageError beyond what the clock holds."""
    if factor == 1.0:
        return rows
    arrival, think = _stretched(rows.arrival_ns, factor), _stretched(rows.think_ns, factor)
    return replace(rows, arrival_ns=arrival, think_ns=think)


def at_rate(rows: Rows, rate: float) -> Rows:
    """Arrivals stretched to a mean rate (requests/s, inf for all at once); delays stay. 0 changes nothing."""
    if rate == 0.0 or len(rows) == 1:
        return rows
    if math.isinf(rate):
        return replace(rows, arrival_ns=np.zeros(len(rows), np.int64))
    gaps = int(np.count_nonzero(rows.after == NONE)) - 1
    span_ns = int(rows.arrival_ns.max())
    if gaps == 0:
        return rows
    if span_ns == 0:
        raise UsageError("trace.rate cannot stretch a trace whose rows all have one time; remove trace.rate")
    return replace(rows, arrival_ns=_stretched(rows.arrival_ns, gaps / rate * NS_PER_S / span_ns))


def jittered(rows: Rows, jitter_ms: float, seed: int) -> tuple[Rows, tuple[str, ...]]:
    """Arrivals moved by up to half of `jitter_ms` either way and sorted again, from 0; a note says so."""
    if jitter_ms == 0.0:
        return rows, ()
    shift_us = (uniforms(seed, Purpose.JITTER, len(rows)) - 0.5) * (jitter_ms * NS_PER_MS / NS_PER_US)
    free = rows.after == NONE
    moved = rows.arrival_ns + _whole(shift_us) * NS_PER_US
    arrival = np.where(free, moved - moved[free].min(), 0)
    order = np.argsort(arrival[_openers(rows.after)], kind="stable")
    note = f"each arrival moved by up to {jitter_ms / 2:g} ms either way (trace.jitter_ms, seed {seed})"
    return replace(rows, arrival_ns=arrival).reordered(order), (note,)


def coarse_note(rows: Rows) -> tuple[str, ...]:
    """A warning when many arrivals share one time: their queueing is the recorder's, not the users'."""
    times, counts = np.unique(rows.arrival_ns[rows.after == NONE], return_counts=True)
    total = int(counts.sum())
    if total < COARSE_ROWS or times.size >= COARSE_SHARE * total or times.size == 1:
        return ()
    tick_ms = float(np.median(np.diff(times))) / NS_PER_MS
    return (
        f"arrivals are coarse: {total} requests at {times.size} times, up to {counts.max()} at once, mostly "
        f"{tick_ms:g} ms apart; trace.jitter_ms={tick_ms:g} spreads them",
    )


def _openers(after: I64) -> I64:
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
