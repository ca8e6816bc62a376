"""Whether the order of eviction is what it says, recomputed from the records: part of engine.integrity.

Every candidate is on offer under its present key; depth, cost, queue and names are those of the blocks they stand for.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import KvbenchError
from ..core.requests import I64
from ..memory.pool import BlockPool
from ..prefix.block_hash import HashMap
from ..prefix.chain_hash import chain, root_hash
from ..prefix.eviction.ghosts import Ghosts
from ..prefix.eviction.policies import OWN
from ..prefix.eviction.s3fifo import SMALL_BLOCKS
from ..prefix.leaf_heap import EvictionOrder
from ..prefix.node import (
    ACCESS,
    CHILDREN,
    COST,
    DEPTH,
    KEY,
    LENGTH,
    LOCK,
    OFFSET,
    PARENT,
    SHARED,
    WORD_A,
)
from ..prefix.radix import RadixTree


def check_tree_order(tree: RadixTree) -> None:
    """Of the nodes of a tree."""
    nodes, order = tree.nodes, tree.order
    live = np.flatnonzero(nodes[:, LENGTH] > 0)
    _check_offers(order, live)
    if order.policy != OWN:
        return
    for n in live.tolist():
        parent = int(nodes[n, PARENT])
        depth = int(nodes[parent, DEPTH] + nodes[parent, LENGTH]) if parent > 0 else 0
        if nodes[n, DEPTH] != depth:
            raise KvbenchError(
                f"integrity: node {n} has depth {nodes[n, DEPTH]}, its path has {depth} blocks before it"
            )
        if order.two_queues:
            with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
                name = order.names[parent] if parent > 0 else root_hash(-1 - parent)
                for key in tree.keys[nodes[n, OFFSET] : nodes[n, OFFSET] + nodes[n, LENGTH]]:
                    name = chain(name, key)
            if order.names[n] != name:
                raise KvbenchError(f"integrity: node {n} does not bear the name of its prefix")
    _check_costs(order, live)
    _check_queues(order, live)


def check_hash_order(pool: BlockPool, hashes: HashMap) -> None:
    """Of the blocks of a hash map under a policy; without one there is nothing to check."""
    if not hashes.ranked:
        return
    order, nodes = hashes.order, hashes.order.nodes
    visible, held = pool.content[1:] != 0, pool.refs[1:] > 0
    if not np.array_equal(nodes[1:, LENGTH] > 0, visible):
        raise KvbenchError("integrity: the policy knows other blocks than those that are visible")
    if not np.array_equal(nodes[1:, LOCK][visible] > 0, held[visible]):
        raise KvbenchError("integrity: the policy holds other blocks than those that have references")
    block, seen_visible = int(pool.after[0]), False
    while block:
        if seen_visible and pool.content[block] == 0:
            raise KvbenchError(f"integrity: block {block} is not visible and waits behind one that is")
        seen_visible = bool(pool.content[block] != 0)
        block = int(pool.after[block])
    live = np.flatnonzero(nodes[:, LENGTH] > 0)
    _check_offers(order, live)
    _check_costs(order, live)
    _check_queues(order, live)


def _check_offers(order: EvictionOrder, live: I64) -> None:
    nodes = order.nodes
    offered = np.zeros(nodes.shape[0], np.bool_)
    for heap in (order.heap, order.small):
        key, tie, node = heap.key[: heap.size], heap.tie[: heap.size], heap.node[: heap.size]
        offered[node[(nodes[node, KEY] == key) & (nodes[node, ACCESS] == tie)]] = True
    candidates = live[(nodes[live, LOCK] == 0) & (nodes[live, CHILDREN] == 0)]
    missing = candidates[~offered[candidates]]
    if missing.size:
        raise KvbenchError(f"integrity: leaf {missing[0]} could be evicted and is not on offer")


def _check_costs(order: EvictionOrder, live: I64) -> None:
    nodes, sums = order.nodes, order.cost_sum
    if sums.size == 1:
        return
    depth = nodes[live, DEPTH]
    costs = sums[depth + nodes[live, LENGTH]] - sums[depth]
    for i in np.flatnonzero(nodes[live, COST] != costs).tolist():
        kept = nodes[live[i], COST]
        raise KvbenchError(f"integrity: node {live[i]} costs {kept} ns to compute again, counted {costs[i]}")


def _check_queues(order: EvictionOrder, live: I64) -> None:
    if not order.two_queues:
        return
    nodes = order.nodes
    small = int(nodes[live, LENGTH][nodes[live, WORD_A] < 0].sum())
    if nodes[SHARED, SMALL_BLOCKS] != small:
        raise KvbenchError(f"integrity: small queue is kept as {nodes[SHARED, SMALL_BLOCKS]} blocks, counted {small}")
    _check_ghosts(order.ghosts)


def _check_ghosts(ghosts: Ghosts) -> None:
    size = ghosts.name.size
    places = [(ghosts.head + i) % size for i in range(ghosts.count)]
    named = [p for p in places if ghosts.name[p] != 0]
    blocks = sum(int(ghosts.length[p]) for p in named)
    if blocks != ghosts.blocks or blocks > ghosts.limit:
        raise KvbenchError(f"integrity: {ghosts.blocks} of {ghosts.limit} blocks are remembered, counted {blocks}")
    if sorted(int(v) - 1 for v in ghosts.table if v) != sorted(named):
        raise KvbenchError("integrity: what is remembered and the table that finds it disagree")
