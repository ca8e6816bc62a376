"""Children of a tree over block keys: a table finds (parent, first key), and runs of keys are compared.

For any tree with `nodes` (PARENT and OFFSET of node.py), `keys` (the arena of the runs) and `table`: entries
(tag << 32 | node), 0 = empty; its size is a power of two, and it is never full.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from .node import NO_NODE, OFFSET, PARENT


@inline
def _tag(parent, key):
    # Overflow of int64 is undefined in compiled code; mix in uint64 only.
    x = (np.uint64(key) ^ (np.uint64(parent) * np.uint64(0xA0761D6478BD642F))) * np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64(x >> np.uint64(33))


@jit
def find_child(tree, parent, key):
    table, nodes, keys = tree.table, tree.nodes, tree.keys
    mask = table.size - 1
    tag = _tag(parent, key)
    at = tag & mask
    while True:
        entry_ = table[at]
        if entry_ == 0:
            return NO_NODE
        if entry_ >> 32 == tag:
            node = entry_ & 0xFFFFFFFF
            if nodes[node, PARENT] == parent and keys[nodes[node, OFFSET]] == key:
                return node
        at = (at + 1) & mask


@jit
def place_of(tree, parent, key, node):
    """Where the entry of a child is."""
    mask = tree.table.size - 1
    tag = _tag(parent, key)
    at = tag & mask
    want = (tag << 32) | node
    while tree.table[at] != want:
        at = (at + 1) & mask
    return at


@jit
def enter_child(tree, parent, key, node):
    mask = tree.table.size - 1
    tag = _tag(parent, key)
    at = tag & mask
    while tree.table[at] != 0:
        at = (at + 1) & mask
    tree.table[at] = (tag << 32) | node


@inline
def remove_entry(table, at):
    """Delete with backward shift: no tombstones, so probes stay short for ever."""
    mask = table.size - 1
    look = at
    while True:
        look = (look + 1) & mask
        entry_ = table[look]
        if entry_ == 0:
            break
        home = (entry_ >> 32) & mask
        if ((look - home) & mask) >= ((look - at) & mask):
            table[at] = entry_
            at = look
    table[at] = 0


@jit
def common_run(keys, offset, other, position, limit):
    """Length of the common run of keys[offset:] and other[position:], the first being equal already."""
    n = 1
    while n + 16 <= limit:
        difference = np.int64(0)
        for i in range(16):
            difference |= keys[offset + n + i] ^ other[position + n + i]
        if difference != 0:
            break
        n += 16
    while n < limit and keys[offset + n] == other[position + n]:
        n += 1
    return n
