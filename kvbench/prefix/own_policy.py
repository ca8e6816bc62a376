"""What a policy that is more than a stamp needs of its cache: when it hears of nodes, and how a victim is found.

A tree calls `tell` for it, one verb with a number for what happened: a function pointer of the tree, so that a run
under a stamp compiles none of this. Block hash has a verb of its own (ranked.py). Besides the policy's functions
they keep depth and recompute time of a node, and, where what was evicted is remembered, the name of its prefix.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..core.jit import PLAIN, inline, jit
from .chain_hash import chain, root_hash
from .changes import IS_STORED, note_change
from .eviction import s3fifo
from .eviction.ghosts import recall, remember
from .eviction.policies import OWN, compiled
from .leaf_heap import EvictionOrder, offer, pop_one
from .node import ACCESS, COST, DEPTH, KEY, LENGTH, NO_NODE, OFFSET, PARENT, WORD_A, WORD_B

INTRODUCED, DIVIDED, USED, LEAVES = range(4)

TELL_FUNCTION: Any = (
    None if PLAIN else types.FunctionType(types.int64(EvictionOrder.numba_type, types.int64[::1], *(types.int64,) * 5))
)


def tell(order, keys, event, node, start, stop, now):
    """Something happens to a node of a tree whose arena is `keys`.

    INTRODUCED  it is a new leaf; `keys` are those of its prompt, of which it holds start .. stop
    DIVIDED     it is the new upper part of node `start`
    USED        a request that was admitted uses the path to it
    LEAVES      returns who is evicted next, or NO_NODE; `node` is not read
    """
    if event == INTRODUCED:
        _introduce(order, keys, node, start, stop)
    elif event == DIVIDED:
        _divide(order, keys, node, start)
    elif event == USED:
        _use(order, node, now)
    else:
        node = pop_own(order, now)
        if order.tells and node != NO_NODE:
            _tell_gone(order, keys, node)
        if order.two_queues and node != NO_NODE and order.nodes[node, KEY] < 0:
            name = chain(_name(order, order.nodes[node, PARENT]), keys[order.nodes[node, OFFSET]])
            remember(order.ghosts, name, order.nodes[node, LENGTH])
        return node
    return NO_NODE


def silent(order, keys, event, node, start, stop, now):
    return 0


@cache
def tell_pointer(code: int) -> Any:
    """The verb of a tree under a policy of this code."""
    return compiled(tell if code == OWN else silent, TELL_FUNCTION)


# ---------------------------------------------------------------- who leaves


@jit
def pop_own(order, now):
    """The candidate that goes first and that its policy lets go, or NO_NODE when there is none."""
    nodes, on_evict = order.nodes, order.on_evict
    while True:
        node = _pop_two(order, nodes) if order.two_queues else pop_one(order.heap, nodes)
        if node == NO_NODE or on_evict(nodes, node, now):
            return node
        offer(order, node, now)


@jit
def pop_any(order, now):
    """The same under any policy."""
    return pop_own(order, now) if order.policy == OWN else pop_one(order.heap, order.nodes)


@inline
def _pop_two(order, nodes):
    """From the queue whose turn it is, or from the other when it has no candidate."""
    small = s3fifo.small_goes(nodes)
    node = pop_one(order.small if small else order.heap, nodes)
    if node == NO_NODE:
        node = pop_one(order.heap if small else order.small, nodes)
    return node


@inline
def recompute_ns(cost_sum, start, stop):
    """ns to compute blocks start .. stop of a prompt again; 0 where no policy asks."""
    last = cost_sum.size - 1
    return cost_sum[min(stop, last)] - cost_sum[min(start, last)]


# ---------------------------------------------------------------- nodes of a tree


@inline
def _name(order, node):
    """Chain hash of the prefix that ends with a node, or of the root."""
    return order.names[node] if node > 0 else root_hash(-1 - node)


@jit
def _chained(order, name, keys, start, stop, tells, gone):
    """The name of the prefix that goes on from `name` with keys[start:stop]. tells, gone: what of these blocks."""
    for i in range(start, stop):
        name = chain(name, keys[i])
        if tells:
            note_change(order, name ^ gone)
    return name


@inline
def _tell_gone(order, keys, node):
    offset = order.nodes[node, OFFSET]
    name = _name(order, order.nodes[node, PARENT])
    _chained(order, name, keys, offset, offset + order.nodes[node, LENGTH], True, np.int64(IS_STORED))


@inline
def _introduce(order, keys, leaf, start, stop):
    """Its place in the prompt, its cost, its name; then the policy hears of it."""
    nodes, on_insert = order.nodes, order.on_insert
    nodes[leaf, DEPTH] = start
    nodes[leaf, COST] = recompute_ns(order.cost_sum, start, stop)
    nodes[leaf, WORD_A] = nodes[leaf, WORD_B] = 0
    if order.names.size > 1:
        name = _name(order, nodes[leaf, PARENT])
        if order.two_queues:
            nodes[leaf, WORD_A] = np.int64(recall(order.ghosts, chain(name, keys[start])))
        order.names[leaf] = _chained(order, name, keys, start, stop, order.tells, np.int64(0))
    on_insert(nodes, leaf, nodes[leaf, ACCESS])


@inline
def _divide(order, keys, upper, lower):
    """The parts have places, costs and names of their own, and both the words of the whole."""
    nodes = order.nodes
    nodes[upper, DEPTH] = nodes[lower, DEPTH]
    nodes[lower, DEPTH] += nodes[upper, LENGTH]
    for node in (upper, lower):
        start = nodes[node, DEPTH]
        nodes[node, COST] = recompute_ns(order.cost_sum, start, start + nodes[node, LENGTH])
    nodes[upper, WORD_A], nodes[upper, WORD_B] = nodes[lower, WORD_A], nodes[lower, WORD_B]
    if order.names.size > 1:
        offset = nodes[upper, OFFSET]
        name = _name(order, nodes[upper, PARENT])
        order.names[upper] = _chained(order, name, keys, offset, offset + nodes[upper, LENGTH], False, np.int64(0))


@inline
def _use(order, node, now):
    nodes, on_hit = order.nodes, order.on_hit
    while node > 0:
        on_hit(nodes, node, now)
        node = nodes[node, PARENT]
