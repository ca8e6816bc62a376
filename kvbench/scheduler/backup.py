"""Write-through to host memory: whole blocks are copied out once a prompt is computed, on a queue of its own.

A sequence that ends, is cancelled or loses its memory meanwhile lets its blocks go; they wait for the copy: under a
list it holds a reference to each, under a radix tree a lock on the path (as SGLang's write-through does).
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..memory import operations
from ..memory.operations import OP_COUNT, OP_END, OP_FIRST, OP_NODE
from ..memory.pool import list_give
from ..prefix import block_hash, radix
from ..prefix.ranked import RELEASED
from .state_columns import COMPUTED, RADIX, SEQ


@inline
def back_up(e, slot, node):
    """Start the copy of whole blocks that are not copied yet. node: end of its path in the tree (radix).

    Not of a prompt that is computed in part: were it preempted, it would come back to copies that hold its memory.
    """
    if e.backups.ns_per_block > 0 and e.slots.rec[slot, COMPUTED] >= e.seqs.prompt[e.slots.rec[slot, SEQ]]:
        _begin(e, slot, node)


@jit
def _begin(e, slot, node):
    rec, q = e.slots.rec, e.seqs
    seq = rec[slot, SEQ]
    start, stop = q.backed[seq], rec[slot, COMPUTED] // e.rules.block_tokens
    if stop <= start:
        return
    row = e.slots.table[slot]
    q.backed[seq] = stop
    if e.backups.fence:
        _hold(e, row, start, stop, node)
    operations.begin(e.backups, e.pool, seq, row, start, stop, node, e.now)


@inline
def _hold(e, row, start, stop, node):
    if e.rules.cache_kind == RADIX:
        radix.lock(e.tree, node)
    else:
        refs = e.pool.refs
        for i in range(start, stop):
            refs[row[i]] += 1


@inline
def next_end(e):
    """When the first copy under way is done, or a time beyond all others."""
    ops = e.backups
    if ops.head == ops.tail:
        return np.int64(1) << 62
    return ops.rows[ops.head, OP_END]


@jit
def end_copies(e):
    """What has been copied by now is let go."""
    ops = e.backups
    while ops.head < ops.tail and ops.rows[ops.head, OP_END] <= e.now:
        at = operations.end_next(ops, e.pool)
        if not ops.fence:
            continue
        if e.rules.cache_kind == RADIX:
            radix.unlock(e.tree, ops.rows[at, OP_NODE])
        else:
            first, count = ops.rows[at, OP_FIRST], ops.rows[at, OP_COUNT]
            row = ops.blocks[first : first + count]
            list_give(e.pool, row, count)
            block_hash.note(e.hashes, e.pool, RELEASED, row, 0, count, 0)
