"""vLLM's decode side of a pull: memory first, then the KV, then a place in the batch.

    waiting --memory for the whole prompt--> loading --read--> loaded --a place, budget--> running

A load takes no place and no token budget, but nobody is looked at without either. What is loaded, or being loaded,
goes before who waits. A read that fails leaves its sequence to compute its prompt here, or ends it.

source: vLLM 0.33, NIXL connector.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..scheduler import kv, token_budget, token_budget_calendar
from ..scheduler.lifecycle import free_memory, let_go
from ..scheduler.mail import post
from ..scheduler.queues import open_slot, peek_slot, queue_by_urgency, queue_front, queue_remove, run_append
from ..scheduler.shadow import bring
from ..scheduler.side import BROKEN, MEMORY, UNCONNECTED, WENT_WRONG
from ..scheduler.spent import note_admission
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    CANCELLED,
    COMPUTED,
    DRAINING,
    DRAINS,
    FAILED,
    IN_PREFILL,
    KNOWN,
    LOADED,
    LOADING,
    LOST,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PREFILLING,
    SEQ,
    TRANSFERRING,
    WAITING,
)
from ..scheduler.token_budget import add_row, drop_empty_rows, schedule_running, threshold_of, try_admit
from ..scheduler.token_budget_calendar import continue_prefill, still_blocked, visit_due


@entry
def schedule(e):
    """Fill the plan as token_budget does, with what holds memory before what waits."""
    e.num_plan = 0
    e.num_victims = 0
    threshold = threshold_of(e)
    e.holds_prefill = False  # what is computed here is a token, or was to be computed elsewhere
    budget = schedule_running(e, e.rules.max_num_batched_tokens, threshold)
    if e.num_victims == 0:
        _walk(e, budget, threshold)
    drop_empty_rows(e)


@entry
def schedule_calendar(e):
    """The same on the calendar, see token_budget_calendar."""
    e.num_plan = 0
    e.num_victims = 0
    visit_due(e)
    e.calendar.planned = e.calendar.decoders
    budget = e.rules.max_num_batched_tokens - e.calendar.decoders
    slot = e.slots.tail
    if slot != NO_SLOT and e.slots.rec[slot, PHASE] == IN_PREFILL:
        budget = continue_prefill(e, slot, budget)
    if e.num_victims == 0 and not (e.side.num_ended == 0 and still_blocked(e)):
        _walk(e, budget, np.int64(0))


@jit
def _walk(e, budget, threshold):
    """Who holds memory, then who waits, while there is a place and budget. A head that does not fit ends it.

    Who was loading keeps its turn: it stays in `holding`, with what is admitted to be loaded behind it.
    """
    side, rec = e.side, e.slots.rec
    held = side.num_holding
    at, kept, fits = np.int64(0), np.int64(0), True
    if side.num_ended == 0:
        at = kept = held
    while fits and budget > 0 and e.slots.running < e.rules.most_running:
        if at < held:
            slot = side.holding[at]
            at += 1
            if rec[slot, PHASE] == LOADING:
                side.holding[kept] = slot
                kept += 1
                continue
            if rec[slot, PHASE] == LOADED:
                _start(e, slot)
                budget -= 1
                continue
            seq = rec[slot, SEQ]
            _give_back(e, seq)
        else:
            seq = e.queue_head
            if seq == NO_SEQ:
                break
            if e.seqs.present[seq] > 0 and e.seqs.scheduled[seq] < 0:
                fits = _load(e, seq, kept)
                kept += np.int64(fits)
                continue
        slot, tokens = try_admit(e, seq, budget, threshold)
        fits = slot != NO_SLOT
        if fits:
            add_row(e, slot, tokens, np.int64(0))
            budget -= tokens
    for i in range(at, held):
        side.holding[kept + i - at] = side.holding[i]
    side.num_holding = kept + held - at


@inline
def _load(e, seq, place):
    """Memory for the whole prompt of the head of the queue, and for a first token that has been handed out: then it
    can start without asking again. What is cached here is not read. place: in `holding`."""
    q, bt = e.seqs, e.rules.block_tokens
    slot, prompt, known = peek_slot(e.slots), q.prompt[seq], q.prompt[seq] + q.generated[seq]
    hits, link, tied = kv.lookup(e, seq, (prompt - 1) // bt, e.slots.table[slot])
    need = (known + bt - 1) // bt - hits + tied
    headroom = e.rules.watermark_blocks if e.slots.running > 0 else 0
    if need + headroom > kv.available(e):
        e.blocked_seq, e.blocked_need = seq, need + headroom
        kv.watch_first_miss(e, seq, hits, link)
        return False
    queue_remove(e, seq)
    open_slot(e, seq)
    kv.attach(e, slot, hits, link)
    kv.extend(e, slot, known)
    e.slots.rec[slot, PHASE] = LOADING
    set_state(e, seq, TRANSFERRING)
    e.side.holding[place] = slot
    post(e.side.outbox, MEMORY, seq)
    return True


@inline
def _start(e, slot):
    """Its KV is here: visible from now on, and one token left to compute."""
    rec, seq = e.slots.rec, e.slots.rec[slot, SEQ]
    hits = rec[slot, COMPUTED]
    kv.adopt(e, slot, e.seqs.prompt[seq])
    start = rec[slot, KNOWN] - 1
    bring(e, slot, hits // e.rules.block_tokens, start)
    e.context += start - rec[slot, COMPUTED]
    rec[slot, COMPUTED] = start
    e.side.num_ended -= 1
    run_append(e.slots, slot)
    rec[slot, PHASE] = IN_PREFILL
    note_admission(e, seq)
    e.seqs.scheduled[seq] = e.now
    e.seqs.cached[seq] = hits
    set_state(e, seq, PREFILLING)
    add_row(e, slot, np.int64(1), np.int64(0))


@inline
def _give_back(e, seq):
    """Its read failed: what it holds goes back, and at the head of the queue it waits to be computed here."""
    q = e.seqs
    free_memory(e, seq)
    e.side.num_ended -= 1
    q.present[seq] = 0
    q.scheduled[seq] = e.now
    q.lost[seq] = q.prompt[seq]
    if e.rules.priority:
        queue_by_urgency(e, seq)
    else:
        queue_front(e, seq)


commit = token_budget.commit
commit_calendar = token_budget_calendar.commit


@entry
def read_ended(e, seq, good):
    """A read is over: its sequence has its KV, or never will, or was over before and lets go now."""
    slot = e.seqs.slot[seq]
    if e.slots.rec[slot, PHASE] == DRAINS:
        let_go(e, seq, FAILED if e.seqs.flagged[seq] == 0 else CANCELLED)
        return
    e.slots.rec[slot, PHASE] = LOADED if good else LOST
    e.side.num_ended += 1
    set_state(e, seq, WAITING)


@entry
def read_is_over(e, seq, good):
    """The same, with what becomes of a sequence whose read failed."""
    ends = e.side.fails or e.seqs.flagged[seq] == 1
    if not good and ends and e.slots.rec[e.seqs.slot[seq], PHASE] != DRAINS:
        fail(e, seq)
    read_ended(e, seq, good)


@entry
def fail(e, seq):
    """Its read has failed, and so does it; its memory goes back when the read is reported."""
    _leave(e, e.seqs.slot[seq])
    e.slots.rec[e.seqs.slot[seq], PHASE] = DRAINS
    set_state(e, seq, DRAINING)


@inline
def _leave(e, slot):
    side = e.side
    at = np.int64(0)
    while side.holding[at] != slot:
        at += 1
    side.num_holding -= 1
    for i in range(at, side.num_holding):
        side.holding[i] = side.holding[i + 1]


@entry
def cancel(e, seq):
    """At once, but for memory that is being written: that waits for the end of its read."""
    slot = e.seqs.slot[seq]
    phase = e.slots.rec[slot, PHASE] if slot != NO_SLOT else IN_PREFILL
    if phase == LOADING and e.side.connection[seq] == BROKEN:  # nothing is written, nor ever will be
        e.side.connection[seq] = UNCONNECTED
        read_is_over(e, seq, WENT_WRONG)
    elif phase == LOADING:
        _leave(e, slot)
        e.slots.rec[slot, PHASE] = DRAINS
        e.seqs.flagged[seq] = 1
        set_state(e, seq, DRAINING)
    elif phase == LOADED or phase == LOST:
        _leave(e, slot)
        e.side.num_ended -= 1
        let_go(e, seq, CANCELLED)
    elif phase == DRAINS:
        e.seqs.flagged[seq] = 1
    elif e.calendar.active:
        token_budget_calendar.cancel(e, seq)
    else:
        token_budget.cancel(e, seq)
