"""From admission to the end: what happens to one sequence, whichever discipline runs.

The journal's columns are stamped here and nowhere else.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from . import kv
from .calendar import note_gap
from .mail import FIRST, post
from .queues import close_slot, ended_append, open_slot, queue_back, queue_by_urgency, queue_front, queue_remove
from .spent import note_admission, note_decode, note_end, note_preemption
from .state import set_state
from .state_columns import (
    CANCELLED,
    COMPUTED,
    COUNT_RECOMPUTED,
    DECODING,
    ENDED,
    FETCHING,
    FINAL,
    FINISHED,
    GENERATED,
    IN_DECODE,
    KNOWN,
    LAST_TOKEN,
    LEAK_ON_CANCEL,
    NO_SLOT,
    PHASE,
    PREEMPTED,
    PREFILLING,
    SEQ,
    WAITING,
)


@jit
def accept(e, seq):
    """A sequence is given to this engine: it waits."""
    set_state(e, seq, WAITING)
    if e.rules.priority:
        queue_by_urgency(e, seq)
    else:
        queue_back(e, seq)


@inline
def start_of(e, seq, hits):
    """First token that an admission has to compute: behind the hits, or behind the KV that came with it.

    What came with it is gone once it has been preempted.
    """
    start = hits * e.rules.block_tokens
    if e.seqs.scheduled[seq] < 0:
        start = max(start, e.seqs.present[seq])
    return start


@inline
def admit(e, seq, hits, link):
    """A waiting sequence gets a slot, its hits and the KV that came with it. The caller takes it off the list."""
    start = start_of(e, seq, hits)
    slot = open_slot(e, seq)
    kv.attach(e, slot, hits, link)
    if start > hits * e.rules.block_tokens:
        kv.install(e, slot, start)
    e.seqs.backed[seq] = 0 if e.rules.tiered else hits  # copies on the host may have gone
    count_admission(e, seq, hits * e.rules.block_tokens)
    set_state(e, seq, PREFILLING)
    return slot


@inline
def count_admission(e, seq, matched):
    """An admission found `matched` tokens: hits if it is the first one, less to recompute after a preemption."""
    q = e.seqs
    note_admission(e, seq)
    if q.scheduled[seq] < 0:
        q.scheduled[seq] = e.now
        q.asked[seq] = 1
        q.cached[seq] = matched
        e.matched_tokens += matched
        e.admitted_prompt_tokens += q.prompt[seq]
    else:  # it comes back after a preemption: what it had computed and does not find is computed again
        again = max(q.lost[seq] - matched, 0)
        q.recomputed[seq] += again
        e.recomputed_tokens += again
        if e.rules.planted & COUNT_RECOMPUTED:
            q.cached[seq] += matched
            e.matched_tokens += matched


@inline
def first_token_out(e, seq, now):
    """The first token of a sequence is made at `now`; it is handed out stages.delay_ns later."""
    e.seqs.first_token[seq] = now + e.stages.delay_ns
    if e.tells_first:
        post(e.outbox, FIRST, seq)


@inline
def begin_decode(e, slot, now):
    """A prefill is complete at `now`, the end of a step: a token comes out. True when it is the last."""
    rec = e.slots.rec
    seq = rec[slot, SEQ]
    if rec[slot, LAST_TOKEN] < 0:
        first_token_out(e, seq, now)
    else:
        note_gap(e.journal, now - rec[slot, LAST_TOKEN], np.int64(1))
    rec[slot, PHASE] = IN_DECODE
    set_state(e, seq, DECODING)
    note_decode(e, seq)
    return count_token(rec, slot, now)


@inline
def count_token(rec, slot, now):
    """A token came out. True when it is the last."""
    rec[slot, LAST_TOKEN] = now
    rec[slot, KNOWN] += 1
    rec[slot, GENERATED] += 1
    return rec[slot, GENERATED] >= rec[slot, FINAL]


@jit
def leave(e, slot):
    """Memory goes back. The slot stays with its lists."""
    rec = e.slots.rec
    seq = rec[slot, SEQ]
    kv.release(e, slot)
    e.seqs.generated[seq] = rec[slot, GENERATED]
    e.seqs.last_token[seq] = rec[slot, LAST_TOKEN]
    rec[slot, PHASE] = ENDED
    e.seqs.slot[seq] = -1


@jit
def end(e, slot, state):
    """The sequence is over: memory goes back, the journal is closed. The slot stays with its lists."""
    if e.rules.planted & LEAK_ON_CANCEL and state == CANCELLED:
        kv.lose(e, slot)
    leave(e, slot)
    close_sequence(e, e.slots.rec[slot, SEQ], state)


@jit
def close_sequence(e, seq, state):
    """Stamp a terminal state. The client is told, who frees the place and sends the successors."""
    set_state(e, seq, state)
    note_end(e, seq)
    q = e.seqs
    q.finish[seq] = e.now + e.stages.delay_ns if state == FINISHED else e.now
    ended_append(e, seq)
    e.num_done += 1


@jit
def free_memory(e, seq):
    """A sequence that holds memory and does not run gives it back, with its slot."""
    slot = e.seqs.slot[seq]
    kv.release(e, slot)
    close_slot(e, slot)
    e.seqs.slot[seq] = NO_SLOT


@inline
def let_go(e, seq, state):
    """The same, and it ends."""
    free_memory(e, seq)
    close_sequence(e, seq, state)


@inline
def drop_waiting(e, seq, state):
    """A waiting sequence, or one that fetches, ends without having (or having again) run."""
    if e.seqs.state[seq] != FETCHING:  # it is in no list, and what is fetched for it stays as cache
        queue_remove(e, seq)
    close_sequence(e, seq, state)


@inline
def preempt(e, slot):
    """Recompute preemption: the memory goes, the sequence waits again, before the others (or by urgency)."""
    rec = e.slots.rec
    seq = rec[slot, SEQ]
    suspend(e, slot)
    if e.rules.priority:
        queue_by_urgency(e, seq)
    else:
        queue_front(e, seq)


@jit
def suspend(e, slot):
    """A running sequence loses slot and memory; the caller has taken it off the running list and queues it."""
    rec = e.slots.rec
    seq = rec[slot, SEQ]
    q = e.seqs
    q.lost[seq] = rec[slot, COMPUTED]
    if e.rules.unregister_unwritten:
        kv.withdraw(e, slot)
    kv.release(e, slot)
    q.generated[seq] = rec[slot, GENERATED]
    q.last_token[seq] = rec[slot, LAST_TOKEN]
    q.slot[seq] = -1
    q.preemptions[seq] += 1
    e.preemptions += 1
    set_state(e, seq, PREEMPTED)
    note_preemption(e, seq)
    e.victims[e.num_victims] = seq
    e.num_victims += 1
    close_slot(e, slot)
