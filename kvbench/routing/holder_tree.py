"""Which engine holds which prefix, as a tree: a node is a run of blocks, a holder an engine that has all of them.

    root of a namespace (-1 - namespace, no record)
      node: keys[offset : offset + length], and the list of its holders
        node ...

What must always hold: who holds a node holds its parent; siblings differ in their first key; a node has a holder.
The tree grows as needed. A split makes a new upper node with copies of the holders; the lower keeps its identity.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit, struct
from ..kernels.event_heap import make_event_heap, pop_event, push_event
from ..kernels.rows import doubled
from ..prefix.children import common_run, enter_child, find_child, place_of, remove_entry
from ..prefix.node import LENGTH, NO_NODE, OFFSET, PARENT

# Columns of a node beside PARENT, OFFSET and LENGTH (0 = not in use).
HOLDERS, CREATOR, BIRTH = 3, 4, 5
_NODE_COLUMNS = 6
# HOLDERS  the first of its list. CREATOR: the engine for which it came; the upper part of a split has the same
# BIRTH    its number among all nodes that there ever were

# Columns of a holder.
ENGINE, STAMP, BELOW, NEXT, NODE = range(5)
_HOLDER_COLUMNS = 5
# STAMP  whatever its owner keeps: a time, a count. BELOW: children of the node with the same holder
# NEXT   of the list of the node, or of those not in use. NODE: NO_NODE = not in use

NO_HOLDER = 0


@struct
class HolderTree:
    """nodes    (n, 6) records from 1 on. table, keys   see prefix.children; top = first free place of the arena
    holders     (m, 5) records from 1 on
    held, limit   (engines,) blocks that each one holds, and how many evict leaves it
    num_nodes, live_keys   in use. births: nodes so far
    high_*, free_*   records below it have been in use; the first of those given back
    clock       ticks of whoever stamps
    """

    nodes: "i8[:,::1]"
    table: "i8[::1]"
    keys: "i8[::1]"
    holders: "i8[:,::1]"
    held: "i8[::1]"
    limit: "i8[::1]"
    top: "i8"
    num_nodes: "i8"
    births: "i8"
    live_keys: "i8"
    high_node: "i8"
    free_node: "i8"
    high_holder: "i8"
    free_holder: "i8"
    clock: "i8"


def make_holder_tree(num_engines: int, limit: int, room: int = 64) -> HolderTree:
    """An empty tree. room: nodes to begin with, a power of two."""
    return HolderTree(
        np.zeros((room, _NODE_COLUMNS), np.int64),
        np.zeros(2 * room, np.int64),
        np.zeros(16 * room, np.int64),
        np.zeros((room, _HOLDER_COLUMNS), np.int64),
        np.zeros(num_engines, np.int64),
        np.full(num_engines, limit, np.int64),
        0,
        0,
        0,
        0,
        1,
        NO_NODE,
        1,
        NO_HOLDER,
        0,
    )


# ---------------------------------------------------------------- looking


@jit
def look(tree, root, keys, n, base, out):
    """How many blocks of keys[0:n] each engine holds from the start on: out[i] of engine base + i. Nothing is split.

    returns  (the deepest node that shares a block with keys[0:n], or the root, blocks that any engine holds)
    """
    nodes, holders, arena = tree.nodes, tree.holders, tree.keys
    for i in range(out.size):
        out[i] = 0
    node, position = root, np.int64(0)
    while position < n:
        child = find_child(tree, node, keys[position])
        if child == NO_NODE:
            break
        node = child
        length = nodes[node, LENGTH]
        common = common_run(arena, nodes[node, OFFSET], keys, position, min(length, n - position))
        position += common
        holder = nodes[node, HOLDERS]
        while holder != NO_HOLDER:
            out[holders[holder, ENGINE] - base] = position
            holder = holders[holder, NEXT]
        if common < length:
            break
    return node, position


@jit
def find_holder(tree, node, engine):
    """The record of an engine in a node, or NO_HOLDER."""
    holders = tree.holders
    holder = tree.nodes[node, HOLDERS]
    while holder != NO_HOLDER and holders[holder, ENGINE] != engine:
        holder = holders[holder, NEXT]
    return holder


# ---------------------------------------------------------------- records


@jit
def _new_holder(tree, node, engine, stamp, below):
    holder = tree.free_holder
    if holder != NO_HOLDER:
        tree.free_holder = tree.holders[holder, NEXT]
    else:
        holder = tree.high_holder
        if holder == tree.holders.shape[0]:
            tree.holders = doubled(tree.holders)
        tree.high_holder += 1
    row = tree.holders[holder]
    row[ENGINE], row[STAMP], row[BELOW], row[NODE] = engine, stamp, below, node
    row[NEXT] = tree.nodes[node, HOLDERS]
    tree.nodes[node, HOLDERS] = holder


@jit
def _new_node(tree, parent, offset, length, creator):
    node = tree.free_node
    if node != NO_NODE:
        tree.free_node = tree.nodes[node, PARENT]
    else:
        node = tree.high_node
        if node == tree.nodes.shape[0]:
            tree.nodes = doubled(tree.nodes)
        tree.high_node += 1
    row = tree.nodes[node]
    row[PARENT], row[OFFSET], row[LENGTH], row[HOLDERS], row[CREATOR] = parent, offset, length, NO_HOLDER, creator
    tree.num_nodes += 1
    tree.births += 1
    row[BIRTH] = tree.births
    if 2 * tree.num_nodes > tree.table.size:
        _enlarge_table(tree)
    return node


@jit
def _enlarge_table(tree):
    """Twice the places. The newest node is in no list yet."""
    old = tree.table
    tree.table = np.zeros(2 * old.size, np.int64)
    for i in range(old.size):
        if old[i] != 0:
            node = old[i] & 0xFFFFFFFF
            enter_child(tree, tree.nodes[node, PARENT], tree.keys[tree.nodes[node, OFFSET]], node)


@jit
def _take_room(tree, length):
    """An offset of the arena with so much room behind it; the runs are moved together where it was full."""
    if tree.top + length > tree.keys.size:
        size = tree.keys.size
        while 2 * (tree.live_keys + length) > size:
            size *= 2
        keys, top = np.zeros(size, np.int64), np.int64(0)
        for node in range(1, tree.high_node):
            run, offset = tree.nodes[node, LENGTH], tree.nodes[node, OFFSET]
            for i in range(run):
                keys[top + i] = tree.keys[offset + i]
            if run > 0:
                tree.nodes[node, OFFSET] = top
            top += run
        tree.keys, tree.top = keys, top
    offset = tree.top
    tree.top += length
    return offset


@jit
def _split(tree, node, length):
    """Cut a node after `length` blocks; the new upper part is returned."""
    parent, offset = tree.nodes[node, PARENT], tree.nodes[node, OFFSET]
    upper = _new_node(tree, parent, offset, length, tree.nodes[node, CREATOR])
    nodes, keys = tree.nodes, tree.keys
    at = place_of(tree, parent, keys[offset], node)
    tree.table[at] = (tree.table[at] >> 32 << 32) | upper
    nodes[node, PARENT] = upper
    nodes[node, OFFSET] = offset + length
    nodes[node, LENGTH] -= length
    enter_child(tree, upper, keys[offset + length], node)
    holder = nodes[node, HOLDERS]
    while holder != NO_HOLDER:
        row = tree.holders[holder]
        _new_holder(tree, upper, row[ENGINE], row[STAMP], np.int64(1))
        holder = row[NEXT]
    return upper


# ---------------------------------------------------------------- changing


@jit
def _hold(tree, node, engine, stamp):
    """An engine has all of a node, whose parent it holds already."""
    _new_holder(tree, node, engine, stamp, np.int64(0))
    tree.held[engine] += tree.nodes[node, LENGTH]
    parent = tree.nodes[node, PARENT]
    if parent > 0:
        tree.holders[find_holder(tree, parent, engine), BELOW] += 1


@jit
def insert(tree, root, keys, n, engine, stamp):
    """An engine holds keys[0:n]. stamp: of what it did not hold, a new leaf apart.

    returns  (the node that ends the path or the root, 1 if it is new)
    """
    node, position = root, np.int64(0)
    while position < n:
        child = find_child(tree, node, keys[position])
        if child == NO_NODE:
            offset = _take_room(tree, n - position)
            arena = tree.keys
            for i in range(n - position):
                arena[offset + i] = keys[position + i]
            tree.live_keys += n - position
            leaf = _new_node(tree, node, offset, n - position, engine)
            enter_child(tree, node, keys[position], leaf)
            _hold(tree, leaf, engine, stamp)
            return leaf, np.int64(1)
        length = tree.nodes[child, LENGTH]
        common = common_run(tree.keys, tree.nodes[child, OFFSET], keys, position, min(length, n - position))
        if common < length:
            child = _split(tree, child, common)
        if find_holder(tree, child, engine) == NO_HOLDER:
            _hold(tree, child, engine, stamp)
        node = child
        position += common
    return node, np.int64(0)


@jit
def release(tree, node, engine):
    """An engine has a node no more, nor anything below it. A node without holders goes."""
    nodes, holders = tree.nodes, tree.holders
    before, holder = NO_HOLDER, nodes[node, HOLDERS]
    while holders[holder, ENGINE] != engine:
        before, holder = holder, holders[holder, NEXT]
    if before == NO_HOLDER:
        nodes[node, HOLDERS] = holders[holder, NEXT]
    else:
        holders[before, NEXT] = holders[holder, NEXT]
    holders[holder, NODE] = NO_NODE
    holders[holder, NEXT] = tree.free_holder
    tree.free_holder = holder
    tree.held[engine] -= nodes[node, LENGTH]
    parent = nodes[node, PARENT]
    if parent > 0:
        holders[find_holder(tree, parent, engine), BELOW] -= 1
    if nodes[node, HOLDERS] == NO_HOLDER:
        remove_entry(tree.table, place_of(tree, parent, tree.keys[nodes[node, OFFSET]], node))
        tree.live_keys -= nodes[node, LENGTH]
        tree.num_nodes -= 1
        nodes[node, LENGTH] = 0
        nodes[node, PARENT] = tree.free_node
        tree.free_node = node


_make_heap = jit(make_event_heap)


@jit
def evict(tree, limit, older_than):
    """Release leaves, the smallest stamp first (ties by birth), of an engine that holds more than limit[engine] blocks,
    and where a stamp is below `older_than`. A leaf is a node of which the engine holds no child.

    cost   O(holders log holders) if there is anything to do: for now and then
    """
    held, num = tree.held, tree.held.size
    needed = older_than > 0
    for engine in range(num):
        needed = needed or held[engine] > limit[engine]
    if not needed:
        return
    heap = _make_heap()
    for holder in range(1, tree.high_holder):
        row = tree.holders[holder]
        if row[NODE] != NO_NODE and row[BELOW] == 0:
            push_event(heap, row[STAMP], tree.nodes[row[NODE], BIRTH], row[NODE] * num + row[ENGINE])
    while heap.size > 0:
        stamp, _, subject = pop_event(heap)
        node, engine = subject // num, subject % num
        if held[engine] <= limit[engine] and stamp >= older_than:
            continue
        parent = tree.nodes[node, PARENT]
        release(tree, node, engine)
        if parent > 0:
            row = tree.holders[find_holder(tree, parent, engine)]
            if row[BELOW] == 0:
                push_event(heap, row[STAMP], tree.nodes[parent, BIRTH], parent * num + engine)


@jit
def drop_engine(tree, engine):
    """An engine holds nothing any more."""
    limit = tree.held.copy()
    limit[engine] = -1
    evict(tree, limit, np.int64(0))


@jit
def stamp_path(tree, node, engine, stamp):
    """Everything from a node up was used by an engine that holds it."""
    while node > 0:
        tree.holders[find_holder(tree, node, engine), STAMP] = stamp
        node = tree.nodes[node, PARENT]


@jit
def count_path(tree, node, engine):
    """One more of an engine has everything from a node up; stamps are counts."""
    while node > 0:
        tree.holders[find_holder(tree, node, engine), STAMP] += 1
        node = tree.nodes[node, PARENT]


@jit
def discount_path(tree, node, engine):
    """Undo one count_path; what none has any more is released."""
    while node > 0:
        parent = tree.nodes[node, PARENT]
        row = tree.holders[find_holder(tree, node, engine)]
        row[STAMP] -= 1
        if row[STAMP] == 0:
            release(tree, node, engine)
        node = parent
