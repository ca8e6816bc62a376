"""The event loop: schedule, execute, commit, over one engine, up to a time.

    plan     = schedule(engine)            who computes how many tokens
    duration = execute(engine)             the cost tables say how long
    commit(engine)                         tokens appended, finished sequences released

There are no globals: two engines are advanced in turn by two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numba import njit, types

from ..core.jit import PLAIN, inline
from ..core.units import NEVER_NS
from ..costs.tables import add_prefill, clear, set_decode, step_ns
from ..scheduler import kv, prefill_first, prefill_first_calendar, static, token_budget, token_budget_calendar
from ..scheduler.lifecycle import drop_waiting
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    FAILED,
    IN_DECODE,
    NO_FAULT,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    STUCK,
)
from ..scheduler.waiting_order import FCFS
from .events import deliver, settle_ended

# What advance returns.
DONE, PAUSED, SLICE_OVER, FAULT = range(4)

_EMPTY_PLANS = 4
"""A plan may be empty once or twice (a filter, a self-preemption); more often at one time is a deadlock."""


@inline
def execute(e):
    """Nanoseconds of the planned step on the modelled device."""
    rec, plan, query = e.slots.rec, e.plan, e.query
    clear(query)
    batch, context, tokens, chunks = 0, 0, 0, 0
    for row in range(e.num_plan):
        if rec[plan[row, PLAN_SLOT], PHASE] == IN_DECODE:
            batch += 1
            context += plan[row, PLAN_START] + 1
        else:
            chunks += 1
            tokens += plan[row, PLAN_TOKENS]
            add_prefill(e.costs, query, plan[row, PLAN_TOKENS], plan[row, PLAN_START])
    batch += e.calendar.planned
    context += e.calendar.context * np.int64(e.calendar.planned > 0) + e.calendar.planned
    e.decode_rows = batch
    if e.rules.static and batch > 0:  # who is done is computed as padding
        context = e.context + batch
        batch = e.slots.running
    e.decode_seqs, e.decode_context = batch, context
    e.prefill_seqs, e.prefill_tokens = chunks, tokens
    if batch > 0:
        set_decode(query, batch, context, 0)
    return step_ns(e.costs, query, e.resources)


@inline
def account(e, duration, evicted):
    """Counters of a step that starts at e.now: time-weighted use of memory, and a journal row if asked for."""
    tokens = e.prefill_tokens + e.decode_rows
    used = kv.used_blocks(e)
    waste = e.table_blocks * e.rules.block_tokens - e.context - tokens
    # Differences of rounded times add up exactly, and microseconds keep the sums far from overflow.
    weight = (e.now + duration) // 1000 - e.now // 1000
    e.used_us += used * weight
    e.waste_us += waste * weight
    e.busy_us += weight
    e.busy_ns += duration
    e.used_peak = max(e.used_peak, used)
    e.num_steps += 1
    e.decode_steps += np.int64(e.decode_seqs > 0)
    e.prefill_steps += np.int64(e.prefill_seqs > 0)
    e.sum_prefill_tokens += e.prefill_tokens
    e.sum_decode_tokens += e.decode_rows
    if not e.record_steps:
        return
    journal = e.journal
    row = journal.steps[journal.num_steps]
    row[0], row[1] = e.now, duration
    row[2], row[3], row[4] = e.decode_seqs, e.prefill_seqs, e.prefill_tokens
    row[5], row[6] = e.slots.running, e.num_waiting
    row[7], row[8], row[9] = used, kv.cached_blocks(e), waste
    row[10], row[11] = e.num_victims, evicted
    journal.num_steps += 1


@inline
def make_space(e):
    """The journal has room for one more step, whatever it brings."""
    journal = e.journal
    need = journal.rows + e.slots.rec.shape[0] + 8
    if need > journal.gap.size:
        gap = np.empty(2 * need, np.int64)
        count = np.empty(2 * need, np.int64)
        for i in range(journal.rows):
            gap[i], count[i] = journal.gap[i], journal.count[i]
        journal.gap, journal.count = gap, count
    if e.record_steps and journal.steps.shape[0] <= journal.num_steps + 1:
        steps = np.empty((2 * journal.steps.shape[0] + 64, journal.steps.shape[1]), np.int64)
        for i in range(journal.num_steps):
            for column in range(steps.shape[1]):
                steps[i, column] = journal.steps[i, column]
        journal.steps = steps


@inline
def is_idle(e):
    return e.queue_head == NO_SEQ and e.slots.running == 0 and e.batch_size == 0 and e.chunk == NO_SLOT


@inline
def go_idle(e):
    """What an engine does when it has nothing to do (SGLang starts its estimate of output lengths anew)."""
    e.ratio = e.rules.ratio_start


@inline
def unstick(e):
    """Nothing can be scheduled and nothing will happen: the head of the queue can never run."""
    seq = e.queue_head
    if seq == NO_SEQ:
        e.fault = STUCK
        return
    drop_waiting(e, seq, FAILED)
    settle_ended(e)


@inline
def one_step(e, schedule, commit):
    """Schedule, execute, commit. False when the plan was empty."""
    make_space(e)
    evicted = e.pool.evicted
    schedule(e)
    if e.num_plan == 0 and e.calendar.planned == 0:
        return False
    duration = execute(e)
    account(e, duration, e.pool.evicted - evicted)
    e.now += duration
    commit(e)
    if e.num_ended > 0:
        settle_ended(e)
    return True


def _advance(e, until_ns, max_steps, schedule, commit, cancel):
    """Run until `until_ns` (no step starts at or after it), or max_steps steps, or the end.

    returns  DONE, PAUSED (time reached), SLICE_OVER (call again), FAULT (see e.fault)
    """
    for _ in range(max_steps):
        seq = NO_SEQ
        if e.next_ns <= e.now:
            seq = deliver(e)
        while seq != NO_SEQ:
            cancel(e, seq)
            settle_ended(e)
            seq = deliver(e)
        if e.fault != NO_FAULT:
            return FAULT
        if is_idle(e):
            go_idle(e)
            if e.num_done == e.seqs.state.size:
                return DONE
            coming = e.next_ns
            if coming == NEVER_NS:
                e.fault = STUCK
                return FAULT
            if coming > until_ns:
                return PAUSED
            e.now = max(e.now, coming)
            continue
        if e.now >= until_ns:
            return PAUSED
        if one_step(e, schedule, commit):
            e.empty_plans = 0
            continue
        e.empty_plans += 1
        if e.empty_plans > _EMPTY_PLANS:
            coming = e.next_ns
            if coming != NEVER_NS:
                e.now = max(e.now, coming)
            else:
                unstick(e)
            e.empty_plans = 0
    return SLICE_OVER


@dataclass(frozen=True)
class Discipline:
    """A scheduler as three verbs, each compiled by itself: schedule(e), commit(e), cancel(e, sequence)."""

    name: str
    schedule: Callable[[Engine], None]
    commit: Callable[[Engine], None]
    cancel: Callable[[Engine, int], None]


DISCIPLINES = {
    module.__name__.rpartition(".")[2]: Discipline(
        module.__name__.rpartition(".")[2], module.schedule, module.commit, module.cancel
    )
    for module in (token_budget, token_budget_calendar, prefill_first, prefill_first_calendar, static)
}
DISCIPLINES |= {
    name + "_sorted": replace(DISCIPLINES[name], name=name + "_sorted", schedule=module.schedule_sorted)
    for name, module in (("prefill_first", prefill_first), ("prefill_first_calendar", prefill_first_calendar))
}


def discipline_of(engine: Engine) -> Discipline:
    """The scheduler that the engine's rules ask for."""
    if engine.rules.static:
        return DISCIPLINES["static"]
    name = "prefill_first" if engine.rules.prefill_first else "token_budget"
    name += "_calendar" if engine.calendar.active else ""
    return DISCIPLINES[name + "_sorted" if engine.rules.order != FCFS else name]


@cache
def compiled_advance() -> Callable[..., int]:
    """The loop takes its scheduler as function pointers (3 ns a call): only one is compiled, and loaded from disk."""
    if PLAIN:
        return _advance
    engine = Engine.numba_type
    verb = types.FunctionType(types.void(engine))
    cancel = types.FunctionType(types.void(engine, types.int64))
    signature = types.int64(engine, types.int64, types.int64, verb, verb, cancel)
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_advance)


def advance(engine: Engine, until_ns: int, max_steps: int) -> int:
    """Run an engine; see _advance. Two engines are advanced in turn by two calls."""
    d = discipline_of(engine)
    return compiled_advance()(engine, until_ns, max_steps, d.schedule, d.commit, d.cancel)
