"""Events: one heap of (time_ns, kind, number, sequence), and what each kind does to an engine.

Arrivals that do not depend on others are already in order in the request table; they are merged with the
heap by the same key. Ties go by kind, then by number. What the client does (sending, holding back, giving up) happens
at the event's own time, even in the middle of a step; the engine sees it when the step has ended, as an engine does
whose loop reads its inbox between steps.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..core.units import NEVER_NS
from ..scheduler.backup import end_copies, next_end
from ..scheduler.lifecycle import close_sequence
from ..scheduler.queues import queue_back, queue_by_urgency
from ..scheduler.stages import tokenized_ns
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    ARRIVED,
    CANCELLED,
    FIRST_TERMINAL,
    NO_SEQ,
    REFUSED,
    TOKENIZING,
    WAITING,
)

# Kinds, in order of precedence at one instant. Typed, since every literal would compile a push_event of its own.
ARRIVAL, READY, PLACE_FREE, CANCEL = np.arange(4)

_TIME, KIND, _NUMBER, _SEQ = range(4)


# ---------------------------------------------------------------- the heap


@inline
def _earlier(events, a, b):
    for column in range(3):
        if events[a, column] != events[b, column]:
            return events[a, column] < events[b, column]
    return False


@inline
def _swap(events, a, b):
    for column in range(4):
        events[a, column], events[b, column] = events[b, column], events[a, column]


@jit
def push_event(e, time_ns, kind, seq):
    """Add an event. O(log n); the heap grows as needed."""
    at = e.num_events
    if at == e.events.shape[0]:
        larger = np.zeros((2 * at, 4), np.int64)
        for i in range(at):
            for column in range(4):
                larger[i, column] = e.events[i, column]
        e.events = larger
    events = e.events
    events[at, _TIME] = time_ns
    events[at, KIND] = kind
    events[at, _NUMBER] = e.event_number
    events[at, _SEQ] = seq
    e.event_number += 1
    e.num_events = at + 1
    e.next_ns = min(e.next_ns, time_ns)
    while at > 0 and _earlier(events, at, (at - 1) >> 1):
        _swap(events, at, (at - 1) >> 1)
        at = (at - 1) >> 1


@inline
def _pop_event(e):
    """Remove the first event; returns (time, kind, sequence)."""
    events = e.events
    time_ns, kind, seq = events[0, _TIME], events[0, KIND], events[0, _SEQ]
    n = e.num_events - 1
    e.num_events = n
    for column in range(4):
        events[0, column] = events[n, column]
    at = 0
    while True:
        least = at
        for child in range(2 * at + 1, 2 * at + 3):
            if child < n and _earlier(events, child, least):
                least = child
        if least == at:
            return time_ns, kind, seq
        _swap(events, at, least)
        at = least


@jit
def note_next_event(e):
    """Keep e.next_ns: when something will happen that is not the end of a step; NEVER_NS if nothing."""
    time_ns = e.events[0, _TIME] if e.num_events > 0 else NEVER_NS
    if e.next_arrival < e.arrive_order.size:
        time_ns = min(time_ns, e.seqs.arrival[e.arrive_order[e.next_arrival]])
    if e.backups.ns_per_block > 0:
        time_ns = min(time_ns, next_end(e))
    e.next_ns = time_ns


@jit
def deliver(e):
    """Everything that has happened by now, in order, up to a cancel that only the scheduler can carry out.

    returns  the sequence to be cancelled (call again afterwards), or NO_SEQ when all is delivered
    """
    if e.backups.ns_per_block > 0 and next_end(e) <= e.now:
        end_copies(e)
        note_next_event(e)
    while e.next_ns <= e.now:
        arrival, seq = NEVER_NS, np.int64(-1)
        if e.next_arrival < e.arrive_order.size:
            seq = e.arrive_order[e.next_arrival]
            arrival = e.seqs.arrival[seq]
        if e.num_events == 0 or arrival <= e.events[0, _TIME]:
            e.next_arrival += 1
            note_next_event(e)
            _arrive(e, seq)
        else:
            now, kind, seq = _pop_event(e)
            note_next_event(e)
            if kind == ARRIVAL:
                _arrive(e, seq)
            elif kind == READY:
                _enqueue(e, seq)
            elif kind == PLACE_FREE:
                e.in_flight -= 1
                _release_held(e, now)
            elif kind == CANCEL and not _cancel_unseen(e, seq, now):
                return seq
        settle_ended(e)
    return NO_SEQ


# ---------------------------------------------------------------- what they do


@inline
def _arrive(e, seq):
    """A client wants to send: refused if it could never run, held back by the concurrency cap, or sent."""
    q = e.seqs
    if is_refused(e, seq):
        q.queued[seq] = q.arrival[seq]
        close_sequence(e, seq, REFUSED, q.arrival[seq])
        return
    if q.cancel_after[seq] >= 0 and not e.closed_loop:
        push_event(e, q.arrival[seq] + q.cancel_after[seq], CANCEL, seq)
    if e.concurrency > 0 and e.in_flight >= e.concurrency:
        e.held[e.held_tail] = seq
        e.held_tail += 1
    else:
        _send(e, seq, q.arrival[seq])


@inline
def is_refused(e, seq):
    """Whether a sequence is refused at arrival: it asks for nothing, or for more than could ever run."""
    whole = e.seqs.prompt[seq] + e.seqs.max_tokens[seq]
    return e.refuse and (e.seqs.output[seq] < 1 or whole > e.capacity_tokens or whole > e.rules.max_model_len)


@jit
def _send(e, seq, now):
    """The client sends; under a closed loop it decides to ask only now."""
    q = e.seqs
    e.in_flight += 1
    if e.closed_loop:
        q.arrival[seq] = now
        if q.cancel_after[seq] >= 0:
            push_event(e, now + q.cancel_after[seq], CANCEL, seq)
    set_state(e, seq, TOKENIZING)
    q.queued[seq] = tokenized_ns(e.stages, now, q.prompt[seq])
    if q.queued[seq] > now:
        push_event(e, q.queued[seq], READY, seq)
    else:
        _enqueue(e, seq)


@jit
def _enqueue(e, seq):
    q = e.seqs
    if q.state[seq] != TOKENIZING:
        return  # cancelled meanwhile
    set_state(e, seq, WAITING)
    if e.rules.priority:
        queue_by_urgency(e, seq)
    else:
        queue_back(e, seq)


@inline
def _cancel_unseen(e, seq, now):
    """Cancel a sequence that the scheduler has not seen yet, or not any more. False: it has to do it."""
    state = e.seqs.state[seq]
    if state == ARRIVED or state == TOKENIZING:
        if state == ARRIVED:
            e.in_flight += 1  # it never was in flight; its place is free soon
        e.seqs.queued[seq] = -1  # it never got into the queue
        close_sequence(e, seq, CANCELLED, now)
        return True
    return state >= FIRST_TERMINAL


@jit
def settle_ended(e):
    """Tell the world about sequences that ended: their places will be free, their successors may come."""
    q = e.seqs
    for i in range(e.num_ended):  # in the order in which they ended
        seq = e.ended[i]
        if q.state[seq] == REFUSED:
            pass  # it was never in flight
        elif e.concurrency == 0:
            e.in_flight -= 1
        else:
            push_event(e, q.finish[seq], PLACE_FREE, seq)  # the client has its last token only then
        lead = q.lead[q.request[seq]]
        q.pending[lead] -= 1
        q.ended_ns[lead] = max(q.ended_ns[lead], q.finish[seq])
        if q.pending[lead] == 0:
            _start_successors(e, lead)
    e.num_ended = 0


@inline
def _release_held(e, now):
    """The client's queue behind the concurrency cap moves up."""
    while e.held_head < e.held_tail and e.in_flight < e.concurrency:
        seq = e.held[e.held_head]
        e.held_head += 1
        if e.seqs.state[seq] == ARRIVED:
            _send(e, seq, now)


@inline
def _start_successors(e, request):
    """All samples, of parallel calls too, are done: the next turn comes after the last of them, and the thinking."""
    q = e.seqs
    end_ns = q.ended_ns[request]
    child = q.child[request]
    while child >= 0:
        arrival = end_ns + q.think_ns[child]
        for seq in range(q.first[child], q.first[child + 1]):
            q.arrival[seq] = arrival
            push_event(e, arrival, ARRIVAL, seq)
        child = q.sibling[child]
