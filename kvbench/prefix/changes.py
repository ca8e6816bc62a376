"""What a cache tells of its blocks, for who wants to know what lies where: chain hashes, in order of what happened.

A hash is odd (chain_hash.py). A tree writes the hash of a block that it has now, and with bit 0 off the one of a block
that it has no more. A map writes the hash of every block that it was given or that was taken, the latter with bit 0 off
where it was evicted: a block may have twins, so whoever reads asks the map whether one is left. The list is part of
the eviction order, which both have; a cache that tells nothing pays a comparison a call.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit

IS_STORED = 1
"""The bit that is off in a change where a block is gone."""


@jit
def note_change(order, change):
    """Add to what is told; the list grows as needed, whoever reads it sets num_changes to 0."""
    if order.num_changes == order.changes.size:
        larger = np.zeros(2 * order.num_changes, np.int64)
        for i in range(order.num_changes):
            larger[i] = order.changes[i]
        order.changes = larger
    order.changes[order.num_changes] = change
    order.num_changes += 1


@inline
def note_contents(order, contents, blocks, start, stop, gone):
    """Those of blocks[start:stop] that have a content. gone: IS_STORED where they are evicted, else 0."""
    for i in range(start, stop):
        content = contents[blocks[i]]
        if content != 0:
            note_change(order, content ^ gone)
