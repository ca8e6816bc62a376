"""Requests one after another through an engine's own scheduler, without a clock.

    arrive -> schedule, commit, schedule, commit ... -> nobody is left -> the next request

What is found, evicted and kept is therefore what a run finds, evicts and keeps whose requests come far apart: the same
compiled `schedule` and `commit` decide. What is left out is time, and decode steps that change no memory: between two
blocks a sequence only counts on, so `_skip` counts for it. What a run cancels by the clock runs to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from numba import njit, types

from ..client.clients import is_refused
from ..core.errors import KvbenchError
from ..core.jit import PLAIN, inline, jit
from ..core.requests import I64
from ..engine.disciplines import discipline_of
from ..engine.settings import EngineSettings
from ..engine.step import drop_head, go_idle, is_idle
from ..scheduler import kv
from ..scheduler.lifecycle import close_sequence
from ..scheduler.queues import queue_back, take_ended
from ..scheduler.state import Engine, set_state
from ..scheduler.state_columns import (
    BLOCKS,
    COMPUTED,
    FINAL,
    GENERATED,
    HASHED,
    IN_DECODE,
    KNOWN,
    NEXT,
    NO_FAULT,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PUBLISHED,
    RADIX,
    REFUSED,
    STUCK,
    TOKENIZING,
    WAITING,
)
from ..tiers.rules import TierRules

_EMPTY_PLANS = 4
"""More plans in a row without work: the head of the queue can never run."""

_LATE = 2
"""Under overlap results come a step late, so the last two steps are real ones."""


def without_clock(settings: EngineSettings) -> EngineSettings:
    """Settings of an engine to be run alone: step by step, and nothing that is about time or checks."""
    rules = replace(settings.cache, state="cold")
    return replace(
        settings,
        cache=rules,
        fast=False,
        check=False,
        record_steps=False,
        backup_ns_per_block=0,
        tiers=TierRules(),
        faults=(),
    )


def run_alone(engine: Engine, order: I64) -> None:
    """Requests of an engine that has no clock, in this order, each with all its samples and to its end.

    The engine is one of settings `without_clock`, and nothing else has run it.
    raises  KvbenchError: a fault that would end a run, too
    """
    d = discipline_of(engine)
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        request = _compiled()(engine, np.ascontiguousarray(order, np.int64), d.schedule, d.commit)
    if engine.fault != NO_FAULT:
        raise KvbenchError(f"request {request} cannot run in this engine even alone (fault {engine.fault})")


def _run_alone(e, order, schedule, commit):
    """returns  the request at which the engine failed; -1, it did not"""
    q = e.seqs
    for i in range(order.size):
        request = order[i]
        for seq in range(q.first[request], q.first[request + 1]):
            _arrive(e, seq)
        _run_out(e, schedule, commit)
        while e.ended_head != NO_SEQ:  # nobody asks
            take_ended(e)
        if e.fault != NO_FAULT:
            return request
        q.pending[q.lead[request]] -= q.first[request + 1] - q.first[request]
    return -1


@cache
def _compiled() -> Callable[..., int]:
    """The scheduler comes as function pointers, those that a run compiles (see cluster.loop.compiled_advance)."""
    if PLAIN:
        return _run_alone
    engine = Engine.numba_type
    verb = types.FunctionType(types.void(engine))
    signature = types.int64(engine, types.int64[::1], verb, verb)
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_run_alone)


@jit
def _arrive(e, seq):
    e.seqs.engine[seq] = e.number
    if is_refused(e.seqs, seq):
        close_sequence(e, seq, REFUSED)
        return
    set_state(e, seq, TOKENIZING)
    set_state(e, seq, WAITING)
    queue_back(e, seq)


@inline
def _run_out(e, schedule, commit):
    """Steps until nobody is left."""
    journal = e.journal
    empty = 0
    while not is_idle(e) and e.fault == NO_FAULT:
        schedule(e)
        if e.num_plan > 0 or e.num_flight > 0:
            commit(e)
            journal.rows = 0  # there are no times to keep
            empty = 0
            _skip(e)
        elif empty < _EMPTY_PLANS:
            empty += 1
        elif not drop_head(e):
            e.fault = STUCK
    go_idle(e)


@jit
def _skip(e):
    """Leave out decode steps in which nobody ends and no memory changes; of one alone, those that take free blocks."""
    steps = _quiet_steps(e)
    if steps <= 0:
        return
    rec = e.slots.rec
    slot = e.slots.head
    while slot != NO_SLOT:
        rec[slot, COMPUTED] += steps
        rec[slot, KNOWN] += steps
        rec[slot, GENERATED] += steps
        e.context += steps
        if _takes_in_bulk(e):
            kv.extend(e, slot, rec[slot, COMPUTED])
            kv.publish_hashed(e, slot, rec[slot, COMPUTED])
        slot = rec[slot, NEXT]


@inline
def _quiet_steps(e):
    """How many steps from now on only count; 0 where anything else may happen."""
    rec, bt = e.slots.rec, e.rules.block_tokens
    kind = e.rules.cache_kind
    if e.queue_head != NO_SEQ or e.batch_size > 0 or e.chunk != NO_SLOT or e.num_leavers > 0:
        return 0
    if e.rules.beam_width > 0 or e.num_copies > 0 or e.num_forks > 0:
        return 0
    if kind == RADIX and e.pool.num_free < e.slots.running:  # a step would evict
        return 0
    late = _LATE if e.overlap else 0
    bulk = _takes_in_bulk(e)
    spare = e.pool.num_free - np.int64(kind == RADIX)  # the tree evicts while none is free, wanted or not
    steps = np.int64(0)
    slot = e.slots.head
    while slot != NO_SLOT:
        computed, blocks = rec[slot, COMPUTED], rec[slot, BLOCKS]
        if rec[slot, PHASE] != IN_DECODE or rec[slot, KNOWN] != computed + 1 or rec[slot, GENERATED] < 1:
            return 0
        quiet = rec[slot, FINAL] - rec[slot, GENERATED] - 1 - late
        if bulk:
            quiet = min(quiet, (blocks + spare) * bt - computed)
        else:
            quiet = min(quiet, blocks * bt - computed)
            if kind == HASHED:
                quiet = min(quiet, (rec[slot, PUBLISHED] + 1) * bt - 1 - computed)
        steps = quiet if slot == e.slots.head else min(steps, quiet)
        slot = rec[slot, NEXT]
    return steps


@inline
def _takes_in_bulk(e):
    """Whether blocks taken at once are those that are taken one by one: nobody else takes, and no policy looks on."""
    return e.slots.running == 1 and not e.hashes.ranked and not e.rules.copy_on_write
