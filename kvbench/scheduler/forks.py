"""Memory of sequences that fork: tables shared block by block, the last partial one copied on its first write.

    fork            a table begins with another's: every block that holds one of the tokens gets a reference more
    make_writable   memory for the next tokens; a shared block that they would be written to is copied first
    keep, drop      a finished sequence's table stays for the turns that go on from it, until memory is short
    donor_of        whose table a waiting sequence can begin with

What must always hold: no token is written to a block that has more than one reference or is visible in the cache.
Copies are rows of a step, done in their order before it: a block that a victim gave back may be a source first and a
destination after.

source: vLLM v0's fork and append_slots. There a table lives as long as its request; here, also for the next turn.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..memory.pool import list_give
from ..prefix.block_hash import note, root_hash, share, take
from ..prefix.ranked import RELEASED
from . import kv
from .queues import close_slot
from .state_columns import (
    BLOCKS,
    CHAIN,
    COMMON,
    COMPUTED,
    COPY_DESTINATION,
    COPY_SOURCE,
    FOLLOWS,
    KEPT,
    KEPT_SLOT,
    NEXT,
    NO_REQUEST,
    NO_SLOT,
    PARENT,
    PHASE,
    PREV,
    PUBLISHED,
    SEQ,
    WANTED,
)


@jit
def fork(e, donor, slot, tokens):
    """The first `tokens` tokens of a donor's table become the start of a slot's empty one, a partial block included."""
    rec, table, bt = e.slots.rec, e.slots.table, e.rules.block_tokens
    blocks = (tokens + bt - 1) // bt
    for i in range(blocks):
        table[slot, i] = table[donor, i]
    share(e.pool, table[slot], blocks)
    whole = min(tokens // bt, rec[donor, PUBLISHED])
    if whole > 0:
        rec[slot, CHAIN] = e.pool.content[table[slot, whole - 1]]
    else:
        rec[slot, CHAIN] = root_hash(e.seqs.namespace[rec[slot, SEQ]])
    rec[slot, BLOCKS] = blocks
    rec[slot, PUBLISHED] = whole
    rec[slot, COMPUTED] = tokens
    e.table_blocks += blocks
    e.context += tokens
    e.seqs.root[rec[slot, SEQ]] = e.seqs.root[rec[donor, SEQ]]  # what was flushed since goes with its last holder
    row = e.forks[e.num_forks]
    row[0], row[1], row[2] = rec[donor, SEQ], rec[slot, SEQ], tokens
    e.num_forks += 1


@jit
def make_writable(e, slot, tokens):
    """Memory for the tokens from COMPUTED up to `tokens`. False, and nothing changed, when blocks are short."""
    rec, bt = e.slots.rec, e.rules.block_tokens
    at = rec[slot, COMPUTED] // bt
    shared = at < rec[slot, BLOCKS] and _needs_copy(e.pool, e.slots.table[slot, at])
    more = max((tokens + bt - 1) // bt - rec[slot, BLOCKS], 0)
    if e.pool.num_free < more + np.int64(shared):
        return False
    if shared:
        _copy(e, e.slots.table[slot], at)
    return kv.extend(e, slot, tokens)


@inline
def _needs_copy(pool, block):
    """A block that is not to be written: another table has it, or it is visible as a prefix with what it holds."""
    return pool.refs[block] > 1 or pool.content[block] != 0


@inline
def _copy(e, row, at):
    """A block of one's own in place of one that is not to be written."""
    source = row[at]
    take(e.hashes, e.pool, row, at, at + 1)
    e.due_blocks[0] = source
    list_give(e.pool, e.due_blocks, np.int64(1))
    note(e.hashes, e.pool, RELEASED, e.due_blocks, 0, 1, 0)  # it may be visible, and nobody's any more
    e.copies[e.num_copies, COPY_SOURCE] = source
    e.copies[e.num_copies, COPY_DESTINATION] = row[at]
    e.num_copies += 1


@jit
def forget_copy(e, slot):
    """A slot loses its memory before the step: nobody needs the copy that it had planned."""
    at = e.slots.rec[slot, COMPUTED] // e.rules.block_tokens
    if at >= e.slots.rec[slot, BLOCKS]:
        return
    copies, block = e.copies, e.slots.table[slot, at]
    kept = 0
    for i in range(e.num_copies):
        if copies[i, COPY_DESTINATION] != block:
            copies[kept, COPY_SOURCE] = copies[i, COPY_SOURCE]
            copies[kept, COPY_DESTINATION] = copies[i, COPY_DESTINATION]
            kept += 1
    e.num_copies = kept


@jit
def let_go(e, slot):
    """A running slot loses its table and keeps its place."""
    kv.release(e, slot)
    e.slots.holders += 1


# ---------------------------------------------------------------- tables kept for a later turn


@inline
def keep(e, slot):
    """The table of a slot that has ended stays, youngest of the kept ones; half of all slots are for running ones."""
    while e.slots.num_free + e.slots.running < e.slots.rec.shape[0] // 2:
        drop_oldest(e, NO_SLOT)
    rec, request = e.slots.rec, e.seqs.request[e.slots.rec[slot, SEQ]]
    rec[slot, PHASE] = KEPT
    rec[slot, PREV], rec[slot, NEXT] = e.kept_tail, NO_SLOT
    if e.kept_tail == NO_SLOT:
        e.kept_head = slot
    else:
        rec[e.kept_tail, NEXT] = slot
    e.kept_tail = slot
    e.lineage[request, KEPT_SLOT] = slot


@jit
def drop(e, slot):
    """Give a kept table back."""
    rec = e.slots.rec
    before, after = rec[slot, PREV], rec[slot, NEXT]
    if before == NO_SLOT:
        e.kept_head = after
    else:
        rec[before, NEXT] = after
    if after == NO_SLOT:
        e.kept_tail = before
    else:
        rec[after, PREV] = before
    e.lineage[e.seqs.request[rec[slot, SEQ]], KEPT_SLOT] = NO_SLOT
    kv.release(e, slot)
    close_slot(e, slot)


@jit
def drop_oldest(e, spared):
    """Give the oldest kept table back, not that of slot `spared`. False when there is no other."""
    slot = e.kept_head
    if slot == spared and slot != NO_SLOT:
        slot = e.slots.rec[slot, NEXT]
    if slot == NO_SLOT:
        return False
    drop(e, slot)
    return True


@jit
def came(e, request):
    """A request needs its predecessor's table no more: it has been admitted, or has ended before."""
    parent = e.lineage[request, PARENT]
    if parent == NO_REQUEST:
        return
    e.lineage[request, PARENT] = NO_REQUEST
    e.lineage[parent, WANTED] -= 1
    if e.lineage[parent, WANTED] == 0 and e.lineage[parent, KEPT_SLOT] != NO_SLOT:
        drop(e, e.lineage[parent, KEPT_SLOT])


@jit
def drop_unwanted(e):
    """Tables that wait for turns which were cancelled before they were admitted are given back."""
    q, slot = e.seqs, e.kept_head
    while slot != NO_SLOT:
        following = e.slots.rec[slot, NEXT]
        child = q.child[q.request[e.slots.rec[slot, SEQ]]]
        while child >= 0:
            if q.pending[child] == 0:
                came(e, child)
            child = q.sibling[child]
        slot = following


# ---------------------------------------------------------------- whom a sequence forks from


@jit
def donor_of(e, seq):
    """(slot, tokens) of the table that a waiting sequence can begin with; (NO_SLOT, 0) when there is none.

    A running sequence of the same request has its prompt; a kept table has what the turn repeats.
    """
    q, rec = e.seqs, e.slots.rec
    request, prompt = q.request[seq], q.prompt[seq]
    donor, tokens = NO_SLOT, 0
    for other in range(q.first[request], q.first[request + 1]):
        slot = q.slot[other]
        if slot != NO_SLOT and rec[slot, PHASE] != FOLLOWS and min(rec[slot, COMPUTED], prompt) > tokens:
            donor, tokens = slot, min(rec[slot, COMPUTED], prompt)
    parent = e.lineage[request, PARENT]
    if parent != NO_REQUEST and e.lineage[parent, KEPT_SLOT] != NO_SLOT:
        slot = e.lineage[parent, KEPT_SLOT]
        if min(rec[slot, COMPUTED], e.lineage[request, COMMON]) > tokens:
            donor, tokens = slot, min(rec[slot, COMPUTED], e.lineage[request, COMMON])
    return donor, min(tokens, prompt + q.generated[seq] - 1)


@inline
def blocks_of_donor(e, seq, donor, tokens):
    """Blocks that a fork need not take: the whole ones, and a partial one that will be its own alone."""
    bt = e.rules.block_tokens
    blocks = tokens // bt
    if tokens % bt > 0 and e.slots.rec[donor, PHASE] == KEPT:
        parent = e.lineage[e.seqs.request[seq], PARENT]
        tail = e.slots.table[donor, blocks]
        if e.lineage[parent, WANTED] == 1 and e.pool.refs[tail] == 1 and e.pool.content[tail] == 0:
            blocks += 1
    return blocks


@jit
def count_shared_slack(e):
    """Token slots without a token that several tables count, beyond the first: the wasted ones are fewer by these.

    Sharers of a partial tail have the same tokens of it, since who writes to it has a copy.
    """
    rec, bt = e.slots.rec, e.rules.block_tokens
    extra = 0.0
    for slot in range(rec.shape[0]):
        blocks = rec[slot, BLOCKS]
        if blocks > 0 and rec[slot, PHASE] > 0:
            refs = e.pool.refs[e.slots.table[slot, blocks - 1]]
            slack = blocks * bt - rec[slot, COMPUTED]
            if refs > 1 and slack > 0:
                extra += slack * (refs - 1) / refs
    return np.int64(extra + 0.5)
