"""SGLang's prefill side of a push: its pages go out while later chunks compute, and it never decodes.

    queue --connected, a place for its first token--> waiting --admitted--> prefill --> parked --arrived--> done

A sequence may be computed only when the decode side has memory for it. Parked ones keep their row of the request table.

source: SGLang 0.5.12, prefill mode.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..scheduler import kv
from ..scheduler.lifecycle import close_sequence, count_token, drop_waiting, end, first_token_out
from ..scheduler.mail import post
from ..scheduler.prefill_first import may_prefill, prefill
from ..scheduler.queues import close_slot, queue_back
from ..scheduler.side import BROKEN, CHUNK, COMPUTED_PROMPT, CONNECTED, UNCONNECTED, WENT_WRONG
from ..scheduler.spent import note_end
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    BOOTSTRAPPING,
    CANCELLED,
    COMPUTED,
    FINISHED,
    KNOWN,
    NO_SLOT,
    PARKED,
    PHASE,
    PLAN_SLOT,
    PLAN_TOKENS,
    SENDING,
    SEQ,
    WAITING,
)
from ..scheduler.waiting_order import sort_waiting
from .marks import give_mark, take_mark
from .push_queue import end_of, enter, keep_from


@entry
def accept(e, seq):
    """A sequence is given to this engine."""
    enter(e, seq)


@entry
def schedule(e):
    """A prefill batch in the plan, or nothing."""
    _open(e)
    if may_prefill(e):
        prefill(e)


@entry
def schedule_sorted(e):
    """The same under a policy that sorts the waiting list first."""
    _open(e)
    if may_prefill(e):
        sort_waiting(e)
        prefill(e)


@inline
def _open(e):
    """Who is connected waits; the chunk before enters the tree, and its whole pages go out."""
    e.num_plan = 0
    e.num_victims = 0
    _let_in(e)
    e.batch_is_full = False
    e.batch_size = 0
    if e.chunk != NO_SLOT:
        kv.publish_chunk(e, e.chunk)
        post(e.side.outbox, CHUNK, e.slots.rec[e.chunk, SEQ])


@jit
def _let_in(e):
    """The queue in order: who is not connected is passed over, the first without a place for its token ends it."""
    side = e.side
    if side.num_ended == 0:
        return
    queue, connection = side.queue, side.connection
    kept, at = np.int64(0), np.int64(0)
    while at < side.num_queued:
        seq = queue[at]
        now = connection[seq]
        if now == CONNECTED and side.num_marks == 0:
            break
        if now == UNCONNECTED:
            queue[kept] = seq
            kept += 1
        elif now == CONNECTED:
            side.num_ended -= 1
            take_mark(side, seq)
            set_state(e, seq, WAITING)
            queue_back(e, seq)
        else:
            side.num_ended -= 1
            close_sequence(e, seq, end_of(e, seq))
        at += 1
    keep_from(side, at, kept)


@entry
def commit(e):
    """The step is over at e.now: whose prompt is complete has its first token, enters the tree and is parked."""
    rec, plan = e.slots.rec, e.plan
    tokens = np.int64(0)
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        tokens += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] >= rec[slot, KNOWN]:
            _park(e, slot)
    e.context += tokens
    e.batch_size = 0


@jit
def _park(e, slot):
    rec, seq = e.slots.rec, e.slots.rec[slot, SEQ]
    first_token_out(e, seq, e.now)
    count_token(rec, slot, e.now)
    kv.publish_unfinished(e, slot)
    rec[slot, PHASE] = PARKED
    set_state(e, seq, SENDING)
    note_end(e, seq)
    post(e.side.outbox, COMPUTED_PROMPT, seq)


@entry
def let_go(e, seq, good):
    """Its pages have arrived, or never will: what it computed stays in the tree."""
    slot = e.seqs.slot[seq]
    kv.publish_finished(e, slot)
    end(e, slot, FINISHED if good else end_of(e, seq))
    close_slot(e, slot)
    give_mark(e.side, seq)


@entry
def cancel(e, seq):
    """Who waits goes at once; who is computed ends then; a parked one stays until nobody wants it (flagged before)."""
    state, flagged = e.seqs.state[seq], e.seqs.flagged[seq]
    e.seqs.flagged[seq] = 1
    if state == SENDING and flagged == 1:
        let_go(e, seq, WENT_WRONG)
    elif state == BOOTSTRAPPING:
        if e.side.connection[seq] == UNCONNECTED:
            e.side.num_ended += 1
        e.side.connection[seq] = BROKEN
    elif state == WAITING:
        give_mark(e.side, seq)
        drop_waiting(e, seq, CANCELLED)
