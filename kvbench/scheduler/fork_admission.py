"""Admission under copy on write: alone, as a fork, or as one that waits for the prompt of another.

    alone     the first sequence of a request, behind its cached blocks
    a fork    who comes back or comes late, from a sequence that has the prompt; a turn, from its predecessor's table
    follows   the other sequences of a request whose prompt is being computed: a place, and no memory yet

source: vLLM v0 admits a group as a whole, with places for all and memory for one prompt; the rest as token_budget.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from . import kv
from .forks import blocks_of_donor, came, donor_of, drop_oldest, fork, make_writable
from .lifecycle import admit, count_admission, start_of
from .queues import open_slot, peek_slot, queue_remove, run_append
from .spent import note_admission
from .state import set_state
from .state_columns import (
    COMPUTED,
    FOLLOWS,
    IN_PREFILL,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    PREEMPTED,
    PREFILLING,
    ROW,
    SEQ,
    WAITING,
)

_NO_BUDGET, _NO_MEMORY = np.int64(0), np.int64(-1)


@inline
def schedule_waiting(e, budget, threshold):
    """Admit from the head of the queue until budget, places or memory are used up."""
    q = e.seqs
    while budget > 0 and e.queue_head != NO_SEQ and e.slots.running < e.rules.most_running:
        seq = e.queue_head
        if _prompt_is_coming(e, seq):
            if q.generated[seq] > 0:
                break  # it comes back, and can fork once the prompt is there
            _follow(e, seq)
            continue
        if e.slots.running + _followers(e, seq) >= e.rules.most_running:
            break
        slot, tokens = _admit_or_drop(e, seq, budget, threshold)
        if slot == NO_SLOT:
            break
        add_row(e, slot, tokens, 0)
        budget -= tokens
        if q.generated[seq] == 0:
            _bring_followers(e, seq)


@jit
def _prompt_is_coming(e, seq):
    """A sequence of the same request computes the prompt."""
    q = e.seqs
    request = q.request[seq]
    for other in range(q.first[request], q.first[request + 1]):
        if q.slot[other] != NO_SLOT and has_no_prompt(e, q.slot[other]):
            return True
    return False


@inline
def _would_follow(e, other, seq):
    state = e.seqs.state[other]
    return other != seq and e.seqs.generated[other] == 0 and (state == WAITING or state == PREEMPTED)


@inline
def _followers(e, seq):
    """How many would follow a waiting sequence."""
    q = e.seqs
    request = q.request[seq]
    count = 0
    for other in range(q.first[request], q.first[request + 1]):
        count += np.int64(q.generated[seq] == 0 and _would_follow(e, other, seq))
    return count


@inline
def _bring_followers(e, seq):
    q = e.seqs
    request = q.request[seq]
    if not has_no_prompt(e, q.slot[seq]):
        return  # it forked from one that has the prompt, and so will the others
    for other in range(q.first[request], q.first[request + 1]):
        if _would_follow(e, other, seq):
            _follow(e, other)


@jit
def _follow(e, seq):
    """A sequence waits in the batch for the prompt that another one computes."""
    queue_remove(e, seq)
    slot = open_slot(e, seq)
    e.slots.rec[slot, PHASE] = FOLLOWS
    run_append(e.slots, slot)
    if e.seqs.scheduled[seq] < 0:
        e.seqs.scheduled[seq] = e.now
    note_admission(e, seq)
    set_state(e, seq, PREFILLING)


@inline
def _admit_or_drop(e, seq, budget, threshold):
    """Admit the head of the queue, for which kept tables go: its own predecessor's only if nobody else can give way."""
    slot, tokens = _try_admit(e, seq, budget, threshold)
    while slot == NO_SLOT and tokens == _NO_MEMORY:
        spared, _ = donor_of(e, seq)
        if e.slots.running == 0:
            spared = NO_SLOT
        if not drop_oldest(e, spared):
            break
        slot, tokens = _try_admit(e, seq, budget, threshold)
    return slot, tokens


@jit
def _try_admit(e, seq, budget, threshold):
    """Admit a sequence if it can have memory: behind its cached blocks, or as a fork where that has more of it.

    returns  (slot, tokens of its first chunk), or (NO_SLOT, why not)
    """
    q, rules, bt = e.seqs, e.rules, e.rules.block_tokens
    known = q.prompt[seq] + q.generated[seq]
    slot = peek_slot(e.slots)
    limit = (known - 1) // bt
    if rules.beam_width > 0:
        limit = min(limit, q.prompt[seq] // bt)
    hits, link, tied = kv.lookup(e, seq, limit, e.slots.table[slot])
    start, held = start_of(e, seq, hits), hits - tied
    donor, donated = donor_of(e, seq)
    if donated > start:
        start, held = donated, blocks_of_donor(e, seq, donor, donated)
    else:
        donor = NO_SLOT
    tokens = known - start
    if 0 < threshold < tokens:
        tokens = threshold
    if not rules.chunked and tokens > budget:
        return NO_SLOT, _NO_BUDGET
    tokens = min(tokens, budget)
    last = min(known, rules.max_model_len) if rules.reserve_full_isl else start + tokens
    headroom = rules.watermark_blocks if e.slots.running > 0 else 0
    if (last + bt - 1) // bt - held + headroom > e.pool.num_free:
        return NO_SLOT, _NO_MEMORY
    queue_remove(e, seq)
    if donor == NO_SLOT:
        admit(e, seq, hits, link)
    else:
        open_slot(e, seq)
        fork(e, donor, slot, donated)
        count_admission(e, seq, donated)
        set_state(e, seq, PREFILLING)
    came(e, q.request[seq])
    run_append(e.slots, slot)
    make_writable(e, slot, start + tokens)
    return slot, tokens


@jit
def add_row(e, slot, tokens, blocks_before):
    """Schedule a slot; its full blocks become visible (hash cache), those of a beam as far as its prompt goes."""
    rec = e.slots.rec
    row, start = e.num_plan, rec[slot, COMPUTED]
    e.plan[row, PLAN_SLOT] = slot
    e.plan[row, PLAN_START] = start
    e.plan[row, PLAN_TOKENS] = tokens
    e.plan[row, PLAN_BLOCKS_BEFORE] = blocks_before
    rec[slot, ROW] = row
    e.num_plan = row + 1
    visible = start + tokens
    if e.rules.beam_width > 0:
        visible = min(visible, e.seqs.prompt[rec[slot, SEQ]])
    kv.publish_hashed(e, slot, visible)


@inline
def has_no_prompt(e, slot):
    """A slot computes its prompt, or waits for one."""
    rec = e.slots.rec
    if rec[slot, PHASE] == FOLLOWS:
        return True
    return rec[slot, PHASE] == IN_PREFILL and rec[slot, COMPUTED] < e.seqs.prompt[rec[slot, SEQ]]
