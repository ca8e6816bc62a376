"""Tables that fork, and the order of eviction over a hash map, in the compiled check; `integrity` has the words."""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..prefix import node
from ..prefix.leaf_heap import is_candidate
from ..scheduler.state_columns import (
    BLOCKS,
    FOLLOWS,
    KEPT,
    KEPT_SLOT,
    NEXT,
    NO_REQUEST,
    PARENT,
    PHASE,
    SEQ,
    WANTED,
)


@jit
def forks_agree(e):
    """Who waits for a prompt holds nothing; kept tables are in their list, and turns that want them are counted."""
    rec, lineage = e.slots.rec, e.lineage
    kept = 0
    for slot in range(rec.shape[0]):
        if rec[slot, PHASE] == KEPT:
            kept += 1
            request = e.seqs.request[rec[slot, SEQ]]
            if lineage[request, KEPT_SLOT] != slot or lineage[request, WANTED] < 1:
                return False
        elif rec[slot, PHASE] == FOLLOWS and rec[slot, BLOCKS] > 0:
            return False
    listed, slot = 0, e.kept_head
    while slot >= 0 and listed <= rec.shape[0]:
        listed += 1
        slot = rec[slot, NEXT]
    waiting = np.zeros(lineage.shape[0], np.int64)
    for request in range(lineage.shape[0]):
        if lineage[request, PARENT] != NO_REQUEST:
            waiting[lineage[request, PARENT]] += 1
    return listed == kept and np.sum(waiting != lineage[:, WANTED]) == 0


@jit
def policy_agrees(e):
    """A policy over a hash map knows the visible blocks, holds those with references, and offers the others.

    In the free queue what is not visible is before what is.
    """
    pool, order = e.pool, e.hashes.order
    nodes, contents = order.nodes, pool.content
    on_offer = np.zeros(nodes.shape[0], np.int64)
    for i in range(order.heap.size):
        _offer(nodes, order.heap, i, on_offer)
    for i in range(order.small.size):
        _offer(nodes, order.small, i, on_offer)
    for block in range(1, pool.num_blocks + 1):
        if (nodes[block, node.LENGTH] > 0) != (contents[block] != 0):
            return False
        if contents[block] == 0:
            continue
        if (nodes[block, node.LOCK] > 0) != (pool.refs[block] > 0):
            return False
        if is_candidate(nodes, block) and on_offer[block] == 0:
            return False
    seen_visible, block = False, np.int64(pool.after[0])
    while block != 0:
        if seen_visible and contents[block] == 0:
            return False
        seen_visible = contents[block] != 0
        block = np.int64(pool.after[block])
    return True


@jit
def _offer(nodes, heap, i, on_offer):
    """Note an entry of a heap whose key is its block's present one."""
    at = heap.node[i]
    if nodes[at, node.KEY] == heap.key[i] and nodes[at, node.ACCESS] == heap.tie[i]:
        on_offer[at] = 1
