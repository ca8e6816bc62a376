"""Write-back to host memory: a block is copied out when the device's cache evicts it; whoever needs its memory waits.

    prepare, prepare_ahead   as without it (fetching, prefetching); what loads have evicted is copied first
    stretch                  what the plan has evicted is copied, and the step begins when that is over

The cache tells what it has evicted (`prefix/changes.py`), by the names that the host knows blocks by. A copy's memory
belongs to somebody else already, so it holds nothing on the device: nothing is written there before it has ended.

source: SGLang's HiCache, which waits for the writes of an eviction in the call that evicts.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..costs.links import transfer_ns
from ..memory import links
from ..memory.operations import BACKUP, NOBODY, attach_tier, open_row
from ..prefix.changes import IS_STORED
from ..tiers import copies, host
from . import fetching, prefetching
from .state_columns import RADIX, WRITE_BACK_UNHELD


@entry
def prepare(e):
    """Before a step is planned."""
    fetching.prepare(e)
    write(e)


@entry
def prepare_ahead(e):
    """The same with storage behind the host."""
    prefetching.prepare(e)
    write(e)


@entry
def stretch(e, duration):
    """How much longer the planned step takes, see fetching.stretch; it begins when what it overwrites is copied."""
    write(e)
    fetching.stretch_behind(e, duration, e.tiers.write_end)


@inline
def _order_of(e):
    order = e.hashes.order
    if e.rules.cache_kind == RADIX:
        order = e.tree.order
    return order


@jit
def write(e):
    """Copies of what was evicted since the last look begin: of what the host has not, as far as it finds space."""
    t, ops, order = e.tiers, e.operations, _order_of(e)
    tier, count = t.host, np.int64(0)
    host.make_room(tier, order.num_changes)
    for i in range(order.num_changes):
        change = order.changes[i]
        if change & IS_STORED:
            continue
        content = change | IS_STORED
        if not host.is_wanted(tier, host.slot_of(tier, content)):
            continue
        slot = host.reserve(tier, content, copies.NO_PARENT, np.int64(0))
        if slot == copies.NO_SLOT:
            tier.counters[copies.REFUSED] += 1
            continue
        if e.rules.planted & WRITE_BACK_UNHELD:
            host.unlock(tier, slot)
        tier.slots[count] = slot
        count += 1
    order.num_changes = 0
    if count == 0:
        return
    row = open_row(ops, BACKUP, NOBODY, 0, e.number, e.number)
    attach_tier(ops, row, tier.slots, 0, count)
    num_bytes, fragments = count * t.block_bytes, count * t.block_fragments
    work = transfer_ns(e.links.rates, t.link_down, num_bytes, fragments)
    links.begin(e.links, ops, row, t.link_down, num_bytes, fragments, work, e.now)
    t.write_end = max(t.write_end, links.expected_end(e.links, ops, row))
