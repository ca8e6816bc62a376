"""What a decode step does to memory, for all sequences on whose calendar it is, in two batches.

Taking all blocks before publishing any is the same as doing it sequence by sequence: a block that is evicted by a
later take and published again by an earlier sequence ends up published either way.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..memory.pool import ring_take
from ..prefix import block_hash
from ..prefix.keys import key_at
from .calendar import BUCKET_NEXT, bucket_at, settle, watch_end
from .state_columns import BLOCKS, CHAIN, COMPUTED, NO_SLOT, PUBLISHED, RADIX, SEQ


@jit
def open_due(e):
    """One block for every sequence whose token opens one, in order of the running list.

    returns  False, and nothing is changed, when fewer are free (evicting or preempting is not done here)
    """
    cal, rec, table, bt, row = e.calendar, e.slots.rec, e.slots.table, e.rules.block_tokens, e.due_blocks
    place = bucket_at(cal, bt, 0)
    count = cal.counts[place]
    if e.pool.num_free < count:
        return False
    if e.rules.cache_kind == RADIX:
        ring_take(e.pool, row, 0, count)
    else:
        block_hash.take(e.hashes, e.pool, row, 0, count)
    links = cal.links
    slot = cal.head[place]
    for i in range(count):
        settle(cal, rec, slot)
        table[slot, rec[slot, BLOCKS]] = row[i]
        rec[slot, BLOCKS] += 1
        watch_end(cal, rec, slot, bt)
        slot = links[BUCKET_NEXT, slot]
    e.table_blocks += count
    return True


@inline
def publish_due(e):
    """Hash cache: the blocks that this step's tokens fill become visible, in order of the running list."""
    cal, rec, table, bt = e.calendar, e.slots.rec, e.slots.table, e.rules.block_tokens
    keys, contents, row, links = e.block_keys, e.keys, e.due_blocks, cal.links
    count = 0
    slot = cal.head[bucket_at(cal, bt, 1)]
    while slot != NO_SLOT:
        settle(cal, rec, slot)
        block = rec[slot, COMPUTED] // bt
        if block == rec[slot, PUBLISHED]:
            content = block_hash.chain(rec[slot, CHAIN], key_at(keys, rec[slot, SEQ], block))
            rec[slot, CHAIN] = content
            rec[slot, PUBLISHED] = block + 1
            contents[count] = content
            row[count] = table[slot, block]
            count += 1
        slot = links[BUCKET_NEXT, slot]
    if count > 0:
        block_hash.register_all(e.hashes, e.pool, contents, row, np.int64(0), count)
