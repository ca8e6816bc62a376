"""Reservation baselines: a sequence's whole memory is one contiguous stretch, taken when it is admitted.

    contiguous   max_model_len tokens, first fit
    buddy        the next power of two of prompt + declared output (in blocks), by a buddy allocator
    oracle       exactly the tokens whose KV will be written, first fit

Running and waiting sequences share vLLM's token budget; nothing is ever preempted, since nothing grows. Waste is told
apart as in the PagedAttention paper: reserved (will be written, is not yet), internal (will never be), external (free
blocks while the head of the queue finds no stretch long enough, whether or not their sum would do).

source: the baselines of Kwon et al., SOSP'23, section 6; there all three lie in a buddy allocator.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..memory.extents import buddy_fit, first_fit, take_stretch
from ..memory.pool import NO_BLOCK
from .lifecycle import admit
from .queues import peek_slot, queue_remove, run_append
from .state_columns import (
    BLOCKS,
    BUDDY,
    COMPUTED,
    CONTIGUOUS,
    KNOWN,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    SEQ,
)
from .token_budget import add_row


@entry
def schedule(e):
    """Fill the plan: running sequences in order, then waiting ones while there is a stretch for the first."""
    e.num_plan = 0
    e.num_victims = 0
    e.external_slots = 0
    budget = _schedule_running(e, e.rules.max_num_batched_tokens)
    _schedule_waiting(e, budget)
    _measure(e)


@inline
def _schedule_running(e, budget):
    rec = e.slots.rec
    slot = e.slots.head
    while slot != NO_SLOT and budget > 0:
        tokens = min(rec[slot, KNOWN] - rec[slot, COMPUTED], budget)
        if tokens > 0:
            add_row(e, slot, tokens, rec[slot, BLOCKS])
            budget -= tokens
        slot = rec[slot, NEXT]
    return budget


@inline
def _schedule_waiting(e, budget):
    while budget > 0 and e.queue_head != NO_SEQ and e.slots.running < e.rules.most_running:
        seq = e.queue_head
        tokens = e.seqs.prompt[seq]
        if tokens > budget and not e.rules.chunked:
            return
        tokens = min(tokens, budget)
        size = stretch_blocks(e, seq)
        block = _find(e, seq, size)
        if block == NO_BLOCK:
            e.external_slots = e.pool.num_free * e.rules.block_tokens
            return
        slot = peek_slot(e.slots)
        queue_remove(e, seq)
        admit(e, seq, np.int64(0), np.int64(0))
        take_stretch(e.pool, e.slots.table[slot], block, size)
        e.slots.rec[slot, BLOCKS] = size
        e.table_blocks += size
        run_append(e.slots, slot)
        add_row(e, slot, tokens, 0)
        budget -= tokens


@inline
def _find(e, seq, size):
    """First block of a stretch, or NO_BLOCK; no second look while nothing was given back."""
    if e.blocked_seq == seq and e.blocked_need == e.pool.num_free:
        return NO_BLOCK
    block = buddy_fit(e.pool.refs, size) if e.rules.allocation == BUDDY else first_fit(e.pool.refs, size)
    if block == NO_BLOCK:
        e.blocked_seq, e.blocked_need = seq, e.pool.num_free
    return block


@jit
def stretch_blocks(e, seq):
    """Blocks that a sequence reserves."""
    q, rules = e.seqs, e.rules
    bt = rules.block_tokens
    if rules.allocation == CONTIGUOUS:
        return (rules.max_model_len + bt - 1) // bt
    if rules.allocation == BUDDY:
        size = 1
        while size * bt < q.prompt[seq] + q.max_tokens[seq]:
            size *= 2
        return size
    return (final_tokens(e, seq) + bt - 1) // bt


@inline
def final_tokens(e, seq):
    """Tokens whose KV is ever written: the last one's is not."""
    return e.seqs.prompt[seq] + e.seqs.output[seq] - 1


@inline
def _measure(e):
    """Slots that are reserved and will never hold a token."""
    rec, bt = e.slots.rec, e.rules.block_tokens
    internal = 0
    slot = e.slots.head
    while slot != NO_SLOT:
        internal += rec[slot, BLOCKS] * bt - final_tokens(e, rec[slot, SEQ])
        slot = rec[slot, NEXT]
    e.internal_slots = internal
