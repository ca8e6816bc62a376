"""SGLang's scheduler, step by step: a step is a prefill batch if one can be formed, else a decode batch.

    waiting --admission budget--> prefill batch --next step--> running --decode until done or retracted-->

A finished sequence stays in its list until the next decode filters it (its memory has gone back already), so
counts of running sequences lag, as in the engine. Places are bounded by the running list and by the rows
of the request table, of which a chunk in progress has one too. At most one sequence is in the middle of its prefill
(`chunk`); it comes first. Memory for a batch is reserved at once: when fewer blocks are free than the whole
batch may need, the tree evicts that whole amount (0.5.12) or what is missing (0.5.23).

source: SGLang 0.5.12 and 0.5.23, loop without overlap. What differs between them is a rule by name in `e.rules`.
"""

from __future__ import annotations

from ..core.jit import entry, inline, jit
from . import kv
from .calendar import join, leave
from .decode_room import make_room, new_blocks, retract
from .landing import land_rows
from .lifecycle import drop_waiting, end
from .prefill_admission import (
    CONTINUE,
    NO_TOKEN,
    OTHER,
    add_one,
    budget_state,
    continue_chunk,
    look_up,
    open_budget,
)
from .queues import close_slot, run_append, run_remove
from .state_columns import (
    BLOCKS,
    CANCELLED,
    COMPUTED,
    ENDED,
    FINAL,
    FINISHED,
    GENERATED,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    OUT_OF_KV,
    PHASE,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    PUBLISHED,
    SEQ,
    SINCE,
)
from .waiting_order import refresh_waiting, sort_waiting


@entry
def schedule(e):
    """Fill the plan with a prefill batch (and decodes, if mixed) or with a decode batch."""
    open_step(e)
    may = may_prefill(e)
    if may:
        refresh_waiting(e)
    if not (may and prefill(e)):
        _decode(e)


@entry
def schedule_sorted(e):
    """The same under a policy that sorts the waiting list before a prefill batch is formed.

    Compiled by itself, since it takes longer than the rest, and fcfs does without.
    """
    open_step(e)
    may = may_prefill(e)
    if may:
        sort_waiting(e)
    if not (may and prefill(e)):
        _decode(e)


@inline
def open_step(e):
    """An empty plan; what the last prefill step computed is shared, its batch joins the running ones."""
    e.num_plan = 0
    e.num_victims = 0
    if e.chunk != NO_SLOT:
        kv.publish_chunk(e, e.chunk)
    _merge_batch(e)
    if e.rules.drop_ended_each_step:
        if e.num_leavers > 0 or e.slots.running == 0:
            e.batch_is_full = False
        filter_running(e)


@inline
def _merge_batch(e):
    """The last prefill batch joins the running ones, without those that ended or are still in their prefill."""
    before = e.batch_size
    if before == 0:
        return
    was_empty = e.slots.running == 0
    kept = 0
    for i in range(before):
        slot = e.batch[i]
        if e.slots.rec[slot, PHASE] == ENDED:
            close_slot(e, slot)
        elif slot != e.chunk:
            run_append(e.slots, slot)
            if e.calendar.active:
                join(e.calendar, e.slots.rec, slot, e.rules.block_tokens)
            kept += 1
    e.batch_size = 0
    if kept < before or (was_empty and kept > 0):  # the flag belongs to the batch object that went
        e.batch_is_full = False
    if was_empty and kept > 0:
        e.running_tokens = e.batch_tokens


# ---------------------------------------------------------------- prefill


@inline
def _places(e):
    """Sequences that may enter; a chunk that goes on is counted among them, and keeps its row."""
    rows = e.slots.holders
    if e.chunk != NO_SLOT and e.rules.chunk_takes_one_place:
        rows -= 1
    return e.rules.most_running - max(e.slots.running, rows)


@inline
def may_prefill(e):
    """Whether a prefill batch is tried: a chunk goes on, or somebody waits and there is a place."""
    if e.chunk != NO_SLOT:
        return True
    if e.batch_is_full or e.queue_head == NO_SEQ:
        return False
    e.batch_is_full = _places(e) <= 0
    return not e.batch_is_full


@inline
def prefill(e):
    """Form a prefill batch. False when nobody could be admitted."""
    places = _places(e)
    open_budget(e)
    if e.chunk != NO_SLOT:
        continue_chunk(e)
    _admit_waiting(e, places)
    if e.num_plan == 0:
        return False
    reserve_prefill(e)
    for row in range(e.num_plan):
        e.batch[row] = e.plan[row, PLAN_SLOT]
    if e.rules.enable_mixed_chunk:
        _mix_decodes(e)
    _count_processed(e)
    e.batch_size = e.num_plan
    return True


@jit
def _admit_waiting(e, places):
    seq = e.queue_head
    while seq != NO_SEQ:
        if e.rules.stop_when_spent and budget_state(e) == OTHER:
            break
        following = e.seqs.queue_next[seq]
        if e.num_plan >= places:
            e.batch_is_full = True
        if e.batch_is_full:
            break
        hits, link, tied = look_up(e, seq)
        result = add_one(e, seq, hits, link, tied)
        if result == NO_TOKEN:  # with copies under way memory comes back without a sequence that leaves
            is_alone = e.num_plan == 0 and e.slots.running == 0
            e.batch_is_full = not (is_alone and (e.rules.full_only_beside_others or e.rules.backs_up))
        if result != CONTINUE:
            break
        seq = following


@inline
def reserve_prefill(e):
    """Memory for the whole batch that is planned."""
    bt = e.rules.block_tokens
    tokens = 0
    for row in range(e.num_plan):
        tokens += e.plan[row, PLAN_TOKENS] + (bt if bt > 1 else 0)
    make_room(e, tokens)
    for row in range(e.num_plan):
        take_row(e, row)


@inline
def _count_processed(e):
    """The tokens of the batch, as hrrn ages by them."""
    e.batch_tokens = 0
    for row in range(e.num_plan):
        e.batch_tokens += e.plan[row, PLAN_TOKENS]
    e.processed_tokens += e.batch_tokens


@jit
def take_row(e, row):
    """Blocks for the tokens of one planned row; the caller has made room."""
    upto = e.plan[row, PLAN_START] + e.plan[row, PLAN_TOKENS]
    if not kv.extend(e, e.plan[row, PLAN_SLOT], upto):
        e.fault = OUT_OF_KV
    kv.publish_hashed(e, e.plan[row, PLAN_SLOT], upto)


@inline
def _mix_decodes(e):
    """Mixed chunk: running sequences decode beside the prefill and join its batch; or wait, if memory is short."""
    filter_running(e)
    running = e.slots.running
    if running == 0:
        return
    if e.rules.mixed_needs_memory and not make_room(e, new_blocks(e) * e.rules.block_tokens):
        return
    make_room(e, running * e.rules.block_tokens)
    first = e.num_plan
    plan_decodes(e)
    for row in range(first, e.num_plan):
        e.batch[row] = e.plan[row, PLAN_SLOT]
        run_remove(e.slots, e.plan[row, PLAN_SLOT])


# ---------------------------------------------------------------- decode


@inline
def filter_running(e):
    """Sequences that ended leave the list."""
    for i in range(e.num_leavers):
        run_remove(e.slots, e.leavers[i])
        close_slot(e, e.leavers[i])
    e.num_leavers = 0


@inline
def _decode(e):
    if prepare_decode(e):
        plan_decodes(e)


@inline
def prepare_decode(e):
    """Filter, make sure of memory (retracting if need be), and reserve. False when nothing is left to run."""
    before = e.slots.running
    if before == 0:
        return False
    filter_running(e)
    if e.slots.running == 0:
        e.batch_is_full = False
        return False
    if make_room(e, new_blocks(e) * e.rules.block_tokens):
        e.ratio = max(e.ratio - e.rules.ratio_decay, e.rules.ratio_min)
    else:
        retract(e)
    if e.slots.running < before:
        e.batch_is_full = False
    if e.slots.running == 0:
        return False
    make_room(e, e.slots.running * e.rules.block_tokens)
    e.processed_tokens += e.running_tokens  # the engine counts the batch's prefill again in every decode
    return True


@inline
def plan_decodes(e):
    """A row of one token for every running sequence, and a block where its token opens one."""
    rec, plan, bt = e.slots.rec, e.plan, e.rules.block_tokens
    row = e.num_plan
    slot = e.slots.head
    while slot != NO_SLOT:
        plan[row, PLAN_SLOT] = slot
        plan[row, PLAN_START] = rec[slot, COMPUTED]
        plan[row, PLAN_TOKENS] = 1
        plan[row, PLAN_BLOCKS_BEFORE] = rec[slot, BLOCKS]
        if rec[slot, COMPUTED] + 1 > min(rec[slot, BLOCKS], rec[slot, PUBLISHED] + 1) * bt - 1:
            take_row(e, row)
        row += 1
        slot = rec[slot, NEXT]
    e.num_plan = row


# ---------------------------------------------------------------- commit


@entry
def commit(e):
    """The step is over at e.now: complete sequences emit a token, enter the tree, or end."""
    land_rows(e, finish, False)


@jit
def finish(e, slot):
    """A finished sequence enters the tree whole; its slot leaves the lists later."""
    if e.batch_size == 0:  # a decode step: it is in the running list (a prefill batch is filtered when it merges)
        e.leavers[e.num_leavers] = slot
        e.num_leavers += 1
    kv.publish_finished(e, slot)
    end(e, slot, CANCELLED if e.seqs.flagged[e.slots.rec[slot, SEQ]] == 1 else FINISHED)


@entry
def cancel(e, seq):
    """A waiting sequence goes at once; a running one ends with its next token."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT:
        drop_waiting(e, seq, CANCELLED)
    else:
        rec, bt = e.slots.rec, e.rules.block_tokens
        in_calendar = rec[slot, SINCE] >= 0
        if in_calendar:
            leave(e.calendar, rec, slot, bt)
        e.seqs.flagged[seq] = 1
        rec[slot, FINAL] = rec[slot, GENERATED] + 1
        if in_calendar:
            join(e.calendar, rec, slot, bt)
