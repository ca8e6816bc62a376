"""The radix tree over block keys: a prefix is a path, a node is a run of blocks.

    root of a namespace (-1 - namespace, no record)
      node: keys[offset : offset + length] with blocks[...] of the arena
        node ...

The first key of a node is its name below its parent; an open-addressing table finds (parent, key). Matching
inside a node splits it, so a look-up changes the tree (as in SGLang). Runs live in one arena that is
compacted when it is full: amortised O(1) per inserted block.

What must always hold: a lock on a node is also counted by all its ancestors; evictable + protected is the
number of blocks in the tree; siblings differ in their first key; only leaves without locks are evicted.

source: SGLang's radix cache, in whole blocks (its pages). A split makes a new *upper* node with a fresh stamp of use
and copied lock, hits and priority; its age is new too (0.5.12) or that of the whole (0.5.23, keeps_age). Match and
insert stamp every node of the path; only insert counts hits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..kernels.ordering import sort_by_key
from ..memory.pool import ring_give
from .children import common_run, enter_child, find_child, place_of, remove_entry
from .eviction.policies import OWN, POLICIES, Policy, by_functions
from .keys import fill_keys
from .leaf_heap import EvictionOrder, make_order, offer, pop_one
from .node import (
    ACCESS,
    CHILDREN,
    CREATED,
    HITS,
    LENGTH,
    LOCK,
    NO_NODE,
    NODE_COLUMNS,
    OFFSET,
    PARENT,
    PLACE,
    PRIORITY,
)
from .own_policy import DIVIDED, INTRODUCED, LEAVES, TELL_FUNCTION, USED, tell_pointer


@struct
class RadixTree:
    """nodes (capacity + 2, 16) records, see node.py. table: (tag << 32 | node), 0 = empty, a power of two.

    keys, blocks   the arena, (twice the blocks,); top = first free place
    free_nodes     stack of ids. order: who is evicted first, over the same records
    tell           what policies that are more than a stamp hear; see own_policy
    evictable, protected   in blocks. clock: ticks once per stamp. keeps_age: a split leaves its age to both parts
    log            (offset, length) of evicted nodes, in order; log_size of them; not written when it is empty
    """

    nodes: "i8[:,::1]"
    table: "i8[::1]"
    keys: "i8[::1]"
    blocks: "i4[::1]"
    top: "i8"
    free_nodes: "i4[::1]"
    num_free_nodes: "i8"
    high_node: "i8"
    order: "EvictionOrder"
    tell: "TELL_FUNCTION"
    evictable: "i8"
    protected: "i8"
    clock: "i8"
    keeps_age: "b1"
    inserted: "i8"
    evicted: "i8"
    evicted_nodes: "i8"
    log: "i8[:,::1]"
    log_size: "i8"


def make_tree(
    capacity: int,
    eviction: str | Policy,
    log_capacity: int = 0,
    block_ns: Any = (),
    seed: int = 0,
    *,
    keeps_age: bool = False,
    tail: int = 0,
    tells: bool = False,
) -> RadixTree:
    """An empty tree that can hold `capacity` blocks. block_ns, seed, tail, tells: see leaf_heap.make_order.

    A tree that tells of its blocks has every policy by its functions: what is told hangs on what they hear.
    """
    capacity = max(capacity, 1)
    table_size = 1 << (2 * capacity).bit_length()
    nodes = np.zeros((capacity + 2, NODE_COLUMNS), np.int64)
    policy = POLICIES[eviction] if isinstance(eviction, str) else eviction
    policy = by_functions(policy) if tells else policy
    return RadixTree(
        nodes,
        np.zeros(table_size, np.int64),
        np.empty(2 * capacity + 64, np.int64),
        np.empty(2 * capacity + 64, np.int32),
        0,
        np.arange(capacity + 1, 0, -1).astype(np.int32),
        capacity + 1,
        0,
        make_order(nodes, capacity, policy, block_ns, seed, tail, tells),
        tell_pointer(policy.code),
        0,
        0,
        0,
        keeps_age,
        0,
        0,
        0,
        np.zeros((log_capacity, 2), np.int64),
        0,
    )


@inline
def _tell(tree, keys, event, node, start, stop):
    """A policy that is more than a stamp hears what happens; see own_policy.tell."""
    if tree.order.policy == OWN:
        tell = tree.tell
        return tell(tree.order, keys, event, node, start, stop, tree.clock)
    return 0


# ---------------------------------------------------------------- nodes


@jit
def _new_node(tree):
    tree.num_free_nodes -= 1
    node = np.int64(tree.free_nodes[tree.num_free_nodes])
    if node > tree.high_node:
        tree.high_node = node
    tree.clock += 1
    tree.nodes[node, ACCESS] = tree.clock
    tree.nodes[node, CREATED] = tree.clock
    tree.nodes[node, PLACE] = tree.clock
    tree.nodes[node, LOCK] = 0
    tree.nodes[node, CHILDREN] = 0
    return node


@jit
def _split(tree, node, length):
    """Cut a node after `length` blocks. The new upper part is returned; the lower keeps its identity."""
    nodes, keys = tree.nodes, tree.keys
    parent, offset = nodes[node, PARENT], nodes[node, OFFSET]
    upper = _new_node(tree)
    at = place_of(tree, parent, keys[offset], node)
    tree.table[at] = (tree.table[at] >> 32 << 32) | upper
    nodes[upper, PARENT] = parent
    nodes[upper, PLACE] = nodes[node, PLACE]
    if tree.keeps_age:
        nodes[upper, CREATED] = nodes[node, CREATED]
    nodes[upper, OFFSET] = offset
    nodes[upper, LENGTH] = length
    nodes[upper, LOCK] = nodes[node, LOCK]
    nodes[upper, HITS] = nodes[node, HITS]
    nodes[upper, PRIORITY] = nodes[node, PRIORITY]
    nodes[upper, CHILDREN] = 1
    nodes[node, PARENT] = upper
    nodes[node, OFFSET] = offset + length
    nodes[node, LENGTH] -= length
    enter_child(tree, upper, keys[offset + length], node)
    _tell(tree, keys, DIVIDED, upper, node, 0)
    return upper


@inline
def _stamp_path(tree, node, tick):
    """Everything from a node up was used at `tick`; a leaf's place in the eviction order changes."""
    nodes = tree.nodes
    end = node
    while node > 0:
        nodes[node, ACCESS] = tick
        node = nodes[node, PARENT]
    if end > 0 and nodes[end, LOCK] == 0 and nodes[end, CHILDREN] == 0:
        offer(tree.order, end, tick)


@entry
def touch(tree, node):
    """What a match of exactly the path to `node` does: every node on it is stamped."""
    tree.clock += 1
    _stamp_path(tree, node, tree.clock)


# ---------------------------------------------------------------- verbs


@entry
def match(tree, namespace, keys, n, row):
    """Longest known prefix of keys[0:n] in a namespace. Stamps the path; splits a node it ends in.

    row      (>= n,) int32, written: blocks of the matched part
    returns  (deepest node or the root, blocks matched)
    """
    nodes, arena, blocks = tree.nodes, tree.keys, tree.blocks
    tree.clock += 1
    tick = tree.clock
    node = np.int64(-1 - namespace)
    position = 0
    while position < n:
        child = find_child(tree, node, keys[position])
        if child == NO_NODE:
            break
        length, offset = nodes[child, LENGTH], nodes[child, OFFSET]
        common = common_run(arena, offset, keys, position, min(length, n - position))
        for i in range(common):
            row[position + i] = blocks[offset + i]
        position += common
        nodes[child, ACCESS] = tick
        if common < length:
            node = _split(tree, child, common)
            if nodes[child, LOCK] == 0 and nodes[child, CHILDREN] == 0:
                offer(tree.order, child, tick)
            break
        node = child
    if node > 0 and nodes[node, LOCK] == 0 and nodes[node, CHILDREN] == 0:
        offer(tree.order, node, tick)
    return node, position


@jit
def reach(tree, namespace, block_keys, sequence, n, keys):
    """Blocks of a sequence that `match` would find among its first n, whose keys are written to keys. Changes nothing.

    Only keys that are compared are made: most of a prompt that nobody has asked before are not.
    """
    nodes, arena = tree.nodes, tree.keys
    node = np.int64(-1 - namespace)
    position, filled = np.int64(0), np.int64(0)
    while position < n:
        if position == filled:
            fill_keys(block_keys, sequence, filled, filled + 1, keys)
            filled += 1
        node = find_child(tree, node, keys[position])
        if node == NO_NODE:
            break
        length = nodes[node, LENGTH]
        stop = min(position + length, n)
        fill_keys(block_keys, sequence, filled, stop, keys)
        filled = max(filled, stop)
        common = common_run(arena, nodes[node, OFFSET], keys, position, stop - position)
        position += common
        if common < length:
            break
    return position


@jit
def peek(tree, namespace, keys, n):
    """Blocks of keys[0:n] that `match` would find. Changes nothing."""
    node = np.int64(-1 - namespace)
    position = 0
    while position < n:
        node = find_child(tree, node, keys[position])
        if node == NO_NODE:
            break
        length = tree.nodes[node, LENGTH]
        common = common_run(tree.keys, tree.nodes[node, OFFSET], keys, position, min(length, n - position))
        position += common
        if common < length:
            break
    return position


@entry
def insert(tree, pool, node, keys, row, position, n, priority, counted):
    """Insert keys[0:n] with blocks row[0:n], of which keys[0:position] is the path to `node`.

    row      blocks of the part that was there already are replaced by the tree's; the caller's duplicates
             among row[position:present] are given back to the pool
    priority greater stays longer, under the policy that looks at it
    counted  nodes that end within so many blocks get no hit: n for none, 0 for all of the path
    returns  (node that ends the path, blocks of keys[0:n] that were present)
    cost     O(n - position) and one step per node of the path
    """
    nodes, arena = tree.nodes, tree.keys
    tree.clock += 1
    tick = tree.clock
    up, end = node, position
    while up > 0:
        nodes[up, ACCESS] = tick
        nodes[up, PRIORITY] = max(nodes[up, PRIORITY], priority)
        if end > counted:
            nodes[up, HITS] += 1
        end -= nodes[up, LENGTH]
        up = nodes[up, PARENT]
    start = position
    changed = node
    while position < n:
        child = find_child(tree, node, keys[position])
        if child == NO_NODE:
            break
        length, offset = nodes[child, LENGTH], nodes[child, OFFSET]
        common = common_run(arena, offset, keys, position, min(length, n - position))
        position += common
        nodes[child, ACCESS] = tick
        if common < length:  # the part beyond the split is not on the path: no hit, no priority
            lower = child
            child = _split(tree, lower, common)
            if nodes[lower, LOCK] == 0 and nodes[lower, CHILDREN] == 0:
                offer(tree.order, lower, tick)
        nodes[child, PRIORITY] = max(nodes[child, PRIORITY], priority)
        if position > counted:
            nodes[child, HITS] += 1
        node = changed = child
        if common < length:
            break
    _swap_duplicates(tree, pool, node, row, start, position)
    present = position
    if position < n:
        node = _append(tree, node, keys, row, position, n)
        nodes[node, PRIORITY] = priority
        nodes[node, HITS] = 1 if n > counted else 0
        _tell(tree, keys, INTRODUCED, node, position, n)
        offer(tree.order, node, tick)
    elif changed > 0 and nodes[changed, LOCK] == 0 and nodes[changed, CHILDREN] == 0:
        offer(tree.order, changed, tick)
    return node, present


@jit
def cut(tree, node, length, at, priority):
    """Let the path to `node`, `length` blocks long, have a boundary after `at` of them, as an insertion of these would.

    They are stamped, get the priority and no hit. What lies behind the boundary can be evicted by itself then.
    """
    nodes = tree.nodes
    tree.clock += 1
    tick = tree.clock
    end = length
    while end - nodes[node, LENGTH] >= at:
        end -= nodes[node, LENGTH]
        node = nodes[node, PARENT]
    if at < end:
        lower = node
        nodes[lower, ACCESS] = tick
        node = _split(tree, lower, at - end + nodes[lower, LENGTH])
        if nodes[lower, LOCK] == 0 and nodes[lower, CHILDREN] == 0:
            offer(tree.order, lower, tick)
    while node > 0:
        nodes[node, ACCESS] = tick
        nodes[node, PRIORITY] = max(nodes[node, PRIORITY], priority)
        node = nodes[node, PARENT]


@inline
def _swap_duplicates(tree, pool, node, row, start, stop):
    """Give row[start:stop] back to the pool and put the tree's blocks (path that ends in `node`) there."""
    if stop <= start:
        return
    ring_give(pool, row, start, stop)
    nodes, blocks = tree.nodes, tree.blocks
    end = stop
    while end > start:
        length, offset = nodes[node, LENGTH], nodes[node, OFFSET]
        begin = max(end - length, start)
        for i in range(begin, end):
            row[i] = blocks[offset + length - end + i]
        end -= length
        node = nodes[node, PARENT]


@inline
def _append(tree, parent, keys, row, start, stop):
    """A new leaf with keys[start:stop]."""
    length = stop - start
    if tree.top + length > tree.keys.size:
        compact(tree)
    offset = tree.top
    tree.top = offset + length
    arena, blocks = tree.keys, tree.blocks
    for i in range(length):
        arena[offset + i] = keys[start + i]
        blocks[offset + i] = row[start + i]
    leaf = _new_node(tree)
    tree.nodes[leaf, PARENT] = parent
    tree.nodes[leaf, OFFSET] = offset
    tree.nodes[leaf, LENGTH] = length
    if parent > 0:
        tree.nodes[parent, CHILDREN] += 1
    enter_child(tree, parent, keys[start], leaf)
    tree.evictable += length
    tree.inserted += length
    return leaf


@inline
def compact(tree):
    """Move every live run together, in order of place, so that none is written over before it has moved."""
    nodes, arena, blocks = tree.nodes, tree.keys, tree.blocks
    count = 0
    for node in range(1, tree.high_node + 1):
        count += np.int64(nodes[node, LENGTH] > 0)
    place, owner = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for node in range(1, tree.high_node + 1):
        if nodes[node, LENGTH] > 0:
            place[count], owner[count] = nodes[node, OFFSET], node
            count += 1
    sort_by_key(place, owner, count)
    top = np.int64(0)
    for k in range(count):
        length, offset = nodes[owner[k], LENGTH], place[k]
        nodes[owner[k], OFFSET] = top
        for i in range(length):
            arena[top + i] = arena[offset + i]
            blocks[top + i] = blocks[offset + i]
        top += length
    tree.top = top


@inline
def hit(tree, node):
    """A request that is admitted uses the path to `node`. The caller locks it next."""
    _tell(tree, tree.keys, USED, node, 0, 0)


@entry
def lock(tree, node):
    """Protect a path. Returns the blocks that ceased to be evictable."""
    nodes = tree.nodes
    moved = np.int64(0)
    while node > 0:
        if nodes[node, LOCK] == 0:
            moved += nodes[node, LENGTH]
        nodes[node, LOCK] += 1
        node = nodes[node, PARENT]
    tree.evictable -= moved
    tree.protected += moved
    return moved


@entry
def unlock(tree, node):
    """Undo one lock. Returns the blocks that became evictable."""
    nodes = tree.nodes
    moved = np.int64(0)
    end = node
    while node > 0:
        nodes[node, LOCK] -= 1
        if nodes[node, LOCK] == 0:
            moved += nodes[node, LENGTH]
        node = nodes[node, PARENT]
    tree.evictable += moved
    tree.protected -= moved
    if end > 0 and nodes[end, LOCK] == 0 and nodes[end, CHILDREN] == 0:
        offer(tree.order, end, tree.clock)
    return moved


@inline
def unhang(tree, pool, node):
    """Give the blocks of a node back and free its record; its parent still counts it."""
    nodes = tree.nodes
    length, offset = nodes[node, LENGTH], nodes[node, OFFSET]
    ring_give(pool, tree.blocks, offset, offset + length)
    remove_entry(tree.table, place_of(tree, nodes[node, PARENT], tree.keys[offset], node))
    nodes[node, LENGTH] = 0
    tree.free_nodes[tree.num_free_nodes] = node
    tree.num_free_nodes += 1


@entry
def evict(tree, pool, num_blocks):
    """Free whole leaves in policy order until at least num_blocks are free; may overshoot. Returns blocks freed."""
    nodes, order, now, heap = tree.nodes, tree.order, tree.clock, tree.order.heap
    own = order.policy == OWN
    freed = np.int64(0)
    while freed < num_blocks:
        node = _tell(tree, tree.keys, LEAVES, 0, 0, 0) if own else pop_one(heap, nodes)
        if node == NO_NODE:
            break
        length, offset, parent = nodes[node, LENGTH], nodes[node, OFFSET], nodes[node, PARENT]
        unhang(tree, pool, node)
        tree.evicted_nodes += 1
        if tree.log_size < tree.log.shape[0]:
            tree.log[tree.log_size, 0] = offset
            tree.log[tree.log_size, 1] = length
            tree.log_size += 1
        freed += length
        if parent > 0:
            nodes[parent, CHILDREN] -= 1
            if nodes[parent, CHILDREN] == 0 and nodes[parent, LOCK] == 0:
                offer(order, parent, now)
    tree.evictable -= freed
    tree.evicted += freed
    pool.evicted += freed
    return freed
