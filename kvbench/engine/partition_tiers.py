"""Operations and tiers in the compiled check: what they hold of the device, and whether both pools of copies add up."""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..memory.operations import (
    BACKUP,
    FREE_ROW,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_KIND,
    OP_NODE,
    OP_OWNS,
    OP_SOURCE,
    OP_SOURCE_EPOCH,
    OP_STATE,
    OP_STORE_COUNT,
    OP_STORE_FIRST,
    OP_TARGET,
    OP_TARGET_COUNT,
    OP_TARGET_EPOCH,
    OP_TARGET_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    PREFETCH,
    STORE,
)
from ..prefix.block_hash import GONE
from ..prefix.node import CHILDREN, LENGTH, LOCK, PARENT
from ..tiers.host import ABSENT, CONFIRMED, COPYING, slot_of


@jit
def operations_agree(e, references, locks):
    """Count what operations hold: references to blocks, and locks on paths of a tree. False: in_flight is off.

    references   (num_blocks + 1,) int64: holds of the source under a list, and blocks that an operation owns
    locks        (nodes,) int64 under a tree, else (1,)
    """
    ops, nodes = e.operations, e.tree.nodes
    rows, blocks = ops.rows, ops.blocks
    touched = np.zeros(e.pool.in_flight.size, np.int64)
    for row in range(rows.shape[0] if ops.open > 0 else 0):
        if rows[row, OP_STATE] == FREE_ROW:
            continue
        if rows[row, OP_SOURCE] == e.number and rows[row, OP_SOURCE_EPOCH] == e.side.epoch:
            first = rows[row, OP_FIRST]
            for i in range(first, first + rows[row, OP_COUNT]):
                touched[blocks[i]] += 1
                if locks.size == 1:
                    references[blocks[i]] += rows[row, OP_HOLDS]
            node = rows[row, OP_NODE] if locks.size > 1 and rows[row, OP_HOLDS] == 1 else np.int64(0)
            while node > 0:
                locks[node] += 1
                node = nodes[node, PARENT]
        if rows[row, OP_TARGET] == e.number and rows[row, OP_TARGET_EPOCH] == e.side.epoch:
            first = rows[row, OP_TARGET_FIRST]
            for i in range(first, first + rows[row, OP_TARGET_COUNT]):
                touched[blocks[i]] += 1
                references[blocks[i]] += rows[row, OP_OWNS]
    return np.sum(touched != e.pool.in_flight) == 0


@jit
def _touched(e, locks, writers, is_store):
    """Operations of one pool's slots: (slots,) how many hold each, how many write it."""
    ops = e.operations
    rows, blocks = ops.rows, ops.blocks
    for row in range(rows.shape[0] if ops.open > 0 else 0):
        kind = rows[row, OP_KIND]
        if rows[row, OP_STATE] == FREE_ROW:
            continue
        if is_store:
            first, count = rows[row, OP_STORE_FIRST], rows[row, OP_STORE_COUNT]
            writes = np.int64(kind == STORE)
        else:
            if rows[row, OP_SOURCE] != e.number and rows[row, OP_TARGET] != e.number:
                continue
            first, count = rows[row, OP_TIER_FIRST], rows[row, OP_TIER_COUNT]
            writes = np.int64(kind == BACKUP or kind == PREFETCH)
        for i in range(first, first + count):
            locks[blocks[i]] += 1
            writers[blocks[i]] += writes


@jit
def _pool_agrees(e, tier, is_store):
    """Each slot is free or has one copy in one state; holds, children and the table count what there is."""
    nodes, content, n = tier.order.nodes, tier.content, tier.content.size
    locks, writers, children = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    is_free = np.zeros(n, np.int64)
    _touched(e, locks, writers, is_store)
    for i in range(tier.num_free):
        is_free[tier.free[i]] += 1
    kept = 0
    for slot in range(1, n):
        if content[slot] != 0:
            kept += 1
            children[nodes[slot, PARENT]] += 1
    for slot in range(1, n):
        has_copy = content[slot] != 0
        if is_free[slot] != np.int64(not has_copy) or (tier.state[slot] == ABSENT) == has_copy:
            return False
        if (nodes[slot, LENGTH] > 0) != has_copy or (not has_copy and locks[slot] > 0):
            return False
        if not has_copy:
            continue
        if nodes[slot, LOCK] != locks[slot] or nodes[slot, CHILDREN] != children[slot]:
            return False
        if tier.truth.size > 1 and tier.state[slot] == CONFIRMED and tier.truth[slot] != content[slot]:
            return False
        if writers[slot] > np.int64(tier.state[slot] == COPYING):
            return False
        if slot_of(tier, content[slot]) != slot or (nodes[slot, PARENT] > 0 and content[nodes[slot, PARENT]] == 0):
            return False
    return np.sum(tier.table > GONE) == kept


@jit
def tiers_agree(e):
    """Both pools of copies; see integrity_tiers, which has the words."""
    return _pool_agrees(e, e.tiers.host, False) and _pool_agrees(e, e.tiers.store, True)
