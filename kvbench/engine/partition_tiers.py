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
from ..prefix.node import CHILDREN, LENGTH, LOCK, PARENT
from ..tiers.copies import ABSENT, CONFIRMED, COPYING
from ..tiers.host import slot_of


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
    content, n = tier.content, tier.content.size
    locks, writers, children = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    is_free = np.zeros(n, np.int64)
    _touched(e, locks, writers, is_store)
    slot = tier.free_head
    for _ in range(tier.num_free):
        is_free[slot] += 1
        slot = np.int64(tier.after[slot])
    kept = 0
    for slot in range(1, n):
        if content[slot] != 0:
            kept += 1
            children[max(tier.parent[slot], 0)] += 1
    for slot in range(1, n):
        has_copy = content[slot] != 0
        if is_free[slot] != np.int64(not has_copy) or (tier.state[slot] == ABSENT) == has_copy:
            return False
        if not has_copy and locks[slot] > 0:
            return False
        if not has_copy:
            continue
        if tier.holds[slot] != locks[slot] or tier.children[slot] != children[slot]:
            return False
        if tier.truth.size > 1 and tier.state[slot] == CONFIRMED and tier.truth[slot] != content[slot]:
            return False
        if writers[slot] > np.int64(tier.state[slot] == COPYING):
            return False
        if slot_of(tier, content[slot]) != slot or (tier.parent[slot] > 0 and content[tier.parent[slot]] == 0):
            return False
    return kept + tier.num_free == n - 1 and (_list_agrees(tier, kept) if tier.listed else _records_agree(tier))


@jit
def _list_agrees(tier, kept):
    """Each copy that may leave is in a list, and linked in both directions."""
    own, n = tier.arc, tier.content.size
    listed = 0
    for which in range(1, 3):
        head = n - 1 + which
        slot, before = np.int64(own.after[head]), head
        while slot != head and listed <= kept:
            if own.before[slot] != before or own.member[slot] != which or tier.content[slot] == 0:
                return False
            listed += 1
            slot, before = np.int64(own.after[slot]), slot
    for slot in range(1, n):
        is_idle = tier.content[slot] != 0 and tier.holds[slot] == 0 and tier.children[slot] == 0
        if is_idle and own.member[slot] == 0:
            return False
    return listed == own.size[1] + own.size[2]


@jit
def _records_agree(tier):
    """The records of the policy say the same as the slots."""
    nodes = tier.order.nodes
    for slot in range(1, tier.content.size):
        if nodes[slot, LENGTH] != np.int64(tier.content[slot] != 0):
            return False
        if nodes[slot, LENGTH] > 0 and (
            nodes[slot, LOCK] != tier.holds[slot] or nodes[slot, CHILDREN] != tier.children[slot]
        ):
            return False
    return True


@jit
def tiers_agree(e):
    """Both pools of copies; see integrity_tiers, which has the words."""
    return _pool_agrees(e, e.tiers.host, False) and _pool_agrees(e, e.tiers.store, True)
