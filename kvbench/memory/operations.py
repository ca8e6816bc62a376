"""Operations on a queue of its own: copies of blocks that run beside the device's compute queue.

    begin     blocks are handed to the queue, first in, first out
    end_next  the first one is done

Work on one queue is ordered, so a block that a step lets go may be given to a later step at once. Another queue may
still touch it: that is what `fence` is for, and what the caller holds for each operation (a reference to every block
under a list, a lock on the node under a radix tree) until it has ended.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..kernels.rows import doubled

# Columns of Operations.rows.
OP_SEQ, OP_END, OP_FIRST, OP_COUNT, OP_NODE = range(5)


@struct
class Operations:
    """rows: (capacity, 5) sequence, end in ns, its blocks [first, first + count) in `blocks`, locked node or 0.

    head, tail    rows [head, tail) are under way, in the order of their ends
    blocks, filled   (capacity,) block ids of the rows
    ns_per_block  of the queue; 0 = there is no such queue
    idle_at       when the queue has nothing more to do
    fence         whether blocks wait for their operations
    moved, busy_ns   blocks handed over so far, and the time they take
    """

    rows: "i8[:,::1]"
    head: "i8"
    tail: "i8"
    blocks: "i4[::1]"
    filled: "i8"
    ns_per_block: "i8"
    idle_at: "i8"
    fence: "b1"
    moved: "i8"
    busy_ns: "i8"


def make_operations(ns_per_block: int, fence: bool = True) -> Operations:
    return Operations(np.zeros((16, 5), np.int64), 0, 0, np.zeros(64, np.int32), 0, ns_per_block, 0, fence, 0, 0)


@jit
def begin(ops, pool, seq, row, start, stop, node, now):
    """Hand row[start:stop] to the queue at `now`."""
    _make_room(ops, stop - start)
    rows, blocks, in_flight = ops.rows, ops.blocks, pool.in_flight
    at, first = ops.tail, ops.filled
    for i in range(start, stop):
        blocks[first + i - start] = row[i]
        in_flight[row[i]] += 1
    took = (stop - start) * ops.ns_per_block
    end = max(now, ops.idle_at) + took
    rows[at, OP_SEQ], rows[at, OP_END], rows[at, OP_NODE] = seq, end, node
    rows[at, OP_FIRST], rows[at, OP_COUNT] = first, stop - start
    ops.tail = at + 1
    ops.filled = first + stop - start
    ops.idle_at = end
    ops.moved += stop - start
    ops.busy_ns += took


@inline
def end_next(ops, pool):
    """The first operation is done. Returns its row."""
    at = ops.head
    first = ops.rows[at, OP_FIRST]
    for i in range(first, first + ops.rows[at, OP_COUNT]):
        pool.in_flight[ops.blocks[i]] -= 1
    ops.head = at + 1
    return at


@jit
def _make_room(ops, num_blocks):
    """For one more operation of so many blocks: what has ended goes, and the arrays grow if need be."""
    if ops.head == ops.tail:
        ops.head = ops.tail = ops.filled = 0
    if ops.tail == ops.rows.shape[0]:
        ops.rows = doubled(ops.rows)
    if ops.filled + num_blocks > ops.blocks.size:
        blocks = np.zeros(2 * (ops.filled + num_blocks), np.int32)
        for i in range(ops.filled):
            blocks[i] = ops.blocks[i]
        ops.blocks = blocks
