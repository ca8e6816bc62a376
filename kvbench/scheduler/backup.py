"""Write-through to host memory: whole blocks are copied out once a prompt is computed, over a link of its own.

A sequence that ends, is cancelled or loses its memory meanwhile lets its blocks go; the operation holds them until the
copy is done.
"""

from __future__ import annotations

from ..core.jit import entry, inline, jit
from ..costs.links import transfer_ns
from ..memory import links
from ..memory.operations import (
    BACKUP,
    NOBODY,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_NODE,
    attach,
    detach,
    heard,
    open_row,
)
from ..prefix.hold import hold, let_go
from .state_columns import COMPUTED, NO_LINK, RADIX, SEQ


@inline
def back_up(e, slot, node):
    """Start the copy of whole blocks that are not copied yet. node: end of its path in the tree (radix).

    Not of a prompt that is computed in part: were it preempted, it would come back to copies that hold its memory.
    """
    if e.rules.backup_link != NO_LINK and e.slots.rec[slot, COMPUTED] >= e.seqs.prompt[e.slots.rec[slot, SEQ]]:
        _begin(e, slot, node)


@jit
def _begin(e, slot, node):
    rec, q, ops, link = e.slots.rec, e.seqs, e.operations, e.rules.backup_link
    seq = rec[slot, SEQ]
    start, stop = q.backed[seq], rec[slot, COMPUTED] // e.rules.block_tokens
    if stop <= start:
        return
    table, count = e.slots.table[slot], stop - start
    q.backed[seq] = stop
    row = open_row(ops, BACKUP, NOBODY, 0, e.number, e.number)
    attach(ops, row, e.pool, table, start, stop)
    ops.rows[row, OP_NODE] = node
    if e.rules.fence:
        ops.rows[row, OP_HOLDS] = 1
        hold(e.rules.cache_kind == RADIX, e.tree, e.pool, table, start, stop, node)
    num_bytes = count * e.rules.block_bytes
    work = transfer_ns(e.links.rates, link, num_bytes, count)
    links.begin(e.links, ops, row, link, num_bytes, count, work, e.now)


@entry
def backed_up(e, row):
    """A copy has landed: it lets its blocks go."""
    ops = e.operations
    rows = ops.rows
    if rows[row, OP_HOLDS] == 1:
        first, count = rows[row, OP_FIRST], rows[row, OP_COUNT]
        let_go(e.rules.cache_kind == RADIX, e.tree, e.hashes, e.pool, ops.blocks, first, count, rows[row, OP_NODE])
    detach(ops, row, e.pool)
    heard(ops, row)


@entry
def nothing_landed(e, row):
    """Of an engine that nothing is moved for; it is never called."""
