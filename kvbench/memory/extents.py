"""Contiguous stretches of blocks, for schedulers that reserve a sequence's memory in one piece.

Both allocators read which blocks are free from the references, so there is no second account that could
disagree. A buddy allocator that merges whenever it can has exactly the maximal free aligned powers of two on its
lists; looking for them is the same as keeping them. O(blocks) a look; a scheduler looks again only after
something was given back.

    first_fit   the lowest hole that is long enough
    buddy_fit   the smallest free power of two that is large enough, of these the lowest; it is split down
"""

from __future__ import annotations

from ..core.jit import entry, jit
from .pool import NO_BLOCK, list_unlink


@entry
def first_fit(refs, n):
    """First of n free blocks in a row; NO_BLOCK when no hole is that long. refs: (num_blocks + 1,), 0 = free."""
    run = 0
    for block in range(1, refs.size):
        run = run + 1 if refs[block] == 0 else 0
        if run == n:
            return block - n + 1
    return NO_BLOCK


@entry
def buddy_fit(refs, n):
    """First block of a free aligned stretch of n blocks, n a power of two; NO_BLOCK when there is none.

    Block b lies at b - 1. A count of blocks that is no power of two is a row of ever smaller ones.
    """
    best, best_size = NO_BLOCK, refs.size
    at = 0
    while at + n <= refs.size - 1:
        size = _free_size(refs, at, n)
        if 0 < size < best_size:
            best, best_size = at + 1, size
        at += max(size, n)
    return best


@jit
def _free_size(refs, at, n):
    """Size of the largest free aligned stretch that begins at `at`; 0 when it is below n."""
    size, free = 0, 0
    while at % n == 0 and at + n <= refs.size - 1:
        while free < n:
            if refs[at + free + 1] != 0:
                return size
            free += 1
        size = n
        n *= 2
    return size


@entry
def take_stretch(pool, row, block, n):
    """Take n blocks in a row, one reference each, into row[0:n]; they are free."""
    after, before, refs = pool.after, pool.before, pool.refs
    for i in range(n):
        list_unlink(after, before, block + i)
        refs[block + i] = 1
        row[i] = block + i
    pool.num_free -= n
