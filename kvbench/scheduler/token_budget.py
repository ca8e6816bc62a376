"""vLLM's scheduler, step by step: one token budget, running sequences first, then waiting ones.

There are no phases: every sequence catches up to the tokens that it has. Running ones come in order of
admission; a failed allocation preempts (the last of the list; under policy priority the least urgent) until
it succeeds or the sequence has preempted itself. Waiting ones enter only in a step without preemption, and
the first that does not fit closes the door.

source: vLLM v1, 0.19 and 0.33; the rules that differ are settings.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from . import kv
from .landing import land_rows
from .lifecycle import admit, drop_waiting, end, preempt, start_of
from .queues import close_slot, more_urgent, peek_slot, queue_remove, run_append, run_remove
from .state_columns import (
    BLOCKS,
    CANCELLED,
    COMPUTED,
    COUNT_REFUSED,
    FINISHED,
    IN_DECODE,
    KNOWN,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    PUBLISHED,
    ROW,
    SEQ,
)


@entry
def schedule(e):
    """Fill the plan. The budget is in tokens; a row is (slot, first token, tokens, blocks before)."""
    e.num_plan = 0
    e.num_victims = 0
    threshold = threshold_of(e)
    e.holds_prefill = e.rules.prefill_schedule_interval > 1 and _holds_prefill(e)
    budget = schedule_running(e, e.rules.max_num_batched_tokens, threshold)
    if e.num_victims == 0:
        schedule_waiting(e, budget, threshold)
        if not e.holds_prefill:
            e.backlog = e.num_waiting > 0
    drop_empty_rows(e)
    e.steps_planned += np.int64(e.num_plan > 0)
    if e.carries_prefill:
        e.last_prefill = e.steps_planned


@inline
def threshold_of(e):
    """Most tokens of one sequence in this step; 0 = no limit."""
    threshold, everybody = e.rules.long_prefill_token_threshold, e.slots.running + e.num_waiting
    if not e.rules.long_prefill_threshold_when_alone and everybody <= 1:
        threshold = 0
    if threshold > 0 and e.rules.long_prefill_token_threshold_adaptive:
        threshold = max(threshold, e.rules.max_num_batched_tokens // max(everybody, 1))
    return threshold


@jit
def _holds_prefill(e):
    """Whether this step is for decodes alone: too soon after a prefill, no backlog, and somebody who decodes."""
    if e.backlog or e.steps_planned + 1 - e.last_prefill >= e.rules.prefill_schedule_interval:
        return False
    slot = e.slots.head
    while slot != NO_SLOT:
        if e.slots.rec[slot, PHASE] == IN_DECODE:
            return True
        slot = e.slots.rec[slot, NEXT]
    return False


@inline
def schedule_running(e, budget, threshold):
    """Rows behind those that are planned, for who has none yet. Returns the tokens left."""
    rec, plan = (
        e.slots.rec,
        e.plan,
    )  # arrays by name: a field read in the loop would count references each time
    bt, longest = e.rules.block_tokens, e.rules.max_model_len - 1
    holds_prefill, prefills = e.holds_prefill, False
    rows = e.num_plan
    slot = e.slots.head
    while slot != NO_SLOT and budget > 0:
        following = rec[slot, NEXT]
        start = rec[slot, COMPUTED]
        tokens = rec[slot, KNOWN] - start
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget, longest - start)
        if tokens <= 0 or rec[slot, ROW] >= 0 or (holds_prefill and rec[slot, PHASE] != IN_DECODE):
            slot = following
            continue
        before = rec[slot, BLOCKS]
        kept = True
        if start + tokens > before * bt:
            e.num_plan = rows
            while kept and not kv.extend(e, slot, start + tokens):
                victim = victim_of(e)
                if victim == following:
                    following = rec[victim, NEXT]
                if rec[victim, ROW] >= 0:  # it had been scheduled in this step: its tokens are free again
                    budget += plan[rec[victim, ROW], PLAN_TOKENS]
                    plan[rec[victim, ROW], PLAN_TOKENS] = 0
                run_remove(e.slots, victim)
                preempt(e, victim)
                kept = victim != slot
        if kept:
            rec[slot, ROW] = rows
            plan[rows, PLAN_SLOT] = slot
            plan[rows, PLAN_START] = start
            plan[rows, PLAN_TOKENS] = tokens
            plan[rows, PLAN_BLOCKS_BEFORE] = before
            rows += 1
            budget -= tokens
            prefills = prefills or rec[slot, PHASE] != IN_DECODE
            if start + tokens >= (rec[slot, PUBLISHED] + 1) * bt:
                kv.publish_hashed(e, slot, start + tokens)
        elif e.rules.self_preemption_ends_step or not e.rules.priority:
            break
        slot = following
    e.num_plan = rows
    e.carries_prefill = prefills
    return budget


@inline
def victim_of(e):
    """Who is preempted next: the last of the running list, under policy priority the least urgent."""
    if not e.rules.priority:
        return e.slots.tail
    rec = e.slots.rec
    worst = e.slots.head
    slot = rec[worst, NEXT]
    while slot != NO_SLOT:
        if more_urgent(e, rec[worst, SEQ], rec[slot, SEQ]):
            worst = slot
        slot = rec[slot, NEXT]
    return worst


@inline
def schedule_waiting(e, budget, threshold):
    while budget > 0 and e.queue_head != NO_SEQ and e.slots.running < e.rules.most_running:
        seq = e.queue_head
        slot, tokens = try_admit(e, seq, budget, threshold)
        if slot == NO_SLOT:
            break
        add_row(e, slot, tokens, 0)
        budget -= tokens


@inline
def try_admit(e, seq, budget, threshold):
    """Admit the head of the queue if its chunk (and, if asked, its whole input) can have memory.

    returns  (slot or NO_SLOT, tokens of its first chunk)
    """
    q, rules = e.seqs, e.rules
    known = q.prompt[seq] + q.generated[seq]
    slot = peek_slot(e.slots)
    hits, link, tied = kv.lookup(e, seq, (known - 1) // rules.block_tokens, e.slots.table[slot])
    start = start_of(e, seq, hits)
    tokens = known - start
    if e.holds_prefill and tokens > 1:
        return NO_SLOT, 0
    prefills = tokens > 1
    if 0 < threshold < tokens:
        tokens = threshold
    if not rules.chunked and tokens > budget:
        return NO_SLOT, 0
    tokens = min(tokens, budget)
    end_ = min(known, rules.max_model_len) if rules.reserve_full_isl else start + tokens
    need = (end_ + rules.block_tokens - 1) // rules.block_tokens - hits + tied
    headroom = rules.watermark_blocks if e.slots.running > 0 else 0
    if need + headroom > kv.available(e):
        e.blocked_seq, e.blocked_need = seq, need + headroom
        kv.watch_first_miss(e, seq, hits, link)
        if e.rules.planted & COUNT_REFUSED:
            e.matched_tokens += hits * rules.block_tokens
        return NO_SLOT, 0
    queue_remove(e, seq)
    admit(e, seq, hits, link)
    run_append(e.slots, slot)
    kv.extend(e, slot, start + tokens)
    e.carries_prefill = e.carries_prefill or prefills
    return slot, tokens


@inline
def add_row(e, slot, tokens, blocks_before):
    """Schedule a slot: a plan row, and its full blocks become visible (hash cache)."""
    rec = e.slots.rec
    row = e.num_plan
    e.plan[row, PLAN_SLOT] = slot
    e.plan[row, PLAN_START] = rec[slot, COMPUTED]
    e.plan[row, PLAN_TOKENS] = tokens
    e.plan[row, PLAN_BLOCKS_BEFORE] = blocks_before
    rec[slot, ROW] = row
    e.num_plan = row + 1
    kv.publish_hashed(e, slot, rec[slot, COMPUTED] + tokens)


@inline
def drop_empty_rows(e):
    """Rows of sequences that were preempted after they had been scheduled go; the order stays."""
    rec, plan = e.slots.rec, e.plan
    kept = 0
    for row in range(e.num_plan):
        if plan[row, PLAN_TOKENS] > 0:
            if kept != row:
                for column in range(4):
                    plan[kept, column] = plan[row, column]
            rec[plan[kept, PLAN_SLOT], ROW] = -1
            kept += 1
    e.num_plan = kept


@entry
def commit(e):
    """The step is over at e.now: what was planned is written; complete sequences emit a token."""
    land_rows(e, finish, True)


@jit
def finish(e, slot):
    """Release a finished sequence; its whole blocks stay as cache."""
    run_remove(e.slots, slot)
    kv.publish_finished(e, slot)
    end(e, slot, FINISHED)
    close_slot(e, slot)


@entry
def cancel(e, seq):
    """Take a sequence out at once, wherever it is."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT:
        drop_waiting(e, seq, CANCELLED)
        return
    run_remove(e.slots, slot)
    end(e, slot, CANCELLED)
    close_slot(e, slot)
