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
from ..core.journal import STEP_COLUMNS
from ..core.units import NEVER_NS
from ..costs.tables import COPY_BYTES, HOST, add_prefill, clear, set_decode, step_ns
from ..scheduler import (
    copy_on_write,
    kv,
    overlapped,
    prefill_first,
    prefill_first_calendar,
    reservation,
    shadow,
    static,
    token_budget,
    token_budget_calendar,
)
from ..scheduler.lifecycle import drop_waiting
from ..scheduler.spent import spend
from ..scheduler.stages import hand_out
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    FAILED,
    IN_DECODE,
    NO_FAULT,
    NO_SEQ,
    NO_SLOT,
    PAGED,
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
# What `until_work` returns besides DONE, PAUSED and FAULT: the clock has jumped, a step may start.
JUMPED, WORK = 4, 5

STEP_USED, STEP_WASTE = STEP_COLUMNS.index("used_blocks"), STEP_COLUMNS.index("tail_waste_tokens")

_EMPTY_PLANS = 4
"""A plan may be empty once or twice (a filter, a self-preemption); more often at one time is a deadlock."""


@inline
def execute(e):
    """Nanoseconds of the planned step, the host's part included; e.resources tells the parts."""
    rec, plan, query = e.slots.rec, e.plan, e.query
    clear(query)
    query[COPY_BYTES] = e.copy_bytes
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
    duration = step_ns(e.costs, query, e.resources)
    e.step_model_ns = duration - e.resources[HOST] if e.overlap else duration
    e.step_prefill_ns = 0
    if chunks > 0:
        e.step_prefill_ns = NEVER_NS if batch == 0 else _prefill_share(e, batch, context, duration)
    return duration


@inline
def _prefill_share(e, batch, context, duration):
    """Nanoseconds that a mixed step takes longer than its decodes alone would; under overlap the device's part."""
    query = e.query
    clear(query)
    query[COPY_BYTES] = e.copy_bytes
    set_decode(query, batch, context, 0)
    longer = duration - step_ns(e.costs, query, e.alone)
    if e.overlap:
        longer -= e.resources[HOST] - e.alone[HOST]
    return max(longer, 1)  # 0 would say that there is no prefill


@inline
def account(e, start, duration, host, evicted):
    """Counters of a step: time-weighted use of memory, and a journal row if asked for."""
    tokens = e.prefill_tokens + e.decode_rows
    used = kv.used_blocks(e)
    waste = e.table_blocks * e.rules.block_tokens - e.context - tokens - e.shared_slack
    # Differences of rounded times add up exactly, and microseconds keep the sums far from overflow.
    weight = (start + duration) // 1000 - start // 1000
    e.used_us += used * weight
    e.waste_us += waste * weight
    e.table_us += e.table_blocks * weight
    e.internal_us += e.internal_slots * weight
    e.external_us += e.external_slots * weight
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
    row[0], row[1] = start, duration
    row[2], row[3], row[4] = e.decode_seqs, e.prefill_seqs, e.prefill_tokens
    row[5], row[6] = e.slots.running, e.num_waiting
    row[7], row[8], row[9] = used, kv.cached_blocks(e), waste
    row[10], row[11], row[12] = e.num_victims, evicted, host
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
    is_empty = e.queue_head == NO_SEQ and e.slots.running == 0 and e.batch_size == 0
    return is_empty and e.chunk == NO_SLOT and e.num_flight == 0


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
def run_beside(e, host, device, evicted):
    """The step is planned from e.now on, beside the one that runs, and starts when both are done.

    Afterwards e.now is when the host has launched it and has the results of the one before.
    """
    planned, free = e.now + host, e.device_end
    begin = max(e.now, free)  # from here on the device waits for nothing but the host
    start = max(planned, free)
    account(e, begin, start + device - begin, host, evicted)
    e.exposed_ns += start - begin
    e.device_end = start + device
    e.now = start


@inline
def run_for(e, host, device, evicted):
    """The planned step runs: so much host and device time, one after the other or beside the step before."""
    if e.overlap:
        run_beside(e, host, device, evicted)
    else:
        account(e, e.now, host + device, host, evicted)
        e.exposed_ns += host
        e.now += host + device
    e.host_ns += host
    e.device_ns += device


@inline
def one_step(e, schedule, commit, watch):
    """Schedule, execute, commit. False when the plan was empty."""
    make_space(e)
    evicted, before = e.pool.evicted, e.now
    schedule(e)
    if e.num_plan == 0 and e.calendar.planned == 0:
        if e.num_flight == 0:
            return False
        e.now = max(e.now, e.device_end)  # nothing to launch: the host waits for what runs
    else:
        duration = execute(e)
        host = e.resources[HOST]
        run_for(e, host, duration - host, e.pool.evicted - evicted)
        watch(e)
    apply_results(e, before, commit)
    return True


@inline
def apply_results(e, before, commit):
    """A step has ended, or under overlap the one before it, since the time `before`: its tokens come out."""
    spend(e, e.now - before)
    hand_out(e.stages, e.now, e.num_flight if e.overlap else e.num_plan)  # a chunk that is not the last counts too
    commit(e)
    if e.num_ended > 0:
        settle_ended(e)


@inline
def until_work(e, until_ns, cancel):
    """What has happened by now is delivered. WORK: a step may start at e.now; JUMPED: over idle time, call again."""
    seq = NO_SEQ
    if e.next_ns <= e.now:
        seq = deliver(e)
    while seq != NO_SEQ:
        cancel(e, seq)
        settle_ended(e)
        seq = deliver(e)
    status = WORK
    if e.fault != NO_FAULT:
        status = FAULT
    elif is_idle(e):
        go_idle(e)
        status = JUMPED
        if e.num_done == e.seqs.state.size:
            status = DONE
        elif e.next_ns == NEVER_NS:
            e.fault = STUCK
            status = FAULT
        elif e.next_ns > until_ns:
            status = PAUSED
        else:
            e.now = max(e.now, e.next_ns)
    elif e.now >= until_ns:
        status = PAUSED
    return status


@inline
def note_empty_plan(e):
    """Nothing was planned. After some such plans in a row, time goes on to the next event, or somebody gives way."""
    if e.num_ended > 0:  # a retraction gave up on the last one that ran
        settle_ended(e)
    e.empty_plans += 1
    if e.empty_plans > _EMPTY_PLANS:
        if e.next_ns != NEVER_NS:
            e.now = max(e.now, e.next_ns)
        else:
            unstick(e)
        e.empty_plans = 0


def _advance(e, until_ns, max_steps, schedule, commit, cancel, watch):
    """Run until `until_ns` (no step starts at or after it), or max_steps steps, or the end.

    returns  DONE, PAUSED (time reached), SLICE_OVER (call again), FAULT (see e.fault)
    """
    for _ in range(max_steps):
        status = until_work(e, until_ns, cancel)
        if status == JUMPED:
            continue
        if status != WORK:
            return status
        if one_step(e, schedule, commit, watch):
            e.empty_plans = 0
        else:
            note_empty_plan(e)
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
    for module in (token_budget, token_budget_calendar, prefill_first, prefill_first_calendar, static, copy_on_write)
}
DISCIPLINES |= {
    name + "_overlapped": replace(DISCIPLINES[name], name=name + "_overlapped", commit=commit)
    for name, commit in (
        ("token_budget", overlapped.commit_token_budget),
        ("prefill_first", overlapped.commit_prefill_first),
    )
}
DISCIPLINES |= {
    name + "_sorted": replace(DISCIPLINES[name], name=name + "_sorted", schedule=module.schedule_sorted)
    for name, module in (
        ("prefill_first", prefill_first),
        ("prefill_first_calendar", prefill_first_calendar),
        ("prefill_first_overlapped", prefill_first),
    )
}

DISCIPLINES["reservation"] = replace(DISCIPLINES["token_budget"], name="reservation", schedule=reservation.schedule)


def discipline_of(engine: Engine) -> Discipline:
    """The scheduler that the engine's rules ask for."""
    if engine.rules.static:
        return DISCIPLINES["static"]
    if engine.rules.copy_on_write:
        return DISCIPLINES["copy_on_write"]
    if engine.rules.allocation != PAGED:
        return DISCIPLINES["reservation"]
    name = "prefill_first" if engine.rules.prefill_first else "token_budget"
    name += "_calendar" if engine.calendar.active else "_overlapped" if engine.overlap else ""
    return DISCIPLINES[name + "_sorted" if engine.rules.order != FCFS else name]


@cache
def compiled_advance() -> Callable[..., int]:
    """The loop takes its scheduler as function pointers (3 ns a call): only one is compiled, and loaded from disk."""
    if PLAIN:
        return _advance
    engine = Engine.numba_type
    verb = types.FunctionType(types.void(engine))
    cancel = types.FunctionType(types.void(engine, types.int64))
    signature = types.int64(engine, types.int64, types.int64, verb, verb, cancel, verb)
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_advance)


def watch_of(engine: Engine) -> Callable[[Engine], None]:
    """What looks at each step before it is committed: the shadow in check mode, else nothing."""
    return shadow.watch if engine.shadow.owner.size > 1 else shadow.ignore


def advance(engine: Engine, until_ns: int, max_steps: int) -> int:
    """Run an engine; see _advance. Two engines are advanced in turn by two calls."""
    d = discipline_of(engine)
    return compiled_advance()(engine, until_ns, max_steps, d.schedule, d.commit, d.cancel, watch_of(engine))
