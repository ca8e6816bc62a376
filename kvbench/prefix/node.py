"""The record of a node: what the cache knows of a run of blocks, and what an eviction policy may read.

A record is 16 int64, two cache lines; the walk down a radix tree needs the first. Under block hash a node is one
block, its id the block's. Record 0 is no node: it belongs to the policy, but for CAPACITY and SEED.
"""

from __future__ import annotations

(
    PARENT,
    OFFSET,
    LENGTH,
    LOCK,
    ACCESS,
    CHILDREN,
    HITS,
    PRIORITY,
    CREATED,
    PLACE,
    MARK,
    DEPTH,
    COST,
    KEY,
    WORD_A,
    WORD_B,
) = range(16)
# PARENT    node id > 0, or -1 - namespace: the root of that namespace (radix)
# OFFSET    first key and block of the node's run in the arena (radix)
# LENGTH    blocks; 0 = not in use, under block hash: not visible
# LOCK      sequences that hold the node or one below it; under block hash 1 while it is referenced
# ACCESS, CREATED   ticks of the cache's clock; no two candidates have the same
# CHILDREN  nodes below it (radix)
# HITS      radix: insertions of the path; block hash: registration and hits
# PRIORITY  greater stays longer, under a policy that looks at it
# PLACE     order among its siblings: the tick at which it became a child; a split leaves it to the upper part
# MARK      of whoever walks the tree, who knows by itself whether the mark is its own
# KEY       its place in the order of eviction, as the policy gave it last
# Kept only for policies that are more than a stamp (code OWN):
# DEPTH     blocks of the prefix before it
# COST      ns to compute it again on top of that prefix
# WORD_A, WORD_B    the policy's own; a split copies them
NODE_COLUMNS = 16

NO_NODE = 0
SHARED = 0
"""The record of the policy itself."""

CAPACITY, SEED, TAIL = DEPTH, COST, HITS
"""Of the shared record: blocks of the whole cache; what random draws start from; blocks that tlru may drop."""
