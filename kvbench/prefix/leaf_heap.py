"""Which leaf goes next: eviction policies as keys, and a heap of leaves with lazy deletion.

A policy is one key per node; the smallest goes first, ties by last access. Entries are never removed from the
middle: one that no longer describes its node (touched, locked, gone, or no leaf any more) is dropped when
it surfaces. A node that may be evicted always has one entry that describes it.

Orders as in SGLang: lru, lfu (insertions), fifo, mru, filo, priority, slru (protected from two insertions on).
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit

LRU, LFU, FIFO, MRU, FILO, PRIORITY_ORDER, SLRU = range(7)
POLICIES = {
    "lru": LRU,
    "lfu": LFU,
    "fifo": FIFO,
    "mru": MRU,
    "filo": FILO,
    "priority": PRIORITY_ORDER,
    "slru": SLRU,
}

# Columns of a node record (16 int64, two cache lines; the walk needs the first).
PARENT, OFFSET, LENGTH, LOCK, ACCESS, CHILDREN, HITS, PRIORITY, CREATED, PLACE, MARK = range(11)
# PARENT    node id > 0, or -1 - namespace: the root of that namespace
# OFFSET    first key and block of the node's run in the arena; LENGTH blocks; LENGTH 0 = not in use
# LOCK      sequences that hold the node or one below it
# ACCESS, CREATED   ticks of the tree's clock
# PLACE     order among its siblings: the tick at which it became a child; a split leaves it to the upper part
# MARK      of whoever walks the tree, who knows by itself whether the mark is its own
NODE_COLUMNS = 16

SLRU_PROTECTED_HITS = 2


@inline
def policy_key(policy, nodes, node):
    if policy == LRU:
        return nodes[node, ACCESS]
    if policy == LFU:
        return nodes[node, HITS]
    if policy == FIFO:
        return nodes[node, CREATED]
    if policy == MRU:
        return -nodes[node, ACCESS]
    if policy == FILO:
        return -nodes[node, CREATED]
    if policy == PRIORITY_ORDER:
        return nodes[node, PRIORITY]
    return np.int64(nodes[node, HITS] >= SLRU_PROTECTED_HITS)


@inline
def is_candidate(nodes, node):
    """A leaf that nobody holds."""
    return nodes[node, LENGTH] > 0 and nodes[node, LOCK] == 0 and nodes[node, CHILDREN] == 0


@jit
def offer(tree, node):
    """Enter a candidate with its present key; called when it becomes one and when its key changes."""
    if tree.heap_size == tree.heap_node.size:
        rebuild(tree)
    _push(tree, policy_key(tree.policy, tree.nodes, node), tree.nodes[node, ACCESS], node)


@inline
def pop(tree):
    """The candidate that goes first, or 0 when there is none."""
    nodes = tree.nodes
    while tree.heap_size > 0:
        key, tie, node = tree.heap_key[0], tree.heap_tie[0], np.int64(tree.heap_node[0])
        _drop_top(tree)
        if is_candidate(nodes, node) and tie == nodes[node, ACCESS] and key == policy_key(tree.policy, nodes, node):
            return node
    return 0


@inline
def rebuild(tree):
    """Start over from the live candidates; amortised by the capacity of twice the nodes."""
    tree.heap_size = 0
    for node in range(1, tree.high_node + 1):
        if is_candidate(tree.nodes, node):
            _push(tree, policy_key(tree.policy, tree.nodes, node), tree.nodes[node, ACCESS], node)


@inline
def _push(tree, key, tie, node):
    keys, ties, ids = tree.heap_key, tree.heap_tie, tree.heap_node
    i = tree.heap_size
    tree.heap_size = i + 1
    while i > 0:
        p = (i - 1) >> 2
        if keys[p] < key or (keys[p] == key and ties[p] <= tie):
            break
        keys[i], ties[i], ids[i] = keys[p], ties[p], ids[p]
        i = p
    keys[i], ties[i], ids[i] = key, tie, node


@inline
def _drop_top(tree):
    keys, ties, ids = tree.heap_key, tree.heap_tie, tree.heap_node
    n = tree.heap_size - 1
    tree.heap_size = n
    if n == 0:
        return
    key, tie, node = keys[n], ties[n], ids[n]
    i = 0
    while True:
        child = 4 * i + 1
        if child >= n:
            break
        least = child
        for c in range(child + 1, min(child + 4, n)):
            if keys[c] < keys[least] or (keys[c] == keys[least] and ties[c] < ties[least]):
                least = c
        if keys[least] > key or (keys[least] == key and ties[least] >= tie):
            break
        keys[i], ties[i], ids[i] = keys[least], ties[least], ids[least]
        i = least
    keys[i], ties[i], ids[i] = key, tie, node
