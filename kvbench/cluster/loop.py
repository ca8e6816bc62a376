"""The loop over clients and engines: whatever happens next happens next.

At one instant steps land first, then operations end, then the clients act, then engines plan; ties go by number. An
engine whose step is under way hears of what happens meanwhile when it lands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, types

from ..client.clients import (
    ARRIVAL,
    CANCEL,
    DEADLINE,
    INCIDENT,
    PLACE_FREE,
    READY,
    REPORT,
    ROUTED,
    arrive,
    ended,
    free_place,
    give_up,
    next_event,
    next_held,
    next_time,
)
from ..core.ahead import Unit
from ..core.jit import PLAIN, inline, jit
from ..core.units import NEVER_NS
from ..engine.step import (
    EMPTY,
    IDLE,
    LAGGING,
    drop_head,
    lag,
    land,
    launch,
    nothing_runs,
    plan_step,
    read_inbox,
)
from ..engine.step import PLANNED as STEP_PLANNED
from ..kernels.event_heap import push_event
from ..memory.operations import OP_KIND, OP_SOURCE, OP_TARGET, SEND
from ..pairs.state import DUE, QUIT, SENT, TURN
from ..pairs.state import LANDED as KV_LANDED
from ..routing.router import ENDED as LEFT
from ..routing.router import NO_ENGINE
from ..scheduler.mail import ACCEPT, LANDED, LEAVE, is_unread, post
from ..scheduler.mail import CONTROL as FOR_PYTHON
from ..scheduler.queues import take_ended
from ..scheduler.side import BOTH, PREFILL
from ..scheduler.state_columns import NO_FAULT, NO_SEQ, STUCK, TOKENIZING
from ..scheduler.state_columns import ROUTED as ON_ITS_WAY
from .routing import arrived, hear_first_tokens, left, look_at_all, send_out, tokenise
from .world import NO_INCIDENT, World

# What advance returns. DONE; PAUSED: the time is reached; SLICE_OVER: call again; FAULT: see Engine.fault;
# CONTROL: Python acts on World.at's Engine.control; PLANNED, MUST_WAIT: the measured clock runs the step of World.at,
# or waits for the one that runs; MOVED: it looks at the bytes of the operation that ends next, and ends it.
DONE, PAUSED, SLICE_OVER, FAULT, CONTROL, PLANNED, MUST_WAIT, MOVED = range(8)

_EMPTY_PLANS = 4
"""A plan may be empty once or twice (a filter, a self-preemption); more often at one time is a deadlock."""


@inline
def first_ready(w):
    """The engine that has its turn first; a step that lands goes before one that is planned."""
    ready, stepping = w.ready, w.stepping
    best = 0
    for k in range(1, ready.size):
        if ready[k] < ready[best] or (ready[k] == ready[best] and stepping[k] > stepping[best]):
            best = k
    return best


@inline
def tell(w, k, kind, subject, now):
    """Something reaches an engine; one that waits for it has its turn."""
    e = w.engines[k]
    post(e.inbox, kind, subject)
    if w.stepping[k] == 0:
        w.ready[k] = min(w.ready[k], max(now, e.now))  # on the measured clock a step that landed may have ended later


@inline
def happen(w):
    """What happens next at the clients'. Returns the sequence that has reached its server's engine, or NO_SEQ."""
    c = w.clients
    now, kind, subject = next_event(c)
    w.now = max(w.now, now)
    if kind == ARRIVAL:
        if arrive(c, subject, now):
            send_out(w, subject, now)
    elif kind == ROUTED:
        tokenise(w, subject, now)
    elif kind == READY:
        if c.seqs.state[subject] == TOKENIZING:  # else cancelled meanwhile
            return subject
    elif kind == PLACE_FREE:
        free_place(c)
        subject = next_held(c)
        while subject != NO_SEQ:
            send_out(w, subject, now)
            subject = next_held(c)
    elif kind == CANCEL:
        _cancel(w, subject, now)
    elif kind == REPORT:
        _report(w, now)
    elif kind == INCIDENT:
        w.incident = subject
    elif kind == DEADLINE:
        between(w, DUE, subject, NO_ENGINE, now)
    else:
        for k in range(w.ready.size):
            tell(w, k, FOR_PYTHON, (kind << 32) + subject, now)
    return np.int64(NO_SEQ)


@inline
def deliver(w, seq, k):
    """A sequence is given to an engine now."""
    arrived(w, seq)
    w.clients.seqs.state[seq] = ON_ITS_WAY
    w.clients.seqs.engine[seq] = k
    tell(w, k, ACCEPT, seq, w.now)


@inline
def hand_out(w, seq):
    """A sequence has reached the server of its engine."""
    k = w.clients.seqs.engine[seq]
    if w.paired:
        w.clients.seqs.state[seq] = ON_ITS_WAY
        between(w, SENT, seq, k, w.now)
    else:
        deliver(w, seq, k)


@inline
def between(w, what, subject, k, now):
    """Something happens between prefill and decode engines, see pairs.state."""
    verb = w.between
    verb(w.pairs, w.clients, w.engines, w.ready, w.stepping, what, subject, k, now)


@inline
def _cancel(w, seq, now):
    """A client gives up: nobody has seen the sequence yet, or its engine has to let it go."""
    q = w.clients.seqs
    before = q.state[seq]
    if not give_up(w.clients, seq, now):
        if w.paired:
            between(w, QUIT, seq, NO_ENGINE, now)
        else:
            tell(w, q.engine[seq], LEAVE, seq, now)
    elif before == TOKENIZING:
        arrived(w, seq)
        left(w, seq, now)
        q.engine[seq] = NO_ENGINE  # it never got there


@jit
def _report(w, now):
    """The router hears how loaded the engines are, now and as long as something may change that."""
    look_at_all(w, NO_SEQ, now)
    if w.ready.min() != NEVER_NS or min(next_time(w.clients), w.links.next_ns) != NEVER_NS:
        push_event(w.clients.events, now + w.refresh_ns, REPORT, NO_SEQ)


@inline
def end_operation(w):
    """What moves beside the steps and is there next. The engines at its two ends hear of it at their step boundary.

    Returns its row.
    """
    now, end_next = w.links.next_ns, w.end_next
    row = end_next(w.links, w.operations)
    if w.operations.rows[row, OP_KIND] == SEND:
        between(w, KV_LANDED, row, NO_ENGINE, now)
    source, target = w.operations.rows[row, OP_SOURCE], w.operations.rows[row, OP_TARGET]
    if source >= 0:
        _land(w, source, row, now)
    if target >= 0 and target != source:
        _land(w, target, row, now)
    return row


@jit
def _land(w, k, row, now):
    e = w.engines[k]
    post(e.landed, LANDED, row)
    if w.stepping[k] == 0:
        w.ready[k] = min(w.ready[k], max(now, e.now))


@jit
def tell_ends(w, e):
    """The clients hear of the sequences of an engine that are over, in the order in which they ended."""
    hear_first_tokens(w, e)
    if w.paired:
        _tell_pair(w, e)
        return
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        left(w, seq, e.now)
        ended(w.clients, seq)


@jit
def _tell_pair(w, e):
    """The other side hears the news of an engine, and the clients and the router through it."""
    if e.ended_head == NO_SEQ and not is_unread(e.side.outbox):
        return
    if e.side.role == PREFILL:
        seq = e.ended_head
        while seq != NO_SEQ:
            w.hear(w.router, w.clients.seqs, LEFT, seq, e.number, e.now)
            seq = NO_SEQ if seq == e.ended_tail else e.seqs.ended_next[seq]
    between(w, TURN, np.int64(NO_SEQ), e.number, e.now)


@jit
def unstick(w):
    """No engine can plan and nothing will happen: the head of a queue goes, for all to end. False: nobody waits."""
    for k in range(w.ready.size):
        e = w.engines[k]
        e.now = max(e.now, w.now)
        if drop_head(e):
            tell_ends(w, e)
            w.ready[k] = e.now
            if w.refresh_ns > 0:
                push_event(w.clients.events, e.now, REPORT, NO_SEQ)
            return True
    w.engines[w.at].fault = STUCK
    return False


@inline
def land_step(w, e):
    """The step of the engine that has its turn is over: it may plan the next one."""
    land(e, w.commits[w.at], w.afters[w.at])
    tell_ends(w, e)
    w.listen(e, w.router, e.now)
    w.stepping[w.at] = 0
    w.ready[w.at] = e.now
    w.now = max(w.now, e.now)


@inline
def nothing_planned(w, e, k, status):
    """An engine has nothing to do, or cannot plan: after some such plans in a row it waits for what will change.

    Where nothing runs and no copy is under way, nothing will: the head of the queue can never run, and goes.
    """
    w.ready[k] = NEVER_NS
    if status == EMPTY:
        e.empty_plans += 1
        if e.empty_plans <= _EMPTY_PLANS:
            w.ready[k] = e.now
        else:
            e.empty_plans = 0
            is_still = w.links.next_ns == NEVER_NS and nothing_runs(e)
            if is_still and e.side.role == BOTH and drop_head(e):
                w.ready[k] = e.now
        tell_ends(w, e)  # also of one that a retraction gave up


def _advance(w, until_ns, max_steps, measured):
    """Run until `until_ns` (no step starts at or after it), or until max_steps steps have landed, or the end.

    measured  return when a step is planned or an operation has ended; the caller runs or ends it, and calls again
    returns   see above
    """
    c, steps = w.clients, 0
    num = c.seqs.state.size
    while steps < max_steps:
        k = first_ready(w)
        e, at, next_ns = w.engines[k], w.ready[k], min(next_time(c), w.links.next_ns)
        if at == NEVER_NS and c.num_done == num and w.pairs.held == 0 and not (w.paired and w.operations.open > 0):
            return DONE
        if next_ns < at or (next_ns == at and next_ns != NEVER_NS and w.stepping[k] == 0):
            if next_ns > until_ns:
                return PAUSED
            if next_ns == w.links.next_ns:
                if measured:
                    return MOVED
                end_operation(w)
            else:
                seq = happen(w)
                if seq != NO_SEQ:
                    hand_out(w, seq)
                if w.incident != NO_INCIDENT:
                    return CONTROL
            continue
        if at == NEVER_NS:
            if not unstick(w):
                return FAULT
            continue
        if w.stepping[k] == 1:
            w.at = k
            land_step(w, e)
            steps += 1
            if e.fault != NO_FAULT:
                return FAULT
            continue
        if at >= until_ns:
            return PAUSED
        w.at, e.now = k, at
        if not read_inbox(e, w.cancels[k], w.landings[k]):
            return CONTROL
        if e.ended_head != NO_SEQ:
            tell_ends(w, e)
            continue
        status = plan_step(e, w.befores[k], w.schedules[k])
        if w.paired:
            tell_ends(w, e)
        if e.fault != NO_FAULT:
            return FAULT
        if status == IDLE or status == EMPTY:
            nothing_planned(w, e, k, status)
            steps += np.int64(status == EMPTY)
            continue
        if measured:
            return PLANNED if status == STEP_PLANNED else MUST_WAIT
        if status == LAGGING:
            lag(e)
        else:
            launch(e, w.watches[k], w.stretches[k])
        w.ready[k] = e.now
        w.stepping[k] = 1
    return SLICE_OVER


UNIT = Unit("cluster.loop", __name__, "compiled_advance", (), 10.0)
"""The loop, to be compiled ahead."""


@cache
def compiled_advance() -> Callable[..., int]:
    """Schedulers are function pointers (3 ns a call) in lists of the world: only those of a run are compiled."""
    if PLAIN:
        return _advance
    signature = types.int64(World.numba_type, types.int64, types.int64, types.boolean)
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_advance)


def advance(world: World, until_ns: int, max_steps: int, measured: bool = False) -> int:
    """Run a world; see _advance."""
    return compiled_advance()(world, until_ns, max_steps, measured)
