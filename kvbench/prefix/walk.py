"""Many look-ups and insertions in one call: what a prefix cache does for a list of requests, without a scheduler."""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from ..memory.pool import ring_take
from . import radix
from .chain_hash import chain, root_hash


@entry
def match_all(tree, keys, offset, row):
    """Look every request up; keys[offset[r]:offset[r + 1]] are its blocks. Returns the blocks found.

    row      (longest request,) int32, overwritten
    """
    found = np.int64(0)
    for r in range(offset.size - 1):
        wanted = keys[offset[r] : offset[r + 1]]
        found += radix.match(tree, np.int64(0), wanted, wanted.size, row)[1]
    return found


@entry
def admit_all(tree, pool, keys, offset, row):
    """Look every request up, take blocks for the rest, insert it: as `match_all`, and the pool has to suffice."""
    found = np.int64(0)
    for r in range(offset.size - 1):
        wanted = keys[offset[r] : offset[r + 1]]
        node, hits = radix.match(tree, np.int64(0), wanted, wanted.size, row)
        ring_take(pool, row, hits, wanted.size)
        radix.insert(tree, pool, node, wanted, row, hits, wanted.size, np.int64(0), np.int64(0))
        found += hits
    return found


@entry
def chain_all(keys, offset, out):
    """out[i] = the chain hash of the prefix that block i ends, in its own request."""
    for r in range(offset.size - 1):
        name = root_hash(np.int64(0))
        for i in range(offset[r], offset[r + 1]):
            name = chain(name, keys[i])
            out[i] = name
