"""The order of the waiting list and the admission budget, from Python, one request at a time (prefill first).

For recordings of the engine's policy and of its admission, where there are no steps and no batches.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from ..memory.pool import ring_give, ring_take
from ..prefix import radix
from ..prefix.keys import fill_keys
from ..scheduler import prefill_first
from ..scheduler.lifecycle import admit, end
from ..scheduler.prefill_admission import (
    CHUNK_LEFT,
    INPUT_LEFT,
    add_one,
    current_left,
    fill_budget,
    look_up,
    total_left,
)
from ..scheduler.queues import close_slot, peek_slot, queue_remove, run_append, run_remove
from ..scheduler.state_columns import (
    CANCELLED,
    GENERATED,
    KNOWN,
    NO_SLOT,
    PLAN_SLOT,
    PLAN_TOKENS,
)
from ..scheduler.waiting_order import FCFS, refresh_waiting, sort_waiting

NOT_ADMITTED = -1


@entry
def sort(e):
    """Bring the waiting list into the policy's order."""
    if e.rules.order != FCFS:
        sort_waiting(e)
    else:
        refresh_waiting(e)


@entry
def make_room(e, tokens):
    """Evict, as an allocation of so many tokens does."""
    prefill_first.make_room(e, tokens)


@entry
def insert(e, seq, blocks):
    """The first blocks of a sequence enter the tree, as if it had computed them. Returns how many were there."""
    fill_keys(e.block_keys, seq, 0, blocks, e.keys)
    row = e.slots.table[peek_slot(e.slots)]
    ring_take(e.pool, row, 0, blocks)
    root = -1 - e.seqs.namespace[seq]
    _, present = radix.insert(e.tree, e.pool, root, e.keys, row, np.int64(0), blocks, np.int64(0), np.int64(0))
    return present


@entry
def age(e, seq, processed, processed_then):
    """For hrrn: prefill tokens computed so far, and when this sequence joined the waiting list."""
    e.processed_tokens = processed
    e.seqs.processed_then[seq] = processed_then


@entry
def hold(e, row, blocks):
    """Take blocks out of the pool into row, so that admission sees less memory."""
    ring_take(e.pool, row, 0, blocks)


@entry
def let_go(e, row, blocks):
    """Give held blocks back."""
    ring_give(e.pool, row, 0, blocks)


@entry
def run(e, seq, generated):
    """A waiting sequence runs and has generated some tokens; it holds no memory."""
    queue_remove(e, seq)
    slot = admit(e, seq, np.int64(0), -1 - e.seqs.namespace[seq])
    e.slots.rec[slot, GENERATED] = generated
    e.slots.rec[slot, KNOWN] += generated
    run_append(e.slots, slot)


@entry
def open_budget(e, ratio, input_tokens, chunk_tokens, mixed, most):
    """A step's budget. chunk_tokens < 0: no chunks. most: requests at most, 0 = no bound."""
    e.ratio = ratio
    e.rules.chunked = chunk_tokens >= 0
    e.rules.prefill_max_requests = most
    e.num_plan = 0
    e.chunk = NO_SLOT
    fill_budget(e, input_tokens, chunk_tokens, mixed)


@entry
def budget_left(e):
    """(total, current, input, chunk) tokens left."""
    return total_left(e), current_left(e), e.budget[INPUT_LEFT], e.budget[CHUNK_LEFT]


@entry
def offer(e, seq):
    """Feed a waiting sequence to the admission.

    returns  (blocks found cached, result, tokens to compute or NOT_ADMITTED, 1 if it was cut to a chunk)
    """
    hits, link, tied = look_up(e, seq)
    before = e.num_plan
    result = add_one(e, seq, hits, link, tied)
    tokens = np.int64(NOT_ADMITTED)
    if e.num_plan > before:
        tokens = e.plan[before, PLAN_TOKENS]
    cut = np.int64(e.chunk != NO_SLOT)
    e.chunk = NO_SLOT
    return hits, result, tokens, cut


@entry
def drop_all(e):
    """Who was admitted or runs leaves, and gives back what it holds; nothing enters the tree."""
    for row in range(e.num_plan):
        end(e, e.plan[row, PLAN_SLOT], CANCELLED)
        close_slot(e, e.plan[row, PLAN_SLOT])
    e.num_plan = 0
    while e.slots.head != NO_SLOT:
        slot = e.slots.head
        run_remove(e.slots, slot)
        end(e, slot, CANCELLED)
        close_slot(e, slot)
