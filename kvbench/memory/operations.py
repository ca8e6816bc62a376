"""Operations: everything that moves beside the compute queue of an engine, one row each, in one table of a run.

    open_row    something will move: RESERVED
    attach      blocks of an engine that it reads, or writes
    (links.begin puts it on a link: MOVING; links.end_next says that it is there: ENDED or FAILED)
    abort       nobody wants it any more: DRAINING until the link is done with it, since its blocks are still touched
    detach, close_row   its engine has dealt with the end

Work on one queue is ordered, so a block that a step lets go may be given to a later step at once. Another queue may
still touch it: who starts an operation holds its blocks (`prefix.hold`), and lets go when it hears of the end, which
reaches the engines of a row at their next step boundary. A row lives until each of them has heard.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit, struct
from ..core.journal import MOVE_KINDS
from ..kernels.rows import doubled

# Columns of Operations.rows.
(
    OP_KIND,
    OP_STATE,
    OP_LINK,
    OP_NEXT,
    OP_NUMBER,
    OP_OWNER,
    OP_ATTEMPT,
    OP_SOURCE,
    OP_TARGET,
    OP_SOURCE_EPOCH,
    OP_TARGET_EPOCH,
    OP_FIRST,
    OP_COUNT,
    OP_TARGET_FIRST,
    OP_TARGET_COUNT,
    OP_NODE,
    OP_HOLDS,
    OP_BYTES,
    OP_FRAGMENTS,
    OP_BEGIN,
    OP_WORK,
    OP_END,
    OP_HEARERS,
    OP_OWNS,
    OP_TIER_FIRST,
    OP_TIER_COUNT,
    OP_SEQ,
    OP_START,
    OP_STORE_FIRST,
    OP_STORE_COUNT,
    OP_TAG,
) = range(31)
OP_COLUMNS = 31
# NEXT          of the queue of its link, of the free rows. NUMBER: of its beginning, from 1; rows are used again
# OWNER         the sequence that waits for it, or NOBODY. ATTEMPT: which of its attempts, so that a late end is known
# SOURCE, TARGET   number of an engine, or ELSEWHERE; *_EPOCH: how often that engine had started
# FIRST, COUNT  its blocks in Operations.blocks: of the source; TARGET_*: of the target
# NODE          of a radix tree, that it holds. HOLDS: 1 = its engine holds the source's blocks for it
# WORK          ns of the link for itself; BEGIN, END: when it was given to the link, and when it was there
# HEARERS       engines that have not heard of its end yet. OWNS: 1 = the target's blocks are nobody else's
# TIER_FIRST, TIER_COUNT   slots of the host in Operations.blocks; STORE_*: of storage
# TAG           what its end means, of whoever opened it
# SEQ, START    the sequence whose blocks START .. START + COUNT these are, where its keys name them

FREE_ROW, RESERVED, MOVING, DRAINING, ENDED, FAILED = (np.int64(i) for i in range(6))
"""OP_STATE. RESERVED has no link yet."""

BACKUP, LOAD, PREFETCH, STORE, SEND, WEIGHT, TIMER = (np.int64(i) for i in range(7))
"""OP_KIND: device to host, host to device, store to host, host to store; KV between engines; weights
between ranks; nothing but time."""
KIND_NAMES = MOVE_KINDS

NOBODY = np.int64(-1)
ELSEWHERE = np.int64(-1)
NO_ROW = np.int64(-1)


@struct
class Operations:
    """rows: (capacity, 31), see the columns. n blocks in all.

    free_head    first of the free rows, linked by NEXT; NO_ROW = none
    open, begun  rows in use; operations opened so far
    blocks, filled   (n,) block ids of the rows, of which the first `filled` are in use; moved together when it is full
    """

    rows: "i8[:,::1]"
    free_head: "i8"
    open: "i8"
    begun: "i8"
    blocks: "i4[::1]"
    filled: "i8"


def make_operations() -> Operations:
    rows = np.zeros((8, OP_COLUMNS), np.int64)
    rows[:, OP_NEXT] = [*range(1, 8), NO_ROW]
    return Operations(rows, 0, 0, 0, np.zeros(64, np.int32), 0)


@jit
def open_row(ops, kind, owner, attempt, source, target):
    """A new row, RESERVED. Returns it. The table grows as needed: take ops.rows anew afterwards."""
    if ops.free_head == NO_ROW:
        first = ops.rows.shape[0]
        ops.rows = doubled(ops.rows)
        for i in range(first, ops.rows.shape[0]):
            ops.rows[i, OP_NEXT] = i + 1
        ops.rows[ops.rows.shape[0] - 1, OP_NEXT] = NO_ROW
        ops.free_head = first
    at, rows = ops.free_head, ops.rows
    ops.free_head = rows[at, OP_NEXT]
    ops.open += 1
    ops.begun += 1
    for column in range(OP_COLUMNS):
        rows[at, column] = 0
    rows[at, OP_KIND], rows[at, OP_STATE], rows[at, OP_NUMBER] = kind, RESERVED, ops.begun
    rows[at, OP_OWNER], rows[at, OP_ATTEMPT] = owner, attempt
    rows[at, OP_SOURCE], rows[at, OP_TARGET] = source, target
    rows[at, OP_LINK] = NO_ROW
    rows[at, OP_HEARERS] = np.int64(source >= 0) + np.int64(target >= 0 and target != source)
    return at


@jit
def attach(ops, row, pool, table, start, stop):
    """It reads table[start:stop] of the source's pool."""
    first = _add_blocks(ops, pool, table, start, stop)
    ops.rows[row, OP_FIRST], ops.rows[row, OP_COUNT] = first, stop - start


@jit
def attach_target(ops, row, pool, table, start, stop):
    """It writes table[start:stop] of the target's pool."""
    first = _add_blocks(ops, pool, table, start, stop)
    ops.rows[row, OP_TARGET_FIRST], ops.rows[row, OP_TARGET_COUNT] = first, stop - start


@jit
def attach_tier(ops, row, slots, start, stop):
    """It reads or writes slots[start:stop] of a tier."""
    first = _add(ops, slots, start, stop)
    ops.rows[row, OP_TIER_FIRST], ops.rows[row, OP_TIER_COUNT] = first, stop - start


@jit
def attach_store(ops, row, slots, start, stop):
    """It reads or writes slots[start:stop] of storage."""
    first = _add(ops, slots, start, stop)
    ops.rows[row, OP_STORE_FIRST], ops.rows[row, OP_STORE_COUNT] = first, stop - start


@jit
def _add_blocks(ops, pool, table, start, stop):
    first, in_flight = _add(ops, table, start, stop), pool.in_flight
    for i in range(start, stop):
        in_flight[table[i]] += 1
    return first


@jit
def _add(ops, table, start, stop):
    n = stop - start
    if ops.filled + n > ops.blocks.size:
        _move_together(ops, n)
    first, blocks = ops.filled, ops.blocks
    for i in range(n):
        blocks[first + i] = table[start + i]
    ops.filled = first + n
    return first


@jit
def _move_together(ops, n):
    """Blocks of rows that are closed go; room for n more."""
    rows, old = ops.rows, ops.blocks
    live = np.int64(0)
    for row in range(rows.shape[0]):
        if rows[row, OP_STATE] != FREE_ROW:
            live += rows[row, OP_COUNT] + rows[row, OP_TARGET_COUNT]
            live += rows[row, OP_TIER_COUNT] + rows[row, OP_STORE_COUNT]
    blocks = np.zeros(max(old.size, 2 * (live + n)), np.int32)
    filled = np.int64(0)
    for row in range(rows.shape[0]):
        if rows[row, OP_STATE] == FREE_ROW:
            continue
        for column in (OP_FIRST, OP_TARGET_FIRST, OP_TIER_FIRST, OP_STORE_FIRST):
            first = rows[row, column]
            rows[row, column] = filled
            for i in range(rows[row, column + 1]):
                blocks[filled] = old[first + i]
                filled += 1
    ops.blocks = blocks
    ops.filled = filled


@jit
def detach(ops, row, pool):
    """It no longer touches the source's blocks, nor holds them: `prefix.hold.let_go` goes before."""
    rows = ops.rows
    _untouch(ops, pool, rows[row, OP_FIRST], rows[row, OP_COUNT])
    rows[row, OP_COUNT] = rows[row, OP_HOLDS] = 0


@jit
def detach_target(ops, row, pool):
    """It no longer touches the target's blocks."""
    _untouch(ops, pool, ops.rows[row, OP_TARGET_FIRST], ops.rows[row, OP_TARGET_COUNT])
    ops.rows[row, OP_TARGET_COUNT] = 0


@jit
def _untouch(ops, pool, first, count):
    in_flight, blocks = pool.in_flight, ops.blocks
    for i in range(first, first + count):
        in_flight[blocks[i]] -= 1


@jit
def abort(ops, row):
    """Nobody wants its result. One that moves goes on until its link is done; one that does not has FAILED now."""
    state = ops.rows[row, OP_STATE]
    if state == MOVING:
        ops.rows[row, OP_STATE] = DRAINING
    elif state == RESERVED:
        ops.rows[row, OP_STATE] = FAILED


@jit
def heard(ops, row):
    """An engine has dealt with the end of a row. True when it was the last, and the row is gone."""
    ops.rows[row, OP_HEARERS] -= 1
    if ops.rows[row, OP_HEARERS] > 0:
        return False
    close_row(ops, row)
    return True


@jit
def close_row(ops, row):
    """The row is free again."""
    ops.rows[row, OP_STATE] = FREE_ROW
    ops.rows[row, OP_NEXT] = ops.free_head
    ops.free_head = row
    ops.open -= 1
    if ops.open == 0:
        ops.filled = 0
