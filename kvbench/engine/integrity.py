"""Conservation: each block is exactly one of free, cached only, referenced. Recomputed from scratch.

Run after every step in check mode and at the end of every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.errors import KvbenchError
from ..core.jit import still
from ..core.requests import I64
from ..memory.operations import (
    FREE_ROW,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_NODE,
    OP_OWNS,
    OP_SOURCE,
    OP_SOURCE_EPOCH,
    OP_STATE,
    OP_TARGET,
    OP_TARGET_COUNT,
    OP_TARGET_EPOCH,
    OP_TARGET_FIRST,
)
from ..prefix.block_hash import GONE
from ..prefix.node import CHILDREN, LENGTH, LOCK, OFFSET
from ..prefix.node import PARENT as PARENT_NODE
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    BLOCKS,
    COMPUTED,
    ENDED,
    FIRST_TERMINAL,
    FOLLOWS,
    FREE_SLOT,
    KEPT,
    KEPT_SLOT,
    NEXT,
    NO_REQUEST,
    NODE,
    PARENT,
    PHASE,
    PUBLISHED,
    RADIX,
    SEQ,
    WANTED,
)
from .integrity_order import check_hash_order, check_tree_order
from .integrity_tiers import check_tiers
from .probe import settle_slots


def check_integrity(e: Engine) -> None:
    """Raise KvbenchError that names the first thing that does not add up."""
    settle_slots(e)
    e = still(e)
    holders = _holders(e)
    if e.rules.cache_kind == RADIX:
        _check_radix(e, holders)
    else:
        _check_list(e, holders)
    if e.rules.copy_on_write:
        _check_forks(e, holders)
    if e.rules.tiered:
        check_tiers(e)
    rec = e.slots.rec
    _same("context", e.context, int(rec[holders, COMPUTED].sum()))
    _same("table_blocks", e.table_blocks, int(rec[holders, BLOCKS].sum()))
    _same("holders", e.slots.holders, len(holders))
    _same("running sequences", e.slots.running, _length(e.slots.head, rec[:, NEXT]))
    _same("waiting sequences", e.num_waiting, _length(e.queue_head, e.seqs.queue_next))
    if np.any(rec[holders, COMPUTED] > rec[holders, BLOCKS] * e.rules.block_tokens):
        raise KvbenchError("integrity: a sequence has computed more tokens than its block table holds")
    terminal = (e.seqs.state >= FIRST_TERMINAL) & (e.seqs.engine == e.number)
    _same("terminal sequences", e.num_done, int(terminal.sum()))
    if np.any(e.seqs.slot[terminal] >= 0):
        raise KvbenchError("integrity: a terminal sequence still holds a slot")


def _same(what: str, kept: int, counted: int) -> None:
    if kept != counted:
        raise KvbenchError(f"integrity: {what} is kept as {kept}, counted {counted}")


def _length(at: int, following: I64) -> int:
    """Of a linked list that ends in -1; a ring counts as one longer than all there are."""
    count = 0
    while at >= 0 and count <= following.size:
        at = int(following[at])
        count += 1
    return count


def _holders(e: Engine) -> list[int]:
    """Slots that hold memory."""
    rec = e.slots.rec
    return [
        int(s)
        for s in np.flatnonzero(rec[:, PHASE] != FREE_SLOT)
        if rec[s, PHASE] != ENDED or e.seqs.slot[rec[s, SEQ]] == s
    ]


def _copies(e: Engine) -> tuple[I64, list[tuple[I64, int]]]:
    """Blocks that operations own; blocks and locked node of every operation that holds blocks of this engine."""
    ops = e.operations.read()
    rows, blocks = ops["rows"], ops["blocks"]
    rows = rows[rows[:, OP_STATE] != FREE_ROW]
    _same("open operations", int(ops["open"]), len(rows))
    touched = []
    for of, epoch, first, count in (
        (OP_SOURCE, OP_SOURCE_EPOCH, OP_FIRST, OP_COUNT),
        (OP_TARGET, OP_TARGET_EPOCH, OP_TARGET_FIRST, OP_TARGET_COUNT),
    ):
        own = (rows[:, of] == e.number) & (rows[:, epoch] == e.side.epoch)
        touched += [blocks[r[first] : r[first] + r[count]] for r in rows[own]]
    if np.any(_counted(touched, e.pool.in_flight.size) != e.pool.in_flight):
        raise KvbenchError("integrity: blocks and the operations in flight on them disagree")
    owned = rows[(rows[:, OP_TARGET] == e.number) & (rows[:, OP_OWNS] == 1)]
    targets = _joined([blocks[r[OP_TARGET_FIRST] : r[OP_TARGET_FIRST] + r[OP_TARGET_COUNT]] for r in owned])
    ours = (rows[:, OP_SOURCE] == e.number) & (rows[:, OP_SOURCE_EPOCH] == e.side.epoch)
    held = rows[ours & (rows[:, OP_HOLDS] == 1)]
    return targets, [(blocks[r[OP_FIRST] : r[OP_FIRST] + r[OP_COUNT]], int(r[OP_NODE])) for r in held]


def _joined(parts: Sequence[Any]) -> I64:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _counted(parts: Sequence[Any], size: int) -> I64:
    """(size,) how often each block is among them."""
    blocks = _joined(parts)
    unknown = blocks[(blocks < 0) | (blocks >= size)]
    if unknown.size:
        raise KvbenchError(f"integrity: there is no block {unknown[0]}")
    return np.bincount(blocks, minlength=size)


def _table(e: Engine, slot: int, start: int = 0) -> Any:
    return e.slots.table[slot, start : e.slots.rec[slot, BLOCKS]]


def _partition(e: Engine, free: I64, owned: I64) -> None:
    everyone = np.concatenate((free, owned))
    known = everyone[(everyone >= 1) & (everyone <= e.pool.num_blocks)]
    owners = np.bincount(known, minlength=e.pool.num_blocks + 1)
    twice = np.flatnonzero(owners > 1)
    if twice.size:
        raise KvbenchError(f"integrity: block {twice[0]} has two owners")
    if known.size != everyone.size or known.size != e.pool.num_blocks:
        raise KvbenchError(f"integrity: {everyone.size} of {e.pool.num_blocks} blocks have an owner")


# ---------------------------------------------------------------- list: reference counts and hashes


def _check_list(e: Engine, holders: list[int]) -> None:
    pool = e.pool.read()
    before, contents, refs = pool["before"], pool["content"], pool["refs"]
    free = _free_queue(pool["after"])
    torn = free[:-1][before[free[1:]] != free[:-1]]
    if torn.size:
        raise KvbenchError(f"integrity: the free queue is torn behind block {torn[0]}")
    _same("free blocks", e.pool.num_free, free.size)
    _same("last of the free queue", int(before[0]), int(free[-1]) if free.size else 0)
    targets, held = _copies(e)
    tables = [_table(e, slot) for slot in holders]
    references = _counted([*tables, targets, *(blocks for blocks, _ in held)], refs.size)
    _partition(e, free, np.flatnonzero(references))
    for b in np.flatnonzero(references != refs).tolist():
        _same(f"references of block {b}", int(refs[b]), int(references[b]))
    _same("cached blocks", e.pool.cached, int(np.count_nonzero(contents[free])))
    hashed = _distinct(contents)
    _same("distinct contents", e.hashes.distinct, hashed.size)
    entries = e.hashes.table[e.hashes.table > GONE]
    named = contents[entries & 0xFFFFFFFF]
    named = named[(named >> 32 & 0x7FFFFFFF | 1) == entries >> 32]  # the others are stale
    if not np.array_equal(_distinct(named), hashed):
        raise KvbenchError("integrity: the hash map and the block records disagree")
    check_hash_order(e.pool, e.hashes)


def _distinct(contents: Any) -> I64:
    """In order, without 0. (np.unique takes ten times as long.)"""
    ordered = np.sort(contents[contents != 0])
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))[: ordered.size]]


def _free_queue(after: Any) -> I64:
    """Blocks in order; one that is torn into a ring ends once it is longer than all there are."""
    following, free = after.tolist(), list[int]()
    block = following[0]
    while block and len(free) < len(following):
        free.append(block)
        block = following[block]
    return np.array(free, np.int64)


def _check_forks(e: Engine, holders: list[int]) -> None:
    """Who waits for a prompt holds nothing; each kept table is in the list, and somebody may still want it."""
    rec, lineage = e.slots.rec, e.lineage
    kept = [s for s in holders if rec[s, PHASE] == KEPT]
    _same("kept tables", _length(e.kept_head, rec[:, NEXT]), len(kept))
    for slot in kept:
        request = int(e.seqs.request[rec[slot, SEQ]])
        _same(f"slot of the table kept for request {request}", int(lineage[request, KEPT_SLOT]), slot)
        if lineage[request, WANTED] < 1:
            raise KvbenchError(f"integrity: nobody wants the table that is kept for request {request}")
    if any(rec[s, BLOCKS] > 0 for s in holders if rec[s, PHASE] == FOLLOWS):
        raise KvbenchError("integrity: a sequence that waits for a prompt holds blocks")
    waiting = Counter(int(parent) for parent in lineage[:, PARENT] if parent != NO_REQUEST)
    for request, wanted in enumerate(lineage[:, WANTED].tolist()):
        _same(f"turns that want the table of request {request}", wanted, waiting[request])


# ---------------------------------------------------------------- ring: the tree owns what is cached


def _check_radix(e: Engine, holders: list[int]) -> None:
    pool, tree, nodes = e.pool, e.tree, e.tree.nodes
    free = pool.ring[(pool.ring_head + np.arange(pool.num_free)) & (pool.ring.size - 1)].astype(np.int64)
    live = np.flatnonzero(nodes[:, LENGTH] > 0)
    parent, offset, length, lock = (nodes[live, c] for c in (PARENT_NODE, OFFSET, LENGTH, LOCK))
    gone = live[(parent > 0) & (nodes[np.maximum(parent, 0), LENGTH] == 0)]
    if gone.size:
        raise KvbenchError(f"integrity: node {gone[0]} hangs below a node that is gone")
    if not np.array_equal(np.sort(tree.table[tree.table != 0] & 0xFFFFFFFF), live):
        raise KvbenchError("integrity: the table of children and the nodes disagree")
    if np.unique(np.stack([parent, tree.keys[offset]]), axis=1).shape[1] != live.size:
        raise KvbenchError("integrity: two children of one node begin alike")
    targets, held = _copies(e)
    locks = np.zeros(nodes.shape[0], np.int64)
    for node in [*(int(e.slots.rec[slot, NODE]) for slot in holders), *(node for _, node in held)]:
        while node > 0:
            locks[node] += 1
            node = int(nodes[node, PARENT_NODE])
    within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    in_tree = tree.blocks[np.repeat(offset, length) + within]
    private = [_table(e, slot, int(e.slots.rec[slot, PUBLISHED])) for slot in holders]
    _partition(e, free, _joined([in_tree, *private, targets]))
    children = np.bincount(parent[parent > 0], minlength=nodes.shape[0])
    for what, kept, counted in (("locks", lock, locks[live]), ("children", nodes[live, CHILDREN], children[live])):
        for i in np.flatnonzero(kept != counted).tolist():
            _same(f"{what} of node {live[i]}", int(kept[i]), int(counted[i]))
    check_tree_order(tree)
    evictable = int(length[lock == 0].sum())
    _same("evictable blocks", tree.evictable, evictable)
    _same("protected blocks", tree.protected, in_tree.size - evictable)
