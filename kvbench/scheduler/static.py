"""Static batching, the baseline: a batch is formed when the engine is empty and waits for its longest member.

Every member reserves memory for prompt + max_tokens at once, so nothing is preempted. The prompts are computed
first, chunk by chunk; then all decode together. Who is done keeps its place and its memory (state DRAINING)
and is computed as padding until the last one is done; its tokens are handed out as they come.
"""

from __future__ import annotations

from ..core.jit import entry, inline, jit
from . import kv
from .landing import land_rows
from .lifecycle import admit, drop_waiting, end, leave
from .queues import close_slot, ended_append, peek_slot, queue_remove, run_append, run_remove
from .spent import note_end
from .state import set_state
from .state_columns import (
    CANCELLED,
    COMPUTED,
    DRAINING,
    ENDED,
    FINISHED,
    IN_DECODE,
    IN_PREFILL,
    KNOWN,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    SEQ,
)
from .token_budget import add_row


@entry
def schedule(e):
    """Prompts while there are any, then one token of every member that is not done."""
    e.num_plan = 0
    e.num_victims = 0
    if e.slots.running == 0:
        _form_batch(e)
    budget = e.rules.max_num_batched_tokens
    rec = e.slots.rec
    slot = e.slots.head
    while slot != NO_SLOT and budget > 0:
        if rec[slot, PHASE] == IN_PREFILL:
            tokens = min(rec[slot, KNOWN] - rec[slot, COMPUTED], budget)
            add_row(e, slot, tokens, 0)
            budget -= tokens
        slot = rec[slot, NEXT]
    if e.num_plan > 0:
        return
    slot = e.slots.head
    while slot != NO_SLOT:
        if rec[slot, PHASE] == IN_DECODE:
            add_row(e, slot, 1, 0)
        slot = rec[slot, NEXT]


@inline
def _form_batch(e):
    q, bt = e.seqs, e.rules.block_tokens
    while e.queue_head != NO_SEQ and e.slots.running < e.rules.most_running:
        seq = e.queue_head
        slot = peek_slot(e.slots)
        hits, link, tied = kv.lookup(e, seq, (q.prompt[seq] - 1) // bt, e.slots.table[slot])
        whole = q.prompt[seq] + q.max_tokens[seq]
        if (whole + bt - 1) // bt - hits + tied > kv.available(e):
            break
        queue_remove(e, seq)
        admit(e, seq, hits, link)
        run_append(e.slots, slot)
        kv.extend(e, slot, whole)


@entry
def commit(e):
    """As under continuous batching, but nobody leaves before all are done."""
    land_rows(e, _drain, True)
    _dissolve(e)


@inline
def _drain(e, slot):
    """Done: the last token is out and the client has it; place and memory stay with the batch."""
    seq = e.slots.rec[slot, SEQ]
    e.slots.rec[slot, PHASE] = ENDED
    e.seqs.finish[seq] = e.now + e.stages.delay_ns
    set_state(e, seq, DRAINING)
    note_end(e, seq)
    ended_append(e, seq)


@jit
def _dissolve(e):
    """When the last member is done, all leave at once."""
    rec = e.slots.rec
    slot = e.slots.head
    while slot != NO_SLOT:
        if rec[slot, PHASE] != ENDED:
            return
        slot = rec[slot, NEXT]
    slot = e.slots.head
    while slot != NO_SLOT:
        following = rec[slot, NEXT]
        run_remove(e.slots, slot)
        kv.publish_finished(e, slot)
        leave(e, slot)
        set_state(e, rec[slot, SEQ], FINISHED)
        e.num_done += 1
        close_slot(e, slot)
        slot = following


@entry
def cancel(e, seq):
    """A waiting sequence or a running one goes at once; one that drains is done already."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT:
        drop_waiting(e, seq, CANCELLED)
    elif e.slots.rec[slot, PHASE] != ENDED:
        run_remove(e.slots, slot)
        end(e, slot, CANCELLED)
        close_slot(e, slot)
        _dissolve(e)
