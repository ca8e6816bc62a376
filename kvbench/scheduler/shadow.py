"""Check mode: what every block really holds, kept beside the engine and compared with what its steps do.

Before a step is committed each planned row is looked at, all writes before any read, since every layer writes the
batch's KV before it attends:

    a write   no operation of another queue touches the block, and its writer has written all before
    a read    every whole block before the row is written, and holds the prefix that the sequence takes it for

Under a preset that follows an engine in leaving blocks registered that were never computed, a read of such a block is
counted, not a fault. Slow: the whole context of each row is walked in every step.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..memory.operations import (
    BACKUP,
    ENDED,
    OP_KIND,
    OP_STATE,
    OP_STORE_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    PREFETCH,
    STORE,
)
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import fill_keys
from .calendar import settle
from .state_columns import (
    COMPUTED,
    HASHED,
    NEXT,
    NO_FAULT,
    NO_SLOT,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
    SHADOW,
    SINCE,
)

NOBODY = -1

# What a violation is (Shadow.kind).
COPIED, NOT_ITS_OWN, UNWRITTEN, OTHER_CONTENT = range(4)
VIOLATIONS = (
    "is written while an operation of another queue still touches it",
    "is written by a sequence that did not write what is before",
    "is read before it is written",
    "is read for a prefix that it does not hold",
)


@struct
class Shadow:
    """owner, written, chain: (num_blocks + 1,) or (1,) when it is off.

    owner     the sequence that wrote it last; written: tokens from its start that are written
    chain     hash of the prefix that it ends, once it is full
    kind, block, by   of the first violation: kind, block, sequence
    unwritten_hits    blocks that were taken as a hit although they were never computed
    """

    owner: "i8[::1]"
    written: "i8[::1]"
    chain: "i8[::1]"
    kind: "i8"
    block: "i8"
    by: "i8"
    unwritten_hits: "i8"


def make_shadow(num_blocks: int, on: bool) -> Shadow:
    size = num_blocks + 1 if on else 1
    return Shadow(np.full(size, NOBODY, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64), 0, 0, 0, 0)


@entry
def ignore(e):
    """No check mode."""


@entry
def ignore_row(e, row):
    """Nothing moves."""


@entry
def watch(e):
    """Compare the planned step with what the blocks hold, and note what it writes."""
    rec, plan = e.slots.rec, e.plan
    if e.calendar.planned > 0:
        _all_decodes(e, True)
    for row in range(e.num_plan):
        _write(e, plan[row, PLAN_SLOT], plan[row, PLAN_START], plan[row, PLAN_TOKENS])
    if e.calendar.planned > 0:
        _all_decodes(e, False)
    for row in range(e.num_plan):
        _read(e, plan[row, PLAN_SLOT], rec[plan[row, PLAN_SLOT], SEQ], plan[row, PLAN_START], plan[row, PLAN_TOKENS])


@jit
def loaded(e, at, row, start, stop):
    """Blocks row[start:stop] hold what an operation's slots do, once its load is there: who reads them waits for it."""
    s, ops, truth = e.shadow, e.operations, e.tiers.host.truth
    first = ops.rows[at, OP_TIER_FIRST] - start
    for i in range(start, stop):
        block = row[i]
        s.owner[block], s.written[block] = NOBODY, e.rules.block_tokens
        s.chain[block] = truth[ops.blocks[first + i]]


@jit
def moved(e, at):
    """An operation between tiers has ended: what its target holds from now on, whatever is made of its end."""
    ops, host, store = e.operations, e.tiers.host, e.tiers.store
    kind, first, below = ops.rows[at, OP_KIND], ops.rows[at, OP_TIER_FIRST], ops.rows[at, OP_STORE_FIRST]
    if e.shadow.owner.size == 1 or ops.rows[at, OP_STATE] != ENDED:
        return
    for i in range(ops.rows[at, OP_TIER_COUNT]):
        slot = ops.blocks[first + i]
        if kind == BACKUP:
            host.truth[slot] = host.content[slot]
        elif kind == PREFETCH:
            host.truth[slot] = store.truth[ops.blocks[below + i]]
        elif kind == STORE:
            store.truth[ops.blocks[below + i]] = host.truth[slot]


@jit
def _all_decodes(e, writes):
    """The calendar plans no rows for decodes."""
    rec = e.slots.rec
    slot = e.slots.head
    while slot != NO_SLOT:
        if rec[slot, SINCE] >= 0:
            settle(e.calendar, rec, slot)
            if writes:
                _write(e, slot, rec[slot, COMPUTED], np.int64(1))
            else:
                _read(e, slot, rec[slot, SEQ], rec[slot, COMPUTED], np.int64(1))
        slot = rec[slot, NEXT]


@inline
def _violation(e, kind, block, seq):
    if e.fault == NO_FAULT:
        e.fault = SHADOW
        e.shadow.kind, e.shadow.block, e.shadow.by = kind, block, seq


@jit
def _write(e, slot, start, tokens):
    bt, s = e.rules.block_tokens, e.shadow
    seq, table = e.slots.rec[slot, SEQ], e.slots.table
    for position in range(start, start + tokens):
        block, at = np.int64(table[slot, position // bt]), position % bt
        if e.pool.in_flight[block] > 0:
            _violation(e, COPIED, block, seq)
        if at == 0:
            s.owner[block], s.chain[block] = seq, 0
        elif position == e.seqs.present[seq] and s.owner[block] != seq:
            s.owner[block] = seq  # the rest of the block came with it
        elif s.owner[block] != seq or s.written[block] != at:
            _violation(e, NOT_ITS_OWN, block, seq)
        s.written[block] = at + 1


@jit
def _read(e, slot, seq, start, tokens):
    bt, s, q, table = e.rules.block_tokens, e.shadow, e.seqs, e.slots.table
    known = min(start + tokens, q.prompt[seq] + q.output[seq])  # a step too many has no content
    content = root_hash(q.root[seq])
    fill_keys(e.block_keys, seq, 0, known // bt, e.keys)
    for i in range(known // bt):
        content = chain(content, e.keys[i])
        block = np.int64(table[slot, i])
        came_with_it = (i + 1) * bt <= q.present[seq] and i * bt >= q.cached[seq] and q.preemptions[seq] == 0
        if (i + 1) * bt > start:
            s.chain[block] = content
        elif came_with_it and s.owner[block] != seq:
            s.owner[block], s.written[block], s.chain[block] = seq, bt, content
        elif s.written[block] < bt:
            _unwritten(e, seq, block, content)
        elif s.chain[block] != content:
            _violation(e, OTHER_CONTENT, block, seq)


@inline
def _unwritten(e, seq, block, content):
    """Counted where the preset leaves such blocks registered, and from then on taken as if written."""
    s = e.shadow
    if e.rules.cache_kind == HASHED and not e.rules.unregister_unwritten:
        s.unwritten_hits += 1
        s.written[block], s.chain[block] = e.rules.block_tokens, content
    else:
        _violation(e, UNWRITTEN, block, seq)


@jit
def bring(e, slot, first, tokens):
    """KV of the first `tokens` tokens, computed elsewhere, lies in the slot's blocks now, from block `first` on."""
    s, bt, seq = e.shadow, e.rules.block_tokens, e.slots.rec[slot, SEQ]
    if s.owner.size == 1:
        return
    content = root_hash(e.seqs.root[seq])
    fill_keys(e.block_keys, seq, 0, tokens // bt, e.keys)
    for i in range((tokens + bt - 1) // bt):
        block = np.int64(e.slots.table[slot, i])
        is_whole = (i + 1) * bt <= tokens
        if is_whole:
            content = chain(content, e.keys[i])
        if i >= first:
            s.owner[block], s.written[block] = seq, min(tokens - i * bt, bt)
            s.chain[block] = content if is_whole else 0
