"""vLLM's scheduler with the copy-on-write of v0: samples and beams of a request fork after its prompt.

The first sequence of a request computes the prompt; the others have a place in the batch and no memory (FOLLOWS) until
it is done. Then all share its blocks, the partial last one too, and each has its first token. Decodes write to blocks
of their own: a shared one is copied first (forks). A later turn goes on from its predecessor's table, which is kept for
it while memory lasts; two turns that branch from one both fork.

Where this is not v0: a sample is preempted alone, computed again, and forks from a sample that still runs (v0 swaps
whole groups); beams are preempted together, and each is computed again from the prompt that they share; a table
outlives its request where a turn goes on from it. Who runs is decided as in `token_budget`.

source: vLLM v0 (sequence groups, fork, copy on write); the rest as in token_budget.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from . import beams
from .calendar import note_gap
from .fork_admission import add_row, has_no_prompt, schedule_waiting
from .forks import (
    count_shared_slack,
    drop_oldest,
    drop_unwanted,
    forget_copy,
    fork,
    keep,
    make_writable,
)
from .lifecycle import (
    close_sequence,
    count_token,
    drop_waiting,
    end,
    first_token_out,
    preempt,
)
from .queues import close_slot, run_remove
from .spent import note_decode
from .state import set_state
from .state_columns import (
    BLOCKS,
    CANCELLED,
    COMPUTED,
    DECODING,
    FINISHED,
    FOLLOWS,
    GENERATED,
    IN_DECODE,
    IN_PREFILL,
    KNOWN,
    LAST_TOKEN,
    NEXT,
    NO_SLOT,
    PHASE,
    PLAN_SLOT,
    PLAN_TOKENS,
    ROW,
    SEQ,
    WANTED,
)
from .token_budget import drop_empty_rows, threshold_of, victim_of

# ---------------------------------------------------------------- schedule


@entry
def schedule(e):
    """Fill the plan and the list of copies that come before it."""
    e.num_plan = 0
    e.num_victims = 0
    e.num_copies = 0
    e.num_forks = 0
    drop_unwanted(e)
    threshold = threshold_of(e)
    budget = _schedule_running(e, e.rules.max_num_batched_tokens, threshold)
    if e.num_victims == 0:
        schedule_waiting(e, budget, threshold)
    drop_empty_rows(e)
    e.copied_blocks += e.num_copies
    e.copy_bytes = e.num_copies * e.rules.block_bytes
    e.shared_slack = count_shared_slack(e)


@inline
def _schedule_running(e, budget, threshold):
    rec, longest = e.slots.rec, e.rules.max_model_len - 1
    slot = e.slots.head
    while slot != NO_SLOT and budget > 0:
        following, start, seq = rec[slot, NEXT], rec[slot, COMPUTED], rec[slot, SEQ]
        tokens = rec[slot, KNOWN] - start
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget, longest - start)
        if tokens <= 0 or rec[slot, PHASE] == FOLLOWS:
            slot = following
            continue
        before = rec[slot, BLOCKS]
        while e.seqs.slot[seq] == slot and not make_writable(e, slot, start + tokens):
            if not drop_oldest(e, NO_SLOT):
                following, budget = _preempt(e, victim_of(e), following, budget)
        if e.seqs.slot[seq] == slot:
            add_row(e, slot, tokens, before)
            budget -= tokens
        elif e.rules.self_preemption_ends_step or not e.rules.priority:
            break
        slot = following
    return budget


@jit
def _preempt(e, victim, following, budget):
    """Preempt a slot, and who cannot go on without it: all beams; a prompt in progress and who waits for it.

    returns  (the slot to go on with, the budget with what the victims had been given)
    """
    q, rec, plan = e.seqs, e.slots.rec, e.plan
    request = q.request[rec[victim, SEQ]]
    is_beam, is_group = e.rules.beam_width > 0, has_no_prompt(e, victim)
    for seq in range(q.first[request + 1] - 1, q.first[request] - 1, -1):  # so that the first waits in front
        slot = q.slot[seq]
        if slot == NO_SLOT or not (slot == victim or is_beam or (is_group and has_no_prompt(e, slot))):
            continue
        if slot == following:
            following = rec[slot, NEXT]
        if rec[slot, ROW] >= 0:  # it had been scheduled in this step: its tokens are free again
            budget += plan[rec[slot, ROW], PLAN_TOKENS]
            plan[rec[slot, ROW], PLAN_TOKENS] = 0
        forget_copy(e, slot)
        run_remove(e.slots, slot)
        preempt(e, slot)
    return following, budget


# ---------------------------------------------------------------- commit


@entry
def commit(e):
    """The step is over at e.now: what was planned is written; who is complete emits a token, perhaps with others."""
    rec, plan = e.slots.rec, e.plan
    e.num_forks = 0
    for row in range(e.num_plan):
        rec[plan[row, PLAN_SLOT], COMPUTED] += plan[row, PLAN_TOKENS]
        e.context += plan[row, PLAN_TOKENS]
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            continue  # more of its prompt is to come, or it has emitted already with its group
        seq = rec[slot, SEQ]
        if e.rules.beam_width > 0:
            if beams.all_there(e, e.seqs.request[seq]):
                _step_beams(e, e.seqs.request[seq], slot)
            continue
        leads = rec[slot, PHASE] == IN_PREFILL and _lead(e, slot)
        emit(e, slot)
        if leads:
            _emit_followers(e, e.seqs.request[seq])


@jit
def _lead(e, slot):
    """Who waited for this slot's prompt shares it from now on. True when somebody has a first token of it, too.

    One that came back has computed beyond its prompt: what follows the prompt's last token is not among its results,
    and a follower computes that token itself.
    """
    q, rec = e.seqs, e.slots.rec
    seq = rec[slot, SEQ]
    came_back = rec[slot, KNOWN] > q.prompt[seq]
    found = False
    for other in range(q.first[q.request[seq]], q.first[q.request[seq] + 1]):
        follower = q.slot[other]
        if follower != NO_SLOT and rec[follower, PHASE] == FOLLOWS:
            fork(e, slot, follower, q.prompt[seq] - np.int64(came_back))
            if came_back:
                rec[follower, PHASE] = IN_PREFILL
            else:
                found = True
    return found


@inline
def _emit_followers(e, request):
    q, rec = e.seqs, e.slots.rec
    for seq in range(q.first[request], q.first[request + 1]):
        if q.slot[seq] != NO_SLOT and rec[q.slot[seq], PHASE] == FOLLOWS:
            emit(e, q.slot[seq])


@jit
def emit(e, slot):
    """A token comes out of a sequence; the last one ends it."""
    seq = e.slots.rec[slot, SEQ]
    if _count(e, slot, seq):
        _finish(e, slot, seq == e.seqs.first[e.seqs.request[seq]])


@jit
def _count(e, slot, heard):
    """A token came out; its gap counts if the sequence is the one that is heard. True when it is the last."""
    rec, now = e.slots.rec, e.now
    seq = rec[slot, SEQ]
    if rec[slot, LAST_TOKEN] < 0:
        first_token_out(e, seq, now)
    elif seq == heard:
        note_gap(e.journal, now - rec[slot, LAST_TOKEN], np.int64(1))
    if rec[slot, PHASE] != IN_DECODE:
        rec[slot, PHASE] = IN_DECODE
        set_state(e, seq, DECODING)
        note_decode(e, seq)
    return count_token(rec, slot, now)


@jit
def _step_beams(e, request, slot):
    """All beams of a request have computed their tokens: survivors draw their parents, each emits."""
    first, rec = e.seqs.first[request], e.slots.rec
    _lead(e, slot)
    slots = np.empty(e.seqs.first[request + 1] - first, np.int64)
    n = beams.by_place(e, request, slots)
    if rec[slot, GENERATED] > 0:
        beams.survive(e, request, slots, n)
    for place in range(n):
        is_last = _count(e, slots[place], first)
        if is_last and place == 0:
            beams.publish_result(e, slots[place], first)
        if is_last:
            _finish(e, slots[place], place == 0)


@jit
def _finish(e, slot, goes_on):
    """A sequence has ended; the table of the one that a conversation goes on from stays while a turn wants it."""
    q, rec = e.seqs, e.slots.rec
    seq = rec[slot, SEQ]
    run_remove(e.slots, slot)
    if not goes_on or e.lineage[q.request[seq], WANTED] == 0:
        end(e, slot, FINISHED)
        close_slot(e, slot)
        return
    q.generated[seq] = rec[slot, GENERATED]
    q.last_token[seq] = rec[slot, LAST_TOKEN]
    q.slot[seq] = -1
    close_sequence(e, seq, FINISHED)
    keep(e, slot)


# ---------------------------------------------------------------- cancel


@entry
def cancel(e, seq):
    """Take a sequence out at once. If others wait for the prompt that it computes, one of them goes on with it."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT:
        drop_waiting(e, seq, CANCELLED)
        return
    if e.slots.rec[slot, PHASE] == IN_PREFILL:
        _hand_over(e, slot)
    run_remove(e.slots, slot)
    end(e, slot, CANCELLED)
    close_slot(e, slot)


@inline
def _hand_over(e, slot):
    q, rec = e.seqs, e.slots.rec
    seq = rec[slot, SEQ]
    for other in range(q.first[q.request[seq]], q.first[q.request[seq] + 1]):
        heir = q.slot[other]
        if heir != NO_SLOT and rec[heir, PHASE] == FOLLOWS:
            fork(e, slot, heir, min(rec[slot, COMPUTED], q.prompt[seq] - 1))
            rec[heir, PHASE] = IN_PREFILL
            return
