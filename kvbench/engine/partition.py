"""The checks of `integrity` as compiled code, for millions of steps of small engines: whether all adds up, not what.

The two are written apart and hold each other: a test damages an engine in every way that one of them knows, and
both have to see it. Whoever is told that something is off asks `integrity` for the words.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..prefix.block_hash import EMPTY, find_entry
from ..prefix.children import find_child
from ..prefix.leaf_heap import is_candidate
from ..prefix.node import CHILDREN, LENGTH, LOCK, OFFSET, PARENT
from ..scheduler.calendar import settle
from ..scheduler.state_columns import (
    BLOCKS,
    COMPUTED,
    ENDED,
    FIRST_TERMINAL,
    FREE_SLOT,
    NEXT,
    NO_SLOT,
    NODE,
    PHASE,
    PUBLISHED,
    RADIX,
    SEQ,
)
from .partition_forks import forks_agree, policy_agrees
from .partition_tiers import operations_agree, tiers_agree


@inline
def _holds(e, slot):
    """Whether a slot holds memory; see integrity."""
    rec = e.slots.rec
    phase = rec[slot, PHASE]
    return phase != FREE_SLOT and (phase != ENDED or e.seqs.slot[rec[slot, SEQ]] == slot)


@inline
def _own(owners, block):
    """Note an owner of a block. False: there is one already, or there is no such block."""
    if block < 1 or block >= owners.size or owners[block] != 0:
        return False
    owners[block] = 1
    return True


@jit
def _counts_agree(e):
    """Sums over slots and sequences, lengths of lists, terminal sequences."""
    rec, q = e.slots.rec, e.seqs
    holders, context, blocks = 0, 0, 0
    for slot in range(rec.shape[0]):
        if _holds(e, slot):
            holders += 1
            context += rec[slot, COMPUTED]
            blocks += rec[slot, BLOCKS]
            if rec[slot, COMPUTED] > rec[slot, BLOCKS] * e.rules.block_tokens:
                return False
    if holders != e.slots.holders or context != e.context or blocks != e.table_blocks:
        return False
    running, slot = 0, e.slots.head
    while slot >= 0 and running <= rec.shape[0]:
        running += 1
        slot = rec[slot, NEXT]
    waiting, seq = 0, e.queue_head
    while seq >= 0 and waiting <= q.state.size:
        waiting += 1
        seq = q.queue_next[seq]
    if running != e.slots.running or waiting != e.num_waiting:
        return False
    terminal = (q.state >= FIRST_TERMINAL) & (q.engine == e.number)
    return np.sum(terminal) == e.num_done and np.sum(terminal & (q.slot >= 0)) == 0


@jit
def _all_owned(e, owners):
    return np.sum(owners[1:]) == owners.size - 1


# ---------------------------------------------------------------- list: reference counts and hashes


@jit
def _list_agrees(e):
    pool, rec, table = e.pool, e.slots.rec, e.slots.table
    after, before, contents, refs = pool.after, pool.before, pool.content, pool.refs
    owners = np.zeros(pool.num_blocks + 1, np.int64)
    counted = np.zeros(pool.num_blocks + 1, np.int64)
    free, cached, last = 0, 0, np.int64(0)
    block = np.int64(after[0])
    while block != 0:
        if not _own(owners, block) or before[block] != last:
            return False
        free += 1
        cached += np.int64(contents[block] != 0)
        last = block
        block = np.int64(after[block])
    if free != pool.num_free or cached != pool.cached or before[0] != last:
        return False
    for slot in range(rec.shape[0]):
        if _holds(e, slot):
            for i in range(rec[slot, BLOCKS]):
                counted[table[slot, i]] += 1
    if not operations_agree(e, counted, np.zeros(1, np.int64)):
        return False
    if np.sum(counted[1:] != refs[1:]) != 0:
        return False
    for block in np.flatnonzero(counted):
        if not _own(owners, block):
            return False
    if e.hashes.ranked and not policy_agrees(e):
        return False
    return _all_owned(e, owners) and _map_agrees(e.hashes, contents)


@jit
def _map_agrees(hashes, contents):
    """Every visible block has a content with an entry that names a block of it; places that are used are counted."""
    table = hashes.table
    distinct = 0
    for block in np.flatnonzero(contents):
        named = table[find_entry(table, contents, contents[block])] & 0xFFFFFFFF
        if named == 0:
            return False
        distinct += np.int64(named == block)
    return distinct == hashes.distinct and np.sum(table != EMPTY) == hashes.used


# ---------------------------------------------------------------- ring: the tree owns what is cached


@jit
def _radix_agrees(e):
    pool, tree, rec = e.pool, e.tree, e.slots.rec
    nodes, ring = tree.nodes, pool.ring
    owners = np.zeros(pool.num_blocks + 1, np.int64)
    locks = np.zeros(nodes.shape[0], np.int64)
    for i in range(pool.num_free):
        if not _own(owners, ring[(pool.ring_head + i) & (ring.size - 1)]):
            return False
    for slot in range(rec.shape[0]):
        if not _holds(e, slot):
            continue
        for i in range(rec[slot, PUBLISHED], rec[slot, BLOCKS]):
            if not _own(owners, e.slots.table[slot, i]):
                return False
        node = rec[slot, NODE]
        while node > 0:
            locks[node] += 1
            node = nodes[node, PARENT]
    owned = np.zeros(pool.num_blocks + 1, np.int64)
    if not operations_agree(e, owned, locks):
        return False
    for block in np.flatnonzero(owned):
        if not _own(owners, block):
            return False
    return _nodes_agree(tree, owners, locks) and _children_agree(tree) and _all_owned(e, owners)


@jit
def _nodes_agree(tree, owners, locks):
    """Blocks, locks and parents of nodes; what may be evicted is on offer."""
    nodes = tree.nodes
    on_offer = np.zeros(nodes.shape[0], np.int64)
    heap, small = tree.order.heap, tree.order.small
    for i in range(heap.size):
        on_offer[heap.node[i]] = 1
    for i in range(small.size):
        on_offer[small.node[i]] = 1
    evictable, protected = 0, 0
    for node in np.flatnonzero(nodes[:, LENGTH]):
        length = nodes[node, LENGTH]
        for i in range(nodes[node, OFFSET], nodes[node, OFFSET] + length):
            if not _own(owners, tree.blocks[i]):
                return False
        parent = nodes[node, PARENT]
        if nodes[node, LOCK] != locks[node] or (parent > 0 and nodes[parent, LENGTH] == 0):
            return False
        if is_candidate(nodes, node) and on_offer[node] == 0:
            return False
        evictable += length * np.int64(locks[node] == 0)
        protected += length * np.int64(locks[node] > 0)
    return evictable == tree.evictable and protected == tree.protected


@jit
def _children_agree(tree):
    """Each node counts its children, and the table of children finds it by its name and has no other entries."""
    nodes, keys, table = tree.nodes, tree.keys, tree.table
    children = np.zeros(nodes.shape[0], np.int64)
    live = np.flatnonzero(nodes[:, LENGTH])
    for node in live:
        parent = nodes[node, PARENT]
        if parent > 0:
            children[parent] += 1
        if find_child(tree, parent, keys[nodes[node, OFFSET]]) != node:
            return False
    for node in live:
        if children[node] != nodes[node, CHILDREN]:
            return False
    return np.sum(table != 0) == live.size


# ---------------------------------------------------------------- all of it


@jit
def is_intact(e):
    """Whether everything that `integrity.check_integrity` looks at adds up. Cost: O(blocks + sequences)."""
    slot = e.slots.head
    while slot != NO_SLOT:
        settle(e.calendar, e.slots.rec, slot)
        slot = e.slots.rec[slot, NEXT]
    if not _counts_agree(e) or (e.rules.tiered and not tiers_agree(e)):
        return False
    if e.rules.copy_on_write and not forks_agree(e):
        return False
    return _radix_agrees(e) if e.rules.cache_kind == RADIX else _list_agrees(e)
