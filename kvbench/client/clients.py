"""Clients on a clock of their own: they send, are held back by a cap, wait for answers, think, and give up.

    next_time     when something happens that is no end of a step
    next_event    what it is, taken off the list
    arrive        somebody wants to send: refused, held back, or to be sent
    free_place, next_held   somebody has its last token: who is held back moves up
    send          it is under way
    give_up       a cancel that no engine has to carry out
    ended         an engine tells of an end: a place will be free, the turns that come after it have a time

No engine is touched here. The caller says where what a client sends goes to; it is READY there when it is tokenised.
Sequences that arrive by themselves are in order in the request table and are merged with the heap by the same key.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..core.requests import NONE, Requests
from ..core.units import NEVER_NS
from ..kernels.event_heap import EventHeap, first_time, make_event_heap, pop_event, push_event
from ..scheduler.state import Sequences
from ..scheduler.state_columns import (
    ARRIVED,
    CANCELLED,
    FIRST_TERMINAL,
    NO_SEQ,
    REFUSED,
    TOKENIZING,
)

# Kinds of events, in order of precedence at one instant. Typed, since every literal would compile a callee of its own.
ARRIVAL, ROUTED, READY, PLACE_FREE, CANCEL, MARK, FLUSH, REPORT, INCIDENT, DEADLINE = np.arange(10)
# ROUTED    the router has decided on a sequence, and it reaches its engine. READY: it is tokenised there
# DEADLINE  of prefill and decode engines: a lease, a heartbeat, a time-out
# REPORT    the router hears how loaded the engines are. INCIDENT: something happens to an engine


@struct
class Clients:
    """n sequences, r requests.

    seqs            shared with the engines: arrival, queued, finish and state are written here until it is an engine's
    events          heap of (time, kind, sequence)
    arrive_order, next_arrival   sequences that arrive by themselves, in order, and how many have
    held            (n,) the queue behind the concurrency cap, from held_head to held_tail
    in_flight       sequences sent of which the client does not have the last token; concurrency: at most, 0 = no cap
    closed_loop     an intended arrival is the moment at which a place is free
    ended_ns        (r,) of a lead: when the last of its sequences that are done was
    think_ns        (r,) from there to the arrival
    marks, next_mark   sequences whose sending begins a phase, in order, and how many have begun
    num_done        sequences that have ended
    """

    seqs: "Sequences"
    events: "EventHeap"
    arrive_order: "i8[::1]"
    next_arrival: "i8"
    held: "i8[::1]"
    held_head: "i8"
    held_tail: "i8"
    in_flight: "i8"
    concurrency: "i8"
    closed_loop: "b1"
    ended_ns: "i8[::1]"
    think_ns: "i8[::1]"
    marks: "i8[::1]"
    next_mark: "i8"
    num_done: "i8"


def make_clients(
    requests: Requests,
    seqs: Sequences,
    *,
    concurrency: int,
    closed_loop: bool,
) -> Clients:
    """Clients at t = 0. concurrency is in sequences."""
    r, num = requests, requests.num_sequences
    marks = np.zeros(0, np.int64)
    if r.excluded:
        begins = [int(np.argmax(r.phase == phase)) for phase in range(len(r.phases)) if np.any(r.phase == phase)]
        marks = np.asarray(seqs.first)[begins]
    return Clients(
        seqs,
        make_event_heap(),
        np.flatnonzero(np.repeat(r.after == NONE, r.samples)).astype(np.int64),
        0,
        np.zeros(num + 1, np.int64),
        0,
        0,
        0,
        concurrency,
        closed_loop,
        np.zeros(len(r), np.int64),
        r.think_ns.copy(),
        marks,
        0,
        0,
    )


@entry
def announce(c, time_ns, kind, subject):
    """From Python, before the run: something will happen."""
    push_event(c.events, time_ns, kind, subject)


@inline
def next_time(c):
    """When something happens at the clients', or NEVER_NS."""
    time_ns = first_time(c.events)
    if c.next_arrival < c.arrive_order.size:
        time_ns = min(time_ns, c.seqs.arrival[c.arrive_order[c.next_arrival]])
    return time_ns


@inline
def next_event(c):
    """Take what happens next. Returns (time, kind, subject); there has to be one."""
    arrival, seq = NEVER_NS, np.int64(-1)
    if c.next_arrival < c.arrive_order.size:
        seq = c.arrive_order[c.next_arrival]
        arrival = c.seqs.arrival[seq]
    if arrival <= first_time(c.events):
        c.next_arrival += 1
        return arrival, ARRIVAL, seq
    return pop_event(c.events)


@inline
def close(c, seq, state, now):
    """A sequence that no engine has seen is over."""
    q = c.seqs
    q.state[seq] = state
    q.finish[seq] = now
    ended(c, seq)


@jit
def arrive(c, seq, now):
    """A client wants to send. False: refused since it could never run, or held back by the concurrency cap."""
    q = c.seqs
    if not c.closed_loop:
        _note_phase(c, seq, now)
    if is_refused(q, seq):
        q.queued[seq] = now
        close(c, seq, REFUSED, now)
        return False
    if q.cancel_after[seq] >= 0 and not c.closed_loop:
        push_event(c.events, now + q.cancel_after[seq], CANCEL, seq)
    if c.concurrency > 0 and c.in_flight >= c.concurrency:
        c.held[c.held_tail] = seq
        c.held_tail += 1
        return False
    return True


@inline
def is_refused(q, seq):
    """Whether engine.arrival left it no output: it asks for nothing, or for what could never run."""
    return q.output[seq] < 1


@inline
def send(c, seq, now):
    """The client sends; under a closed loop it decides to ask only now."""
    q = c.seqs
    c.in_flight += 1
    if c.closed_loop:
        q.arrival[seq] = now
        if q.cancel_after[seq] >= 0:
            push_event(c.events, now + q.cancel_after[seq], CANCEL, seq)
    if c.closed_loop:
        _note_phase(c, seq, now)
    q.state[seq] = TOKENIZING


@inline
def _note_phase(c, seq, now):
    """The first sequence of a phase has come."""
    while c.next_mark < c.marks.size and (c.marks[c.next_mark] == seq or c.seqs.state[c.marks[c.next_mark]] != ARRIVED):
        push_event(c.events, now, MARK, c.next_mark)
        c.next_mark += 1


@inline
def free_place(c):
    """A client has its last token. The caller sends who is held back."""
    c.in_flight -= 1


@inline
def next_held(c):
    """Who moves up in the queue behind the concurrency cap, or NO_SEQ."""
    while c.held_head < c.held_tail and c.in_flight < c.concurrency:
        seq = c.held[c.held_head]
        c.held_head += 1
        if c.seqs.state[seq] == ARRIVED:
            return seq
    return NO_SEQ


@inline
def give_up(c, seq, now):
    """Cancel a sequence that no engine has seen yet, or that is over. False: an engine has to do it."""
    state = c.seqs.state[seq]
    if state == ARRIVED or state == TOKENIZING:
        if state == ARRIVED:
            c.in_flight += 1  # it never was in flight; its place is free soon
        c.seqs.queued[seq] = -1  # it never got into a queue
        close(c, seq, CANCELLED, now)
        return True
    return state >= FIRST_TERMINAL


@jit
def ended(c, seq):
    """A sequence has ended: its place will be free, its successors may come."""
    q = c.seqs
    c.num_done += 1
    if q.state[seq] == REFUSED:
        pass  # it was never in flight
    elif c.concurrency == 0:
        c.in_flight -= 1
    else:
        push_event(c.events, q.finish[seq], PLACE_FREE, seq)  # the client has its last token only then
    lead = q.lead[q.request[seq]]
    q.pending[lead] -= 1
    c.ended_ns[lead] = max(c.ended_ns[lead], q.finish[seq])
    if q.pending[lead] == 0:
        _start_successors(c, lead)


@inline
def _start_successors(c, request):
    """All samples, of parallel calls too, are done: the next turn comes after the last of them, and the thinking."""
    q = c.seqs
    child = q.child[request]
    while child >= 0:
        arrival = c.ended_ns[request] + c.think_ns[child]
        for seq in range(q.first[child], q.first[child + 1]):
            q.arrival[seq] = arrival
            push_event(c.events, arrival, ARRIVAL, seq)
        child = q.sibling[child]
