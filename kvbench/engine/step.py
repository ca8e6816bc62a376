"""One step of an engine: schedule, execute, commit, cut where its end is known and where its results are.

    read_inbox  what has reached it since its step began
    plan_step   schedule(engine): who computes how many tokens
    launch      execute(engine): the cost tables say how long, and so when the step ends
    land        commit(engine): tokens appended, finished sequences released

A clock calls them (cluster.loop): between launch and land other engines and the clients have their turns.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline
from ..core.journal import STEP_COLUMNS
from ..core.units import NEVER_NS
from ..costs.tables import (
    COPY_BYTES,
    DECODE_BATCH,
    HOST,
    NEW_TOKENS,
    NUM_PREFILL,
    NUM_SEQUENCES,
    OUTSIDE,
    PREFILL_ATTENTION_NS,
    add_prefill,
    clear,
    set_decode,
    step_ns,
)
from ..scheduler import kv
from ..scheduler.lifecycle import accept, drop_waiting
from ..scheduler.mail import ACCEPT, LEAVE, is_unread, take
from ..scheduler.spent import spend
from ..scheduler.stages import hand_out
from ..scheduler.state_columns import (
    FAILED,
    FIRST_TERMINAL,
    IN_DECODE,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
)

# What plan_step returns. PLANNED: a step; LAGGING: none before the one on the device has ended; EMPTY: none, try again
# or later; IDLE: there is nothing to do.
PLANNED, LAGGING, EMPTY, IDLE = (np.int64(i) for i in range(4))

STEP_USED, STEP_WASTE = STEP_COLUMNS.index("used_blocks"), STEP_COLUMNS.index("tail_waste_tokens")


@inline
def execute(e):
    """Nanoseconds of the planned step, the host's part included; e.resources tells the parts."""
    describe(e)
    return price(e)


@inline
def describe(e):
    """The planned step as a query of the cost tables."""
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


@inline
def price(e):
    """Nanoseconds of the step that e.query describes, whoever has filled in what one engine alone does not know."""
    duration = step_ns(e.costs, e.query, e.resources)
    e.outside_steps += np.int64(e.query[OUTSIDE] > 0.0)
    e.step_model_ns = duration - e.resources[HOST] if e.overlap else duration
    e.step_prefill_ns = 0
    if e.prefill_seqs > 0:
        batch = e.decode_seqs
        e.step_prefill_ns = NEVER_NS if batch == 0 else _prefill_share(e, batch, e.decode_context, duration)
    return duration


@inline
def _prefill_share(e, batch, context, duration):
    """Nanoseconds that a mixed step takes longer than its decodes alone would; under overlap the device's part."""
    query = e.query
    query[NEW_TOKENS] = query[NUM_PREFILL] = query[PREFILL_ATTENTION_NS] = 0.0
    query[NUM_SEQUENCES] = query[DECODE_BATCH] = 0.0
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
def nothing_runs(e):
    return e.slots.running == 0 and e.batch_size == 0 and e.chunk == NO_SLOT and e.num_flight == 0


@inline
def is_idle(e):
    return e.queue_head == NO_SEQ and e.side.num_ended == 0 and nothing_runs(e)


@inline
def go_idle(e):
    """What an engine does when it has nothing to do (SGLang starts its estimate of output lengths anew)."""
    e.ratio = e.rules.ratio_start


@inline
def run_beside(e, host, device, evicted):
    """The step is planned from e.now on, beside the one that runs, and starts when both are done.

    Afterwards e.now is when the host has launched it and has the results of the one before.
    """
    planned, free = e.now + host, e.device_end
    begin = max(e.now, free)  # from here on the device waits for nothing but the host
    start = max(planned, free)
    account(e, begin, start + device - begin, host, evicted)
    e.exposed_host_ns += start - begin
    e.device_end = start + device
    e.now = start


@inline
def run_for(e, host, device, evicted):
    """The planned step runs: so much host and device time, one after the other or beside the step before."""
    if e.overlap:
        run_beside(e, host, device, evicted)
    else:
        account(e, e.now, host + device, host, evicted)
        e.exposed_host_ns += host
        e.now += host + device
    e.host_ns += host
    e.device_ns += device


@inline
def read_inbox(e, cancel, landed):
    """At e.now, between two steps: operations that have ended let go, then what came, in order.

    cancel, landed   verbs (engine, sequence) and (engine, row of its operations)
    returns  False when a row (e.control) is for Python to act on; call again afterwards
    """
    while is_unread(e.landed):
        _, row = take(e.landed)
        landed(e, row)
    while is_unread(e.inbox):
        kind, subject = take(e.inbox)
        if kind == ACCEPT:
            accept(e, subject)
        elif kind == LEAVE:
            if e.seqs.state[subject] < FIRST_TERMINAL:
                cancel(e, subject)
        else:
            e.control = subject
            return False
    return True


@inline
def plan_step(e, before, schedule):
    """Plan the step that begins at e.now; `before`: what tiers do first. See the constants for what is returned."""
    if is_idle(e):
        go_idle(e)
        return IDLE
    make_space(e)
    e.evicted_before = e.pool.evicted
    before(e)
    schedule(e)
    status = EMPTY
    if e.num_plan > 0 or e.calendar.planned > 0:
        status = PLANNED
    elif e.num_flight > 0:
        status = LAGGING
    if status != EMPTY:
        e.empty_plans = 0
    return status


@inline
def launch(e, watch, stretch):
    """The planned step runs as long as the cost tables say, and for tiers longer; e.now is when it lands."""
    describe(e)
    start(e, watch, stretch)


@inline
def start(e, watch, stretch):
    """The step that e.query describes runs."""
    duration = price(e)
    if e.rules.tiered:
        stretch(e, duration)
        duration += lengthen(e)
    host = e.resources[HOST]
    e.began = e.now
    run_for(e, host, duration - host, e.pool.evicted - e.evicted_before)
    watch(e)


@inline
def lengthen(e):
    """What loads and copies add to the planned step: a wait belongs to its prefills. Returns it in ns."""
    t = e.tiers
    if 0 < e.step_prefill_ns < NEVER_NS:
        e.step_prefill_ns += t.wait_ns
    return t.wait_ns + t.slowed_ns


@inline
def lag(e):
    """Nothing to launch: the host waits for what runs."""
    e.began = e.now
    e.now = max(e.now, e.device_end)


@inline
def land(e, commit, after):
    """The step that was launched, or waited for, is over at e.now; `after`: what is copied of what it has computed."""
    spend(e, e.now - e.began)
    hand_out(e.stages, e.now, e.num_flight if e.overlap else e.num_plan)  # a chunk that is not the last counts too
    commit(e)
    after(e)


@inline
def drop_head(e):
    """The head of the queue can never run. False: nobody waits."""
    seq = e.queue_head
    if seq == NO_SEQ:
        return False
    drop_waiting(e, seq, FAILED)
    e.batch_is_full = False  # for that one it was
    return True
