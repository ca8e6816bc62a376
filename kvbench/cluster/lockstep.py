"""The loop over instances whose ranks step together; see loop.py, of which it is the variant behind a barrier.

    plan     every rank, at one time
    start    each as long as the cost tables say for its own work, padded to the widest rank's tokens
    barrier  the step of the instance ends when the slowest rank's does; the others wait
    land     every rank

A run without instances compiles none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, types

from ..client.clients import next_time
from ..core.jit import PLAIN, inline, jit
from ..core.units import NEVER_NS
from ..costs.tables import (
    ACTIVE_EXPERTS,
    DISPATCH_BYTES,
    EXCHANGE_NS,
    EXPERT_LOAD_MAX,
    GRAPH_BUCKET,
    HOST,
    NEW_TOKENS,
    clear,
    exchange_ns,
    experts_ns,
    padded_tokens,
    step_ns,
)
from ..engine.step import EMPTY, IDLE, LAGGING, PLANNED, describe, lag, land, plan_step, read_inbox, start
from ..scheduler.state_columns import NO_FAULT, NO_SEQ
from .instances import Instances, deal_to
from .loop import (
    CONTROL,
    DONE,
    FAULT,
    PAUSED,
    SLICE_OVER,
    deliver,
    end_operation,
    first_ready,
    happen,
    nothing_planned,
    tell_ends,
    unstick,
)
from .world import NO_INCIDENT, World

ASKS = 7
"""Beside what loop.advance returns: Python adds to the queries of the ranks of World.at's instance, which have planned
their step; call again."""

_DUMMY_TOKENS = 1.0


# ---------------------------------------------------------------- plan


@jit
def _read_inboxes(w, s, i, at):
    """Every rank of an instance hears what has come. False: World.at's has something for Python."""
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        w.at, e.now = k, at
        if not read_inbox(e, w.cancels[k], w.landings[k]):
            return False
    return True


@jit
def _tell_all_ends(w, s, i):
    """Whether a sequence had ended without a step."""
    told = False
    for k in range(s.first[i], s.first[i + 1]):
        if w.engines[k].ended_head != NO_SEQ:
            tell_ends(w, w.engines[k])
            told = True
    return told


@jit
def _is_any_full(w, s, i):
    """source: vllm-ascend's balance scheduler: nobody admits while a rank runs as many sequences as it may"""
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        if e.slots.running >= e.rules.most_running:
            return True
    return False


@jit
def _plan(w, s, i):
    """Every rank plans. Returns the best status of them, as a number below EMPTY where something runs; -1: a fault."""
    best = IDLE
    holds = s.balance and _is_any_full(w, s, i)
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        w.at = k
        most = e.rules.most_running
        if holds:
            e.rules.most_running = min(e.slots.running, most)
        s.statuses[k] = plan_step(e, w.befores[k], w.schedules[k])
        e.rules.most_running = most
        if e.fault != NO_FAULT:
            return np.int64(-1)
        best = min(best, s.statuses[k])
    return best


@jit
def _describe(w, s, i):
    """The queries of the ranks: their own work, or a dummy's, padded to the widest of them."""
    widest = 0.0
    s.now[i] = w.engines[s.first[i]].now
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        if s.statuses[k] == PLANNED:
            describe(e)
            s.tokens[k, 0], s.tokens[k, 1] = e.prefill_tokens, e.decode_rows
        else:
            clear(e.query)
            e.query[NEW_TOKENS] = _DUMMY_TOKENS
            s.tokens[k, 0], s.tokens[k, 1] = 0, 1
        widest = max(widest, padded_tokens(e.costs, e.query))
    for k in range(s.first[i], s.first[i + 1]):
        w.engines[k].query[GRAPH_BUCKET] = widest


# ---------------------------------------------------------------- start, barrier


@jit
def _start(w, s, i):
    """The ranks run; afterwards e.now of all is when the instance's step lands."""
    begin, pause = s.now[i], s.pause_ns[i]
    slowest, together = np.int64(0), s.together_ns[i]
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        if s.asks:
            _add_terms(s, e, k)
            together = max(together, s.experts_ns[k])
        own = _run(w, s, e, k) + pause
        s.busy_ns[k] += own
        slowest = max(slowest, own - s.experts_ns[k])
        s.own_ns[k] = own
    lasts = slowest + together
    landed = np.int64(0)
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        wait = lasts - s.own_ns[k]
        s.wait_ns[k] += wait
        if e.overlap:
            e.device_end += wait + pause
        else:
            e.now = begin + lasts
        landed = max(landed, e.now)
    _hold(w, s, i, landed)
    s.steps[i] += 1
    s.step_ns[i] += lasts


@inline
def _add_terms(s, e, k):
    """What Python knows of a rank's experts in this step."""
    query, terms = e.query, s.terms
    query[EXPERT_LOAD_MAX] = terms[k, 0]
    query[ACTIVE_EXPERTS] = terms[k, 1]
    query[DISPATCH_BYTES] = terms[k, 2]
    query[EXCHANGE_NS] = terms[k, 3]
    s.experts_ns[k] = experts_ns(e.costs, query) + exchange_ns(e.costs, query)


@jit
def _wait_for_devices(w, s, i):
    """No rank has anything to launch before what runs is over."""
    landed = np.int64(0)
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        if s.statuses[k] == LAGGING:
            lag(e)
        landed = max(landed, e.now)
    _hold(w, s, i, landed)


@inline
def _hold(w, s, i, landed):
    """The step of an instance is under way until then."""
    for k in range(s.first[i], s.first[i + 1]):
        w.engines[k].now = landed
        w.ready[k] = landed
        w.stepping[k] = 1


@inline
def _run(w, s, e, k):
    """The step of one rank, as if it were alone: ns from its begin to its end."""
    begin = max(e.now, e.device_end) if e.overlap else e.now
    if s.statuses[k] == PLANNED:
        start(e, w.watches[k], w.stretches[k])
        return (e.device_end if e.overlap else e.now) - begin
    duration = step_ns(e.costs, e.query, e.resources)
    e.began = e.now
    if e.overlap:
        host = e.resources[HOST]
        e.now = max(e.now + host, e.device_end)
        e.device_end = e.now + duration - host
        duration = e.device_end - begin
    else:
        e.now += duration
    s.dummy_steps[k] += 1
    s.dummy_ns[k] += duration
    return duration


@jit
def _land(w, s, i):
    """The step of an instance is over. False: a fault."""
    for k in range(s.first[i], s.first[i + 1]):
        e = w.engines[k]
        w.at = k
        if s.statuses[k] == PLANNED or s.statuses[k] == LAGGING:
            land(e, w.commits[k], w.afters[k])
            tell_ends(w, e)
        w.stepping[k] = 0
        w.ready[k] = e.now
        w.now = max(w.now, e.now)
        if e.fault != NO_FAULT:
            return False
    return True


def _advance(w, s, until_ns, max_steps):
    """As loop._advance, of instances; a step is that of an instance. May return ASKS too."""
    c, steps = w.clients, 0
    num = c.seqs.state.size
    while steps < max_steps:
        k = first_ready(w)
        i, at, next_ns = s.instance[k], w.ready[k], min(next_time(c), w.links.next_ns)
        if s.is_planned[i] == 1:
            s.is_planned[i] = 0
            _start(w, s, i)
            continue
        if at == NEVER_NS and c.num_done == num:
            return DONE
        if next_ns < at or (next_ns == at and next_ns != NEVER_NS and w.stepping[k] == 0):
            if next_ns > until_ns:
                return PAUSED
            if next_ns == w.links.next_ns:
                end_operation(w)
            else:
                seq = happen(w)
                if seq != NO_SEQ:
                    deliver(w, seq, deal_to(w, s, w.port[c.seqs.engine[seq]]))
                if w.incident != NO_INCIDENT:
                    return CONTROL
            continue
        if at == NEVER_NS:
            if not unstick(w):
                return FAULT
            continue
        if w.stepping[k] == 1:
            if not _land(w, s, i):
                return FAULT
            steps += 1
            continue
        if at >= until_ns:
            return PAUSED
        if not _read_inboxes(w, s, i, at):
            return CONTROL
        if _tell_all_ends(w, s, i):
            continue
        planned = _plan(w, s, i)
        if planned < 0:
            return FAULT
        if planned >= EMPTY:
            for rank in range(s.first[i], s.first[i + 1]):
                nothing_planned(w, w.engines[rank], rank, s.statuses[rank])
                steps += np.int64(s.statuses[rank] == EMPTY)
            continue
        for rank in range(s.first[i], s.first[i + 1]):
            if s.statuses[rank] == EMPTY:
                tell_ends(w, w.engines[rank])  # a retraction gave up on the last one that ran
        if planned == LAGGING:
            _wait_for_devices(w, s, i)
            continue
        _describe(w, s, i)
        if s.asks:
            s.is_planned[i] = 1
            w.at = s.first[i]
            return ASKS
        _start(w, s, i)
    return SLICE_OVER


@cache
def compiled_lockstep() -> Callable[..., int]:
    """See loop.compiled_advance."""
    if PLAIN:
        return _advance
    signature = types.int64(World.numba_type, Instances.numba_type, types.int64, types.int64)
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_advance)
