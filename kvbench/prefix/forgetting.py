"""What a namespace has in a cache is taken out, where nobody holds it: no eviction, and no policy is asked.

empty_tree, empty_map       all of a namespace, when it is flushed
drop_path, drop_unshared    what a sequence lets go of, whose namespace was flushed while it ran
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, jit
from ..memory.pool import NO_BLOCK, TWIN_AFTER, UNHASHED_FIRST, list_to_front
from .block_hash import find_entry, withdraw
from .chain_hash import chain, root_hash
from .eviction import s3fifo
from .keys import key_at
from .node import CHILDREN, LENGTH, LOCK, PARENT
from .radix import unhang


@jit
def _drop(tree, pool, node):
    """Take a node out of the tree that nobody holds."""
    nodes = tree.nodes
    if tree.order.two_queues:
        s3fifo.leave(nodes, node)
    tree.evictable -= nodes[node, LENGTH]
    unhang(tree, pool, node)
    if nodes[node, PARENT] > 0:
        nodes[nodes[node, PARENT], CHILDREN] -= 1


@jit
def drop_path(tree, pool, node):
    """Take out a node, and above it what has no other child, up to what somebody holds."""
    nodes = tree.nodes
    while node > 0 and nodes[node, LENGTH] > 0 and nodes[node, LOCK] == 0 and nodes[node, CHILDREN] == 0:
        parent = nodes[node, PARENT]
        _drop(tree, pool, node)
        node = parent


@entry
def empty_tree(tree, pool, namespace):
    """Radix. O(nodes x their depth): every leaf, and what is above it."""
    nodes = tree.nodes
    root = np.int64(-1 - namespace)
    for node in range(1, tree.high_node + 1):
        if nodes[node, LENGTH] > 0 and nodes[node, CHILDREN] == 0:
            top = np.int64(node)
            while top > 0:
                top = nodes[top, PARENT]
            if top == root:
                drop_path(tree, pool, np.int64(node))


@jit
def drop_unshared(hashes, pool, row, n):
    """Block hash: make those of row[0:n] invisible that one table alone holds; it is about to release them."""
    for i in range(n):
        if pool.refs[row[i]] == 1 and pool.content[row[i]] != 0:
            withdraw(hashes, pool, row, i, i + 1)


@entry
def empty_map(hashes, pool, keys, sequence, namespace, n, row):
    """Block hash: the first n blocks of a sequence become invisible. row: (1,) int32 scratch.

    They go to the front of the free queue where those that are not visible are taken first.
    """
    content = root_hash(namespace)
    for i in range(n):
        content = chain(content, key_at(keys, sequence, np.int64(i)))
        block = np.int64(hashes.table[find_entry(hashes.table, pool.content, content)] & 0xFFFFFFFF)
        while block != NO_BLOCK:
            following = np.int64(pool.twins[block, TWIN_AFTER]) if pool.has_twins[block] else np.int64(NO_BLOCK)
            if pool.refs[block] == 0:
                row[0] = block
                withdraw(hashes, pool, row, 0, 1)
                pool.cached -= 1
                if pool.free_order == UNHASHED_FIRST:
                    list_to_front(pool, block)
            block = following
