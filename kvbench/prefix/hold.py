"""Who holds blocks without being a sequence: an operation of another queue that reads them.

Under a list a hold is a reference to each block, under a radix tree a lock on the path that they belong to (as
SGLang's write-through does). What has been let go of stays visible as a prefix until somebody needs the memory.
"""

from __future__ import annotations

from ..core.jit import inline
from ..memory.pool import list_give
from . import block_hash, radix
from .ranked import RELEASED


@inline
def hold(is_radix, tree, pool, table, start, stop, node):
    """Hold the blocks table[start:stop], which belong to the path to `node` of a tree."""
    if is_radix:
        radix.lock(tree, node)
    else:
        refs = pool.refs
        for i in range(start, stop):
            refs[table[i]] += 1


@inline
def let_go(is_radix, tree, hashes, pool, blocks, first, count, node):
    """Undo a hold of blocks[first : first + count]."""
    if is_radix:
        radix.unlock(tree, node)
    else:
        row = blocks[first : first + count]
        list_give(pool, row, count)
        block_hash.note(hashes, pool, RELEASED, row, 0, count, 0)
