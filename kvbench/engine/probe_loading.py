"""vLLM's scheduler around a connector, one decision at a time, from Python: for recordings of its connectors.

    begin        who runs is planned
    admit_next   a waiting sequence is admitted with what the device has of it
    load         it gets memory for what somebody else has of it, and is set aside
    loaded       all of that is here
    start        it runs
    let_go       it was cancelled meanwhile
    close        the plan is whole

Holds on blocks are those of copies beside the steps.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from ..memory.pool import list_give, list_unlink
from ..prefix import block_hash
from ..scheduler import kv, lifecycle, token_budget
from ..scheduler.lifecycle import count_admission
from ..scheduler.queues import open_slot, peek_slot, queue_remove, run_append
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    BLOCKS,
    CANCELLED,
    COMPUTED,
    DRAINING,
    IN_PREFILL,
    KNOWN,
    LOADING,
    NO_SLOT,
    PHASE,
    PREFILLING,
    SEQ,
    TRANSFERRING,
)


@entry
def begin(e):
    """Plan who runs. Returns the tokens left."""
    e.num_plan = 0
    e.num_victims = 0
    e.holds_prefill = False
    return token_budget.schedule_running(e, e.rules.max_num_batched_tokens, token_budget.threshold_of(e))


@entry
def close(e):
    """Rows of who was preempted go."""
    token_budget.drop_empty_rows(e)


@entry
def look_up(e, seq):
    """Blocks of a waiting sequence, all but its last token, that the device has; and how many it would take first."""
    known = e.seqs.prompt[seq] + e.seqs.generated[seq]
    slot = peek_slot(e.slots)
    hits, _, tied = kv.lookup(e, seq, (known - 1) // e.rules.block_tokens, e.slots.table[slot])
    return hits, tied


@entry
def admit_next(e, seq, budget):
    """Admit a waiting sequence. Returns the tokens planned, 0: it does not fit."""
    slot, tokens = token_budget.try_admit(e, seq, budget, token_budget.threshold_of(e))
    if slot == NO_SLOT:
        return np.int64(0)
    token_budget.add_row(e, slot, tokens, np.int64(0))
    return tokens


@entry
def load(e, seq, blocks):
    """Memory for its hits and so many blocks behind them; the caller has checked it. Returns the slot."""
    bt = e.rules.block_tokens
    slot = peek_slot(e.slots)
    known = e.seqs.prompt[seq] + e.seqs.generated[seq]
    hits, link, _ = kv.lookup(e, seq, (known - 1) // bt, e.slots.table[slot])
    queue_remove(e, seq)
    open_slot(e, seq)
    kv.attach(e, slot, hits, link)
    kv.extend(e, slot, (hits + blocks) * bt)
    e.slots.rec[slot, PHASE] = LOADING
    set_state(e, seq, TRANSFERRING)
    return slot


@entry
def loaded(e, slot, tokens):
    """What it loads is here, `tokens` of it in all; the last token is computed in any case."""
    rec = e.slots.rec
    kv.adopt(e, slot, tokens)
    if rec[slot, COMPUTED] == rec[slot, KNOWN]:
        rec[slot, COMPUTED] -= 1
        e.context -= 1


@entry
def start(e, slot, budget):
    """A sequence whose load is over runs. Returns the tokens planned, 0: it does not fit."""
    rec, bt = e.slots.rec, e.rules.block_tokens
    seq = rec[slot, SEQ]
    if (rec[slot, KNOWN] + bt - 1) // bt - rec[slot, BLOCKS] > kv.available(e):
        return np.int64(0)
    begins = rec[slot, COMPUTED]
    tokens = min(rec[slot, KNOWN] - begins, budget)
    kv.extend(e, slot, begins + tokens)
    run_append(e.slots, slot)
    rec[slot, PHASE] = IN_PREFILL
    count_admission(e, seq, begins)
    set_state(e, seq, PREFILLING)
    token_budget.add_row(e, slot, tokens, np.int64(0))
    return tokens


@entry
def drain(e, seq):
    """It is cancelled while it loads: its memory stays until that is over."""
    set_state(e, seq, DRAINING)


@entry
def let_go(e, seq):
    """It is cancelled, and nothing is written into its memory any more."""
    lifecycle.let_go(e, seq, CANCELLED)


# ---------------------------------------------------------------- single blocks of a pool


@entry
def take(pool, hashes, row, count):
    """The first blocks of the free queue, held once."""
    block_hash.take(hashes, pool, row, np.int64(0), count)


@entry
def hold(pool, block):
    """One hold more; a free block leaves the queue."""
    if pool.refs[block] == 0:
        list_unlink(pool.after, pool.before, block)
        pool.num_free -= 1
        pool.cached -= 1
    pool.refs[block] += 1


@entry
def drop(pool, block):
    """One hold less."""
    row = np.empty(1, np.int32)
    row[0] = block
    list_give(pool, row, 1)


@entry
def find(pool, hashes, content):
    """The block of a content, or 0."""
    return hashes.table[block_hash.find_entry(hashes.table, pool.content, content)] & 0xFFFFFFFF


@entry
def register(pool, hashes, block, content):
    """A held block has this content."""
    names, row = np.empty(1, np.int64), np.empty(1, np.int32)
    names[0], row[0] = content, block
    block_hash.register_all(hashes, pool, names, row, 0, 1)
