"""vLLM's scheduler on the calendar: the same decisions as `token_budget`, without a loop over running sequences.

Valid under fcfs without a threshold for long prompts, when the budget covers a token of every running
sequence (engine.build.calendar_fits): then all running sequences decode in every step, at most one is in its
prefill, and it is the last of the list.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline
from . import kv, token_budget
from .calendar import BUCKET_NEXT, bucket_at, join, leave, settle, watch_end
from .due import open_due, publish_due
from .landing import land_decodes
from .lifecycle import begin_decode, preempt
from .queues import run_remove
from .state_columns import (
    BLOCKS,
    COMPUTED,
    HASHED,
    IN_PREFILL,
    KNOWN,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_SLOT,
    PLAN_TOKENS,
    RADIX,
    SINCE,
)
from .token_budget import add_row, schedule_waiting


@entry
def schedule(e):
    """Blocks for the decodes that need one; then the prefill in progress, then admissions (the plan's rows)."""
    e.num_plan = 0
    e.num_victims = 0
    visit_due(e)
    e.calendar.planned = e.calendar.decoders
    budget = e.rules.max_num_batched_tokens - e.calendar.decoders
    slot = e.slots.tail
    if slot != NO_SLOT and e.slots.rec[slot, PHASE] == IN_PREFILL:
        budget = continue_prefill(e, slot, budget)
    if e.num_victims == 0 and not still_blocked(e):
        schedule_waiting(e, budget, np.int64(0))


@inline
def visit_due(e):
    """Whose token opens a block gets one, whose token fills one publishes it."""
    if not open_due(e):
        _open_one_by_one(e)
    if e.rules.cache_kind == HASHED:
        publish_due(e)


@inline
def _open_one_by_one(e):
    """Memory is short: in order of the running list, evicting (radix) or preempting the last."""
    cal, rec, bt = e.calendar, e.slots.rec, e.rules.block_tokens
    slot = cal.head[bucket_at(cal, bt, 0)]
    while slot != NO_SLOT:
        following = cal.links[BUCKET_NEXT, slot]
        settle(cal, rec, slot)
        kept = True
        while kept and not kv.extend(e, slot, rec[slot, COMPUTED] + 1):
            victim = e.slots.tail
            if victim == following:
                following = cal.links[BUCKET_NEXT, victim]
            _preempt_last(e, victim)
            kept = victim != slot
        if kept:
            watch_end(cal, rec, slot, bt)
        slot = following


@inline
def _preempt_last(e, victim):
    run_remove(e.slots, victim)
    if e.slots.rec[victim, SINCE] >= 0:
        leave(e.calendar, e.slots.rec, victim, e.rules.block_tokens)
    preempt(e, victim)


@inline
def continue_prefill(e, slot, budget):
    """The sequence in its prefill is the last of the list, so it is its own victim. Returns the budget left."""
    rec = e.slots.rec
    start = rec[slot, COMPUTED]
    tokens = min(rec[slot, KNOWN] - start, budget, e.rules.max_model_len - 1 - start)
    if tokens <= 0:
        return budget
    before = rec[slot, BLOCKS]
    if not kv.extend(e, slot, start + tokens):
        _preempt_last(e, slot)
        return budget
    add_row(e, slot, tokens, before)
    return budget - tokens


@inline
def still_blocked(e):
    """The head of the queue was refused, and nothing has happened that could let it in.

    Its need does not fall before the first block that it missed is published (hits that are evicted or let go
    raise the need or leave it), or the pool has as many blocks as it needed. Under radix a look-up stamps the
    tree, so it is never left out.
    """
    if e.queue_head == NO_SEQ or e.queue_head != e.blocked_seq or e.rules.cache_kind == RADIX:
        return False
    if not e.rules.reserve_full_isl or e.rules.watermark_blocks > 0:
        return False
    return kv.available(e) < e.blocked_need and not e.hashes.watch_seen


@entry
def commit(e):
    """Everybody in the calendar is one token further; who has ended leaves; prefills that are complete join."""
    cal, rec, plan, bt = e.calendar, e.slots.rec, e.plan, e.rules.block_tokens
    land_decodes(e, token_budget.finish)
    tokens = 0
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        tokens += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            kv.publish_unfinished(e, slot)
        elif begin_decode(e, slot, e.now):
            token_budget.finish(e, slot)
        else:
            kv.publish_unfinished(e, slot)
            join(cal, rec, slot, bt)
    e.context += tokens


@entry
def cancel(e, seq):
    """Take a sequence out at once, wherever it is."""
    slot = e.seqs.slot[seq]
    if slot != NO_SLOT and e.slots.rec[slot, SINCE] >= 0:
        leave(e.calendar, e.slots.rec, slot, e.rules.block_tokens)
    token_budget.cancel(e, seq)
