"""Write-through to host memory: whole blocks are copied out once a prompt is computed, over a link of its own.

    offer      the blocks that a sequence has computed are held, before it may let them go
    write      after the step: copies of what the host does not have begin, the rest is let go
    written    a copy has landed

A sequence that ends, is cancelled or loses its memory meanwhile lets its blocks go; the operation holds them until the
copy is done. Without a tier (`cache.backup`) everything is copied and nothing is found again.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..costs.links import transfer_ns
from ..memory import links
from ..memory.operations import (
    BACKUP,
    ENDED,
    NOBODY,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_NODE,
    OP_SEQ,
    OP_START,
    OP_STATE,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    attach,
    attach_tier,
    detach,
    heard,
    open_row,
)
from ..prefix.chain_hash import root_hash
from ..prefix.hold import hold, let_go
from ..tiers import copies, host, paths
from ..tiers.state import CONTENT, NAMED, times_offered
from .state_columns import COMPUTED, HALF_PERSISTED, NO_PARENT, RADIX, SEQ


@inline
def offer(e, slot, node):
    """Hold whole blocks that were not offered yet. node: end of their path in the tree (radix).

    Not of a prompt that is computed in part: were it preempted, it would come back to copies that hold its memory.
    Nor of one whose namespace was flushed since it was admitted: what it has computed is of no use under the new name.
    """
    seq = e.slots.rec[slot, SEQ]
    if e.rules.backs_up and e.slots.rec[slot, COMPUTED] >= e.seqs.prompt[seq] and not is_flushed(e, seq):
        _offer(e, slot, node)


@inline
def is_flushed(e, seq):
    """Its namespace was flushed since it was admitted: nobody finds any more what it publishes."""
    return e.seqs.root[seq] != e.seqs.namespace[seq]


@jit
def _offer(e, slot, node):
    rec, q, ops = e.slots.rec, e.seqs, e.operations
    seq = rec[slot, SEQ]
    start, stop = q.backed[seq], rec[slot, COMPUTED] // e.rules.block_tokens
    if stop <= start:
        return
    table = e.slots.table[slot]
    q.backed[seq] = stop
    row = open_row(ops, BACKUP, NOBODY, 0, e.number, e.number)
    attach(ops, row, e.pool, table, start, stop)
    e.tiers.pending[e.tiers.num_pending] = row
    e.tiers.num_pending += 1
    ops.rows[row, OP_NODE], ops.rows[row, OP_SEQ], ops.rows[row, OP_START] = node, seq, start
    if e.rules.fence:
        ops.rows[row, OP_HOLDS] = 1
        hold(e.rules.cache_kind == RADIX, e.tree, e.pool, table, start, stop, node)


@entry
def write(e):
    """What was offered in the step that is over, in the order in which it was."""
    t = e.tiers
    for i in range(t.num_pending):
        _write(e, t.pending[i])
    t.num_pending = 0


@jit
def _write(e, row):
    """Begin the copy of an offer, or let it go: nothing of it is wanted, or there is no space."""
    t, ops = e.tiers, e.operations
    count = ops.rows[row, OP_COUNT]
    if e.rules.tiered:
        count = _reserve(e, row)
        if count == 0:
            _end(e, row)
            return
    num_bytes, fragments = count * t.block_bytes, count * t.block_fragments
    work = transfer_ns(e.links.rates, t.link_down, num_bytes, fragments)
    links.begin(e.links, ops, row, t.link_down, num_bytes, fragments, work, e.now)
    t.copy_ns += work


@jit
def _reserve(e, row):
    """Slots for what the host does not have of an offer, from its start on, while there is space. Returns how many."""
    t, ops = e.tiers, e.operations
    tier, rows = t.host, ops.rows
    seq, start = rows[row, OP_SEQ], rows[row, OP_START]
    stop = start + rows[row, OP_COUNT]
    if not t.outputs:
        stop = min(stop, e.seqs.prompt[seq] // e.rules.block_tokens)
    if e.rules.planted & HALF_PERSISTED and start == 0:
        stop //= 2
    if stop <= start:
        return np.int64(0)
    first, names, path = _name(e, seq, start, stop), tier.names, tier.path
    if tier.arc.is_on:
        host.touch(tier, start, stop)  # what it has offered before is no use again
    paths.hold_path(tier, names, first, stop, path)
    paths.count_uses(tier, path, start, stop)
    if t.min_offers > 1:
        for i in range(start, stop):
            if path[i] <= 0 and times_offered(t, names[i]) < t.min_offers:
                path[i] = paths.LEFT_OUT
    count, end = paths.reserve_path(tier, names, start, stop, path, (e.rules.planted & NO_PARENT) != 0)
    tier.counters[copies.REFUSED] += stop - end
    paths.release_path(tier, first, stop, path, False)
    attach_tier(ops, row, tier.slots, 0, count)
    return count


@inline
def _name(e, seq, start, stop):
    """Names of the blocks that a sequence offers, and of what they continue. Returns the first block that has one.

    From the name where its last offer ended, if this one begins there; else from the start of the prompt.
    """
    t, tier = e.tiers, e.tiers.host
    row = t.of_seq[seq]
    namespace = np.int64(0) if tier.ignores_namespace else e.seqs.root[seq]
    known, content = np.int64(0), root_hash(namespace)
    if start > 0 and row[NAMED] == start:
        known = start
        tier.names[start - 1] = content = row[CONTENT]
    host.name_rest(tier, e.block_keys, seq, content, known, stop)
    row[NAMED], row[CONTENT] = stop, tier.names[stop - 1]
    return max(known - 1, 0)


@entry
def written(e, row):
    """A copy has landed, or failed."""
    ops = e.operations
    rows = ops.rows
    first, count = rows[row, OP_TIER_FIRST], rows[row, OP_TIER_COUNT]
    if rows[row, OP_STATE] == ENDED:
        paths.confirm(e.tiers.host, ops.blocks, first, count)
    else:
        paths.withdraw(e.tiers.host, ops.blocks, first, count)
    _end(e, row)


@jit
def _end(e, row):
    """An offer lets its blocks go."""
    ops = e.operations
    rows = ops.rows
    if rows[row, OP_HOLDS] == 1:
        first, count = rows[row, OP_FIRST], rows[row, OP_COUNT]
        let_go(e.rules.cache_kind == RADIX, e.tree, e.hashes, e.pool, ops.blocks, first, count, rows[row, OP_NODE])
    detach(ops, row, e.pool)
    heard(ops, row)
