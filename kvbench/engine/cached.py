"""What lies in the cache of an engine, by what it means."""

from __future__ import annotations

import numpy as np

from ..prefix.chain_hash import chain, root_hash
from ..prefix.node import LENGTH, OFFSET, PARENT
from ..scheduler.state import Engine
from ..scheduler.state_columns import HASHED


def cached_prefixes(e: Engine) -> dict[int, int]:
    """Every cached block by the chain hash of the prefix that it ends."""
    if e.rules.cache_kind == HASHED:
        content = e.pool.content
        return {int(content[block]): block for block in np.flatnonzero(content).tolist()}
    found: dict[int, int] = {}
    ends: dict[int, int] = {}  # node -> hash of the prefix that its last block ends
    nodes, keys, blocks = e.tree.nodes, e.tree.keys, e.tree.blocks

    def end_of(node: int) -> int:
        if node < 0:
            return int(root_hash(np.int64(-1 - node)))
        if node not in ends:
            parent, first, length = (int(nodes[node, column]) for column in (PARENT, OFFSET, LENGTH))
            content = end_of(parent)
            for i in range(first, first + length):
                content = int(chain(np.int64(content), keys[i]))
                found[content] = int(blocks[i])
            ends[node] = content
        return ends[node]

    for node in np.flatnonzero(nodes[:, LENGTH] > 0).tolist():
        end_of(node)
    return found
