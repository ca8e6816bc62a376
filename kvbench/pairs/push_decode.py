"""SGLang's decode side of a push: memory for a prompt before anything of it is computed, then decodes alone.

    queue --connected, budget--> loading --arrived--> waiting --a place--> running
    running --no memory--> retracted (KV in host memory) --budget--> waiting

What decoding sequences are expected to take stays free. While a retracted one cannot return, nobody is given memory and
no transfer is looked at, unless nothing else can make room.

source: SGLang 0.5.12, decode mode.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..scheduler import kv, prefill_first
from ..scheduler.calendar import join, leave, tick
from ..scheduler.due import open_due
from ..scheduler.lifecycle import close_sequence, end, let_go
from ..scheduler.mail import post
from ..scheduler.prefill_first import plan_decodes, prepare_decode
from ..scheduler.queues import close_slot, queue_back, queue_remove, run_append
from ..scheduler.shadow import bring
from ..scheduler.side import BROKEN, CONNECTED, GIVEN_UP, UNCONNECTED
from ..scheduler.spent import note_decode
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    BOOTSTRAPPING,
    CANCELLED,
    DECODING,
    DRAINS,
    FINAL,
    GENERATED,
    IN_DECODE,
    KNOWN,
    LAST_TOKEN,
    LOADED,
    LOADING,
    LOST,
    NO_SEQ,
    NO_SLOT,
    OUT_OF_KV,
    PHASE,
    PREEMPTED,
    PUBLISHED,
    SEQ,
    WAITING,
)
from .marks import give_mark
from .push_memory import give_memory, resume
from .push_queue import end_of, enter


@entry
def accept(e, seq):
    """A sequence is given to this engine, when it is given to the prefill side."""
    enter(e, seq)
    e.side.unseen += 1
    e.side.seen[seq] = 0


@entry
def break_connection(e, seq, how):
    """A sequence without memory never will be sent: its queue notices when it looks next."""
    side = e.side
    if side.connection[seq] == UNCONNECTED:
        side.num_ended += 1
    elif side.seen[seq] == 1:  # nobody is asked once all are connected: the queue is told
        side.seen[seq] = 0
        side.unseen += 1
    side.connection[seq] = how


# ---------------------------------------------------------------- the step


@entry
def schedule(e):
    """Queues, then a row of one token for every running sequence."""
    _open(e)
    if prepare_decode(e):
        plan_decodes(e)
    _keep_retracted(e)


@entry
def schedule_calendar(e):
    """The same on the calendar, see prefill_first_calendar."""
    _open(e)
    e.calendar.planned = 0
    if prepare_decode(e):
        if not open_due(e):
            e.fault = OUT_OF_KV
        e.calendar.planned = e.calendar.decoders
    _keep_retracted(e)


@inline
def _open(e):
    e.num_plan = 0
    e.num_victims = 0
    _look_at_queues(e)
    _start(e)


@jit
def _look_at_queues(e):
    side = e.side
    if side.num_retracted > 0:
        resume(e)
    if side.num_retracted > 0:
        if e.slots.running == 0 and e.queue_head == NO_SEQ:  # nobody else makes room: the real engine stands still here
            _poll_transfers(e)
        return
    side.polls += 1
    if side.polls % side.poll_interval == 0:
        _preallocate(e)
        _poll_transfers(e)


@inline
def _preallocate(e):
    """The queue in order: who is not connected is passed over, the first that does not fit ends it."""
    if e.side.num_queued > 0:
        _notice(e)
        give_memory(e)


@inline
def _notice(e):
    """Who is connected, and who never will be; only while somebody is not: then nobody is asked."""
    side = e.side
    if side.unseen == 0:
        return
    queue, connection, seen = side.queue, side.connection, side.seen
    kept = np.int64(0)
    for i in range(side.num_queued):
        seq = queue[i]
        if connection[seq] > CONNECTED:
            side.num_ended -= 1
            side.unseen -= 1 - seen[seq]
            post(side.outbox, GIVEN_UP, seq)
            close_sequence(e, seq, end_of(e, seq))
            continue
        if connection[seq] == CONNECTED and seen[seq] == 0:
            side.unseen -= 1
            seen[seq] = 1
        queue[kept] = seq
        kept += 1
    side.num_queued = kept


@jit
def _poll_transfers(e):
    """What has arrived waits for a place; what failed gives its memory back."""
    side, rec = e.side, e.slots.rec
    if side.num_ended == 0:
        return
    holding, kept = side.holding, np.int64(0)
    for i in range(side.num_holding):
        slot = holding[i]
        seq = rec[slot, SEQ]
        if rec[slot, PHASE] == LOADING or rec[slot, PHASE] == DRAINS:
            holding[kept] = slot
            kept += 1
            continue
        side.num_ended -= 1
        if rec[slot, PHASE] == LOADED:
            _receive(e, slot)
        else:
            kv.adopt(e, slot, e.seqs.prompt[seq])  # nothing of it is shown; it decides how its blocks are given back
            let_go(e, seq, end_of(e, seq))
        give_mark(side, seq)
    side.num_holding = kept


@inline
def _receive(e, slot):
    rec, seq = e.slots.rec, e.slots.rec[slot, SEQ]
    kv.adopt(e, slot, e.seqs.prompt[seq])
    bring(e, slot, rec[slot, PUBLISHED], e.seqs.prompt[seq])
    rec[slot, GENERATED] += 1
    rec[slot, KNOWN] += 1
    set_state(e, seq, WAITING)
    queue_back(e, seq)


@entry
def transferred(e, seq, how):
    """Its pages have arrived (CONNECTED), or never will. False: too late."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT or e.slots.rec[slot, PHASE] != LOADING:
        return False
    e.side.connection[seq] = how
    e.slots.rec[slot, PHASE] = LOADED if how == CONNECTED else LOST
    e.side.num_ended += 1
    return True


@inline
def _start(e):
    """Who waits joins the running ones, as far as there are places."""
    rec, q = e.slots.rec, e.seqs
    places = e.rules.most_running - e.slots.running
    while places > 0 and e.queue_head != NO_SEQ:
        seq = e.queue_head
        slot = q.slot[seq]
        queue_remove(e, seq)
        kv.publish_unfinished(e, slot)
        run_append(e.slots, slot)
        rec[slot, PHASE] = IN_DECODE
        set_state(e, seq, DECODING)
        if q.scheduled[seq] < 0:
            q.scheduled[seq] = e.now
        if q.first_token[seq] < 0:
            q.first_token[seq] = e.now + e.stages.delay_ns
        if rec[slot, LAST_TOKEN] < 0:
            rec[slot, LAST_TOKEN] = q.last_token[seq] if q.last_token[seq] >= 0 else e.now
        note_decode(e, seq)
        places -= 1
        if rec[slot, GENERATED] >= rec[slot, FINAL]:
            prefill_first.finish(e, slot)
        elif e.calendar.active:
            join(e.calendar, rec, slot, e.rules.block_tokens)


@inline
def _keep_retracted(e):
    """Retracted sequences do not wait with the others."""
    side = e.side
    for i in range(e.num_victims):
        seq = e.victims[i]
        queue_remove(e, seq)
        side.retracted[side.num_retracted] = seq
        side.num_retracted += 1
        side.num_ended += 1


# ---------------------------------------------------------------- the end of a step


commit = prefill_first.commit


@entry
def commit_calendar(e):
    """Everybody in the calendar is one token further; who has ended leaves."""
    cal, rec, bt = e.calendar, e.slots.rec, e.rules.block_tokens
    if cal.planned == 0:
        return
    place = bt + cal.step % bt
    tick(cal, e.journal, e.now)
    e.context += cal.planned
    while cal.head[place] != NO_SLOT:
        slot = cal.head[place]
        leave(cal, rec, slot, bt)
        prefill_first.finish(e, slot)


@entry
def cancel(e, seq):
    """Who waits or is retracted goes at once; who runs with its next token; else its connection breaks."""
    q, slot = e.seqs, e.seqs.slot[seq]
    state = q.state[seq]
    q.flagged[seq] = 1
    if state == BOOTSTRAPPING:
        break_connection(e, seq, BROKEN)
    elif state == PREEMPTED:
        _drop_retracted(e, seq)
    elif slot != NO_SLOT and e.slots.rec[slot, PHASE] == LOADING:
        transferred(e, seq, BROKEN)
    elif state == WAITING and slot != NO_SLOT:
        kv.publish_finished(e, slot)
        end(e, slot, CANCELLED)
        close_slot(e, slot)
        queue_remove(e, seq)
    elif state == DECODING:
        prefill_first.cancel(e, seq)


@inline
def _drop_retracted(e, seq):
    side = e.side
    kept = np.int64(0)
    for i in range(side.num_retracted):
        if side.retracted[i] != seq:
            side.retracted[kept] = side.retracted[i]
            kept += 1
    side.num_retracted = kept
    side.num_ended -= 1
    close_sequence(e, seq, CANCELLED)
