"""Conservation: each block is exactly one of free, cached only, referenced. Recomputed from scratch.

Run after every step in check mode and at the end of every run.
"""

from __future__ import annotations

from collections import Counter

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
from ..prefix import node as node_columns
from ..prefix.block_hash import GONE
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


def _copies(e: Engine) -> tuple[list[int], list[tuple[list[int], int]]]:
    """Blocks that operations own; blocks and locked node of every operation that holds blocks of this engine."""
    ops = e.operations.read()
    rows, blocks = ops["rows"], ops["blocks"]
    rows = rows[rows[:, OP_STATE] != FREE_ROW]
    _same("open operations", int(ops["open"]), len(rows))
    touched = [np.zeros(0, np.int64)]
    for of, epoch, first, count in (
        (OP_SOURCE, OP_SOURCE_EPOCH, OP_FIRST, OP_COUNT),
        (OP_TARGET, OP_TARGET_EPOCH, OP_TARGET_FIRST, OP_TARGET_COUNT),
    ):
        own = (rows[:, of] == e.number) & (rows[:, epoch] == e.side.epoch)
        touched += [blocks[r[first] : r[first] + r[count]] for r in rows[own]]
    counted = np.bincount(np.concatenate(touched).astype(np.int64), minlength=e.pool.in_flight.size)
    if np.any(counted != e.pool.in_flight):
        raise KvbenchError("integrity: blocks and the operations in flight on them disagree")
    owned = rows[(rows[:, OP_TARGET] == e.number) & (rows[:, OP_OWNS] == 1)]
    targets = [int(b) for r in owned for b in blocks[r[OP_TARGET_FIRST] : r[OP_TARGET_FIRST] + r[OP_TARGET_COUNT]]]
    ours = (rows[:, OP_SOURCE] == e.number) & (rows[:, OP_SOURCE_EPOCH] == e.side.epoch)
    held = rows[ours & (rows[:, OP_HOLDS] == 1)]
    return targets, [(blocks[r[OP_FIRST] : r[OP_FIRST] + r[OP_COUNT]].tolist(), int(r[OP_NODE])) for r in held]


def _table(e: Engine, slot: int) -> list[int]:
    return [int(b) for b in e.slots.table[slot, : e.slots.rec[slot, BLOCKS]]]


def _partition(e: Engine, free: list[int], owned: list[int]) -> None:
    everyone = Counter(free) + Counter(owned)
    twice = [b for b, n in everyone.items() if n > 1]
    if twice:
        raise KvbenchError(f"integrity: block {twice[0]} has two owners")
    if len(everyone) != e.pool.num_blocks or min(everyone) < 1 or max(everyone) > e.pool.num_blocks:
        raise KvbenchError(f"integrity: {len(everyone)} of {e.pool.num_blocks} blocks have an owner")


# ---------------------------------------------------------------- list: reference counts and hashes


def _check_list(e: Engine, holders: list[int]) -> None:
    pool = e.pool.read()
    after, before, contents = pool["after"], pool["before"], pool["content"]
    free = []
    block = int(after[0])
    while block:
        if after[block] and before[after[block]] != block:
            raise KvbenchError(f"integrity: the free queue is torn behind block {block}")
        free.append(block)
        block = int(after[block])
    _same("free blocks", e.pool.num_free, len(free))
    _same("last of the free queue", int(before[0]), free[-1] if free else 0)
    references: Counter[int] = Counter()
    for slot in holders:
        references.update(_table(e, slot))
    targets, held = _copies(e)
    references.update(targets)
    for blocks, _ in held:
        references.update(blocks)
    _partition(e, free, list(references))
    for b in range(1, e.pool.num_blocks + 1):
        _same(f"references of block {b}", int(pool["refs"][b]), references[b])
    _same("cached blocks", e.pool.cached, sum(1 for b in free if contents[b] != 0))
    hashed = {int(h) for h in contents[1:] if h != 0}
    _same("distinct contents", e.hashes.distinct, len(hashed))
    entries = [int(v) & 0xFFFFFFFF for v in e.hashes.table if v > GONE]
    if {int(contents[b]) for b in entries} != hashed:
        raise KvbenchError("integrity: the hash map and the block records disagree")
    check_hash_order(e.pool, e.hashes)


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
    mask = pool.ring.size - 1
    free = [int(pool.ring[(pool.ring_head + i) & mask]) for i in range(pool.num_free)]
    live = [int(n) for n in np.flatnonzero(nodes[:, node_columns.LENGTH] > 0)]
    owned: list[int] = []
    locks: Counter[int] = Counter()
    children: Counter[int] = Counter()
    names = set()
    for n in live:
        offset, length = int(nodes[n, node_columns.OFFSET]), int(nodes[n, node_columns.LENGTH])
        owned += [int(b) for b in tree.blocks[offset : offset + length]]
        parent = int(nodes[n, node_columns.PARENT])
        children[parent] += 1
        names.add((parent, int(tree.keys[offset])))
        if parent > 0 and nodes[parent, node_columns.LENGTH] == 0:
            raise KvbenchError(f"integrity: node {n} hangs below a node that is gone")
    if sorted(int(v) & 0xFFFFFFFF for v in tree.table if v) != live:
        raise KvbenchError("integrity: the table of children and the nodes disagree")
    if len(names) != len(live):
        raise KvbenchError("integrity: two children of one node begin alike")
    for slot in holders:
        owned += _table(e, slot)[int(e.slots.rec[slot, PUBLISHED]) :]
        node = int(e.slots.rec[slot, NODE])
        while node > 0:
            locks[node] += 1
            node = int(nodes[node, node_columns.PARENT])
    targets, held = _copies(e)
    owned += targets
    for _, node in held:
        while node > 0:
            locks[node] += 1
            node = int(nodes[node, node_columns.PARENT])
    _partition(e, free, owned)
    for n in live:
        _same(f"locks of node {n}", int(nodes[n, node_columns.LOCK]), locks[n])
        _same(f"children of node {n}", int(nodes[n, node_columns.CHILDREN]), children[n])
    check_tree_order(tree)
    evictable = sum(int(nodes[n, node_columns.LENGTH]) for n in live if locks[n] == 0)
    _same("evictable blocks", tree.evictable, evictable)
    _same("protected blocks", tree.protected, len(owned) - len(targets) - _private(e, holders) - evictable)


def _private(e: Engine, holders: list[int]) -> int:
    rec = e.slots.rec
    return sum(int(rec[s, BLOCKS] - rec[s, PUBLISHED]) for s in holders)
