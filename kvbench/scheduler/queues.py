"""The waiting list and the running list: who is where, in which order. No memory is touched here."""

from __future__ import annotations

from ..core.jit import inline, jit
from .state_columns import (
    COMPUTED,
    FINAL,
    FREE_SLOT,
    GENERATED,
    IN_PREFILL,
    KNOWN,
    LAST_TOKEN,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    ORDER,
    PHASE,
    PREV,
    ROW,
    SEQ,
    SINCE,
)

# ---------------------------------------------------------------- waiting list


@jit
def _link(e, seq, before, after):
    """Put a sequence between two neighbours of the waiting list."""
    q = e.seqs
    q.queue_prev[seq] = before
    q.queue_next[seq] = after
    if before == NO_SEQ:
        e.queue_head = seq
    else:
        q.queue_next[before] = seq
    if after == NO_SEQ:
        e.queue_tail = seq
    else:
        q.queue_prev[after] = seq
    e.num_waiting += 1


@inline
def queue_back(e, seq):
    e.num_queued += 1
    e.seqs.entry[seq] = e.num_queued
    e.seqs.processed_then[seq] = e.processed_tokens
    _link(e, seq, e.queue_tail, NO_SEQ)


@inline
def queue_front(e, seq):
    _link(e, seq, NO_SEQ, e.queue_head)


@jit
def more_urgent(e, a, b):
    """Order of policy priority: (priority, arrival), ties by number."""
    q = e.seqs
    if q.priority[a] != q.priority[b]:
        return q.priority[a] < q.priority[b]
    if q.arrival[a] != q.arrival[b]:
        return q.arrival[a] < q.arrival[b]
    return a < b


@inline
def queue_by_urgency(e, seq):
    """Sorted insertion from the back: a new arrival usually belongs near it."""
    q = e.seqs
    before = e.queue_tail
    while before != NO_SEQ and more_urgent(e, seq, before):
        before = q.queue_prev[before]
    after = e.queue_head if before == NO_SEQ else q.queue_next[before]
    _link(e, seq, before, after)


@jit
def queue_by_arrival(e, seq):
    """Before all that were queued after it: one that was set aside comes back."""
    q = e.seqs
    after = e.queue_head
    while after != NO_SEQ and (q.queued[after] < q.queued[seq] or (q.queued[after] == q.queued[seq] and after < seq)):
        after = q.queue_next[after]
    before = e.queue_tail if after == NO_SEQ else q.queue_prev[after]
    _link(e, seq, before, after)


@jit
def queue_remove(e, seq):
    q = e.seqs
    before, after = q.queue_prev[seq], q.queue_next[seq]
    if before == NO_SEQ:
        e.queue_head = after
    else:
        q.queue_next[before] = after
    if after == NO_SEQ:
        e.queue_tail = before
    else:
        q.queue_prev[after] = before
    e.num_waiting -= 1


# ---------------------------------------------------------------- the ended, until the clients know


@inline
def ended_append(e, seq):
    if e.ended_tail == NO_SEQ:
        e.ended_head = seq
    else:
        e.seqs.ended_next[e.ended_tail] = seq
    e.ended_tail = seq


@inline
def take_ended(e):
    """The first of the list; there has to be one."""
    seq = e.ended_head
    e.ended_head = e.seqs.ended_next[seq]
    if e.ended_head == NO_SEQ:
        e.ended_tail = NO_SEQ
    return seq


# ---------------------------------------------------------------- slots and the running list


@inline
def peek_slot(slots):
    """The slot that open_slot will give; its table row may be written before (hits of a candidate)."""
    return slots.free[slots.num_free - 1]


@inline
def open_slot(e, seq):
    """Give a sequence a slot. It is in no list yet."""
    slots, q = e.slots, e.seqs
    slots.num_free -= 1
    slot = slots.free[slots.num_free]
    slots.holders += 1
    rec = slots.rec
    rec[slot, SEQ] = seq
    rec[slot, GENERATED] = q.generated[seq]
    rec[slot, KNOWN] = q.prompt[seq] + q.generated[seq]
    # a cancel that came while it ran holds although it lost its memory meanwhile
    rec[slot, FINAL] = q.generated[seq] + 1 if q.flagged[seq] == 1 else q.output[seq]
    rec[slot, COMPUTED] = 0
    rec[slot, PHASE] = IN_PREFILL
    rec[slot, LAST_TOKEN] = q.last_token[seq]
    rec[slot, SINCE] = -1
    rec[slot, ROW] = -1
    q.slot[seq] = slot
    return slot


@inline
def close_slot(e, slot):
    """The sequence has left; its memory is gone and it is in no list."""
    slots = e.slots
    slots.rec[slot, PHASE] = FREE_SLOT
    slots.free[slots.num_free] = slot
    slots.num_free += 1


@jit
def run_append(slots, slot):
    rec = slots.rec
    rec[slot, PREV] = slots.tail
    rec[slot, NEXT] = NO_SLOT
    if slots.tail == NO_SLOT:
        slots.head = slot
    else:
        rec[slots.tail, NEXT] = slot
    slots.tail = slot
    slots.running += 1
    slots.appended += 1
    rec[slot, ORDER] = slots.appended


@jit
def run_remove(slots, slot):
    rec = slots.rec
    before, after = rec[slot, PREV], rec[slot, NEXT]
    if before == NO_SLOT:
        slots.head = after
    else:
        rec[before, NEXT] = after
    if after == NO_SLOT:
        slots.tail = before
    else:
        rec[after, PREV] = before
    slots.running -= 1
