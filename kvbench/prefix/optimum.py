"""What the best cache of a capacity gives, over reuses.

The best cache knows the future. Reuses are intervals of ranks; the blocks kept over any moment must fit, and a hit is
a block kept over its whole interval. Most are kept by going through the ranks and dropping, when too much is kept,
what is used again last: Belady's rule, which for intervals of equal worth is optimal (Faigle and Nawijn 1995).

The prefix constraint costs nothing: a parent is used whenever its child is, hence never later, so what is dropped
first is always a deepest block, and what is kept is closed under prefixes without asking for it.

For visits that do not overlap (end = start: one request after another) it is therefore exact: the most hits of any
cache, closed under prefixes or not, that may keep or drop any block after each request. For visits that overlap it
is a bound: no capacity is taken for what running requests hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.jit import entry, jit
from .reuse import Reuses


def most_hits(reuses: Reuses, capacities: Sequence[int]) -> list[int]:
    """Blocks hit at most, for each capacity in blocks (0 = no bound)."""
    for capacity in capacities:
        if capacity not in reuses.best:
            kept = int(_keep(*reuses.by_begin, reuses.num_ranks, capacity)) if capacity > 0 else 0
            reuses.best[capacity] = reuses.at_once + kept if capacity > 0 else reuses.total
    return [reuses.best[capacity] for capacity in capacities]


@entry
def _keep(begin, end, blocks, num_ranks, capacity):
    """Most blocks that can be kept from begin to end with `capacity` at any time. Sorted by begin."""
    size = np.int64(2)
    while size < num_ranks:
        size *= 2
    kept = np.zeros(2 * size, np.int64)  # a tree of sums; kept[size + r]: blocks kept for rank r
    hits, total, i = np.int64(0), np.int64(0), np.int64(0)
    for rank in range(num_ranks):
        due = kept[size + rank]
        if due > 0:
            hits += due
            total -= due
            _add(kept, size + rank, -due)
        while i < begin.size and begin[i] == rank:
            total += blocks[i]
            _add(kept, size + end[i], blocks[i])
            i += 1
        while total > capacity:
            at = np.int64(1)
            while at < size:
                at = 2 * at + np.int64(kept[2 * at + 1] > 0)
            drop = min(kept[at], total - capacity)
            total -= drop
            _add(kept, at, -drop)
    return hits


@jit
def _add(kept, at, blocks):
    while at > 0:
        kept[at] += blocks
        at >>= 1
