"""KV from a prefill engine to a decode engine: rows of the table of operations on the link between the two."""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..costs.links import transfer_ns
from ..memory import links
from ..memory.operations import (
    ENDED,
    FAILED,
    MOVING,
    OP_ATTEMPT,
    OP_KIND,
    OP_OWNER,
    OP_SOURCE,
    OP_SOURCE_EPOCH,
    OP_STATE,
    OP_TAG,
    OP_TARGET,
    OP_TARGET_EPOCH,
    SEND,
    abort,
    attach,
    attach_target,
    detach,
    detach_target,
    open_row,
)
from .state import LAST_OF_ALL, NO_ATTEMPT, NOT_YET, OUT_OF_DATE


@jit
def send_blocks(pairs, source, slot, target, seq, start, stop, done_ns, now):
    """Blocks [start, stop) of a sequence, from one table to the other.

    slot      of the source
    done_ns   of the work, what has been done already (layers that went out while the others were computed)
    """
    link = pairs.link[source.number, target.number - pairs.num_prefill]
    ops, num = source.operations, stop - start
    row = open_row(ops, SEND, seq, pairs.attempt[seq], source.number, target.number)
    ops.rows[row, OP_SOURCE_EPOCH], ops.rows[row, OP_TARGET_EPOCH] = source.side.epoch, target.side.epoch
    attach(ops, row, source.pool, source.slots.table[slot], start, stop)
    attach_target(ops, row, target.pool, target.slots.table[target.seqs.slot[seq]], start, stop)
    num_bytes, fragments = num * pairs.block_bytes, num * pairs.block_fragments
    work = transfer_ns(source.links.rates, link, num_bytes, fragments)
    links.begin(source.links, ops, row, link, num_bytes, fragments, max(work - done_ns, np.int64(0)), now)
    pairs.moving[seq] += 1
    pairs.bytes[seq] += num_bytes
    if pairs.begun_ns[seq] == NOT_YET:
        pairs.begun_ns[seq] = now
    return row


@jit
def break_off(pairs, ops, seq):
    """Its transfers are not wanted any more; their blocks are free when the link has done with them."""
    rows = ops.rows
    for row in range(rows.shape[0]):
        if rows[row, OP_KIND] == SEND and rows[row, OP_OWNER] == seq and rows[row, OP_STATE] == MOVING:
            abort(ops, row)


@jit
def over(pairs, engines, row, now):
    """An operation is over: what its end means for its sequence stands in OP_TAG. Returns whether it went well.

    One that fails breaks the whole attempt: nothing more is sent, and the last that ends says that it failed. So does
    one whose engine has died at either end; the end of an older attempt, or one told twice, means nothing.
    """
    ops = engines[0].operations
    rows = ops.rows
    seq = rows[row, OP_OWNER]
    if rows[row, OP_ATTEMPT] != pairs.attempt[seq]:
        rows[row, OP_TAG] = OUT_OF_DATE
        return False
    rows[row, OP_ATTEMPT] = NO_ATTEMPT
    pairs.moving[seq] -= 1
    source, target = engines[rows[row, OP_SOURCE]].side, engines[rows[row, OP_TARGET]].side
    is_dead = rows[row, OP_SOURCE_EPOCH] != source.epoch or rows[row, OP_TARGET_EPOCH] != target.epoch
    if rows[row, OP_STATE] != ENDED or is_dead:
        pairs.broken[seq] = 1
    if pairs.moving[seq] == 0 and (pairs.all_sent[seq] == 1 or pairs.broken[seq] == 1):
        rows[row, OP_TAG] = LAST_OF_ALL
        rows[row, OP_STATE] = FAILED if pairs.broken[seq] == 1 else ENDED
        pairs.arrived_ns[seq] = now
        pairs.failed += pairs.broken[seq]
    return pairs.broken[seq] == 0


@inline
def read_is_done(e, row):
    """The link has done with what a row reads of this engine. True: so it has with all of its sequence.

    False in a later life of the engine: its blocks are others by now.
    """
    ops = e.operations
    if ops.rows[row, OP_SOURCE_EPOCH] != e.side.epoch:
        return False
    detach(ops, row, e.pool)
    return ops.rows[row, OP_TAG] == LAST_OF_ALL


@inline
def write_is_done(e, row):
    """The same of what a row writes into this engine."""
    ops = e.operations
    if ops.rows[row, OP_TARGET_EPOCH] != e.side.epoch:
        return False
    detach_target(ops, row, e.pool)
    return ops.rows[row, OP_TAG] == LAST_OF_ALL
