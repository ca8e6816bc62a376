"""What a radix tree keeps for policies that are more than a stamp, and when they hear of its nodes.

Depth and recompute time of a node, and the name of its prefix where what was evicted is remembered.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from .block_hash import chain, root_hash
from .eviction.ghosts import recall, remember
from .leaf_heap import recompute_ns
from .node import ACCESS, COST, DEPTH, KEY, LENGTH, OFFSET, PARENT, WORD_A, WORD_B


@inline
def name_of(order, node):
    """Chain hash of the prefix that ends with a node, or of the root."""
    return order.names[node] if node > 0 else root_hash(-1 - node)


@jit
def introduce(order, leaf, keys, start, stop):
    """A new leaf with keys[start:stop]: its place in the prompt, its cost, its name; then the policy hears of it."""
    nodes = order.nodes
    nodes[leaf, DEPTH] = start
    nodes[leaf, COST] = recompute_ns(order.cost_sum, start, stop)
    nodes[leaf, WORD_A] = nodes[leaf, WORD_B] = 0
    if order.two_queues:
        name = name_of(order, nodes[leaf, PARENT])
        nodes[leaf, WORD_A] = np.int64(recall(order.ghosts, chain(name, keys[start])))
        order.names[leaf] = _chained(name, keys, start, stop)
    on_insert = order.on_insert
    on_insert(nodes, leaf, nodes[leaf, ACCESS])


@jit
def divide(order, keys, upper, lower):
    """After a split: the parts have places, costs and names of their own, and both the words of the whole."""
    nodes = order.nodes
    middle = nodes[lower, DEPTH] + nodes[upper, LENGTH]
    nodes[upper, DEPTH] = nodes[lower, DEPTH]
    nodes[lower, DEPTH] = middle
    for node in (upper, lower):
        start = nodes[node, DEPTH]
        nodes[node, COST] = recompute_ns(order.cost_sum, start, start + nodes[node, LENGTH])
    nodes[upper, WORD_A], nodes[upper, WORD_B] = nodes[lower, WORD_A], nodes[lower, WORD_B]
    if order.two_queues:
        offset = nodes[upper, OFFSET]
        name = name_of(order, nodes[upper, PARENT])
        order.names[upper] = _chained(name, keys, offset, offset + nodes[upper, LENGTH])


@jit
def _chained(name, keys, start, stop):
    for i in range(start, stop):
        name = chain(name, keys[i])
    return name


@jit
def tell_hit(order, node, now):
    nodes, on_hit = order.nodes, order.on_hit
    while node > 0:
        on_hit(nodes, node, now)
        node = nodes[node, PARENT]


@inline
def bury(order, keys, node):
    """A node is evicted; out of the first of two queues, its name is remembered."""
    nodes = order.nodes
    if order.two_queues and nodes[node, KEY] < 0:
        name = chain(name_of(order, nodes[node, PARENT]), keys[nodes[node, OFFSET]])
        remember(order.ghosts, name, nodes[node, LENGTH])
