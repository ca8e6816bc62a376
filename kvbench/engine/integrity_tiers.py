"""Conservation on host and storage: a slot is free or has one copy in one state, one under way one operation."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..core.errors import KvbenchError
from ..core.requests import I64
from ..memory.operations import (
    BACKUP,
    FREE_ROW,
    LOAD,
    OP_KIND,
    OP_OWNER,
    OP_SOURCE,
    OP_STATE,
    OP_STORE_COUNT,
    OP_STORE_FIRST,
    OP_TARGET,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    PREFETCH,
    STORE,
)
from ..prefix.block_hash import GONE
from ..prefix.node import CHILDREN, DEPTH, LENGTH, LOCK, PARENT
from ..scheduler.state import Engine
from ..scheduler.state_columns import FETCHING
from ..tiers.arc import T1, T2
from ..tiers.host import ABSENT, CONFIRMED, COPYING, HostTier
from ..tiers.state import PF_DONE, PREFETCH_STATE


def check_tiers(e: Engine) -> None:
    """Raise KvbenchError that names the first thing that does not add up."""
    rows = e.operations.rows
    rows = rows[rows[:, OP_STATE] != FREE_ROW]
    own = rows[(rows[:, OP_SOURCE] == e.number) | (rows[:, OP_TARGET] == e.number)]
    _check_pool("the host", e.tiers.host, *_touched(e, own, OP_TIER_FIRST, OP_TIER_COUNT, (BACKUP, PREFETCH)))
    _check_pool("storage", e.tiers.store, *_touched(e, rows, OP_STORE_FIRST, OP_STORE_COUNT, (STORE,)))
    _check_fetching(e, own)


def _check_pool(where: str, pool: HostTier, locks: Counter[int], writers: Counter[int]) -> None:
    tier = pool.read()
    content, state, nodes = tier["content"], tier["state"], pool.order.nodes
    free = tier["free"][: tier["num_free"]].tolist()
    kept = np.flatnonzero(content[1:]) + 1
    if sorted([*free, *kept.tolist()]) != list(range(1, content.size)):
        raise KvbenchError(f"integrity: a slot of {where} is free and has a copy, or neither")
    if np.any((state[1:] == ABSENT) != (content[1:] == 0)) or np.any((nodes[1:, LENGTH] > 0) != (content[1:] != 0)):
        raise KvbenchError(f"integrity: states and contents of {where} disagree")
    entries = [int(v) & 0xFFFFFFFF for v in tier["table"] if v > GONE]
    if sorted(entries) != kept.tolist():
        raise KvbenchError(f"integrity: the table of {where} and its slots disagree")
    for slot in kept.tolist():
        if nodes[slot, LOCK] != locks[slot]:
            raise KvbenchError(
                f"integrity: slot {slot} of {where} is held {nodes[slot, LOCK]} times, by {locks[slot]} operations"
            )
        if writers[slot] > 1 or (writers[slot] == 1 and state[slot] != COPYING):
            raise KvbenchError(f"integrity: slot {slot} of {where} is written by {writers[slot]} operations")
    if set(locks) - set(kept.tolist()):
        raise KvbenchError(f"integrity: an operation touches a slot of {where} that has no copy")
    for slot in kept.tolist() if pool.truth.size > 1 else ():
        if state[slot] == CONFIRMED and pool.truth[slot] != content[slot]:
            raise KvbenchError(f"integrity: slot {slot} of {where} is confirmed and holds something else")
    if pool.arc.is_on:
        _check_arc(where, pool, set(kept.tolist()))
    children = Counter(nodes[kept, PARENT].tolist())
    for slot in kept.tolist():
        if nodes[slot, CHILDREN] != children[slot]:
            raise KvbenchError(f"integrity: slot {slot} of {where} counts {nodes[slot, CHILDREN]} children wrongly")
        if pool.closed and nodes[slot, DEPTH] > 0 and not nodes[slot, PARENT]:
            raise KvbenchError(f"integrity: slot {slot} of {where} has a copy whose prefix is not there")
        if nodes[slot, PARENT] and content[nodes[slot, PARENT]] == 0:
            raise KvbenchError(f"integrity: a copy in slot {slot} of {where} has lost its parent")


def _check_arc(where: str, pool: HostTier, kept: set[int]) -> None:
    """Each copy is in one of the lists, each name among one of the ghosts, and none of these is there."""
    arc, listed = pool.arc, list[int]()
    for which in (T1, T2):
        head = arc.member.size - 1 + int(which)
        slot, before = int(arc.after[head]), head
        while slot != head:
            if arc.before[slot] != before or arc.member[slot] != which:
                raise KvbenchError(f"integrity: slot {slot} of {where} is linked wrongly in t{which}")
            listed.append(slot)
            slot, before = int(arc.after[slot]), slot
    if len(listed) != len(set(listed)) or set(listed) != kept or int(arc.size[1:].sum()) != len(listed):
        raise KvbenchError(f"integrity: t1 and t2 of {where} are not its copies")
    ghosts = [name for g in (arc.b1, arc.b2) for name in g.name.tolist() if name]
    if len(ghosts) != len(set(ghosts)) or set(ghosts) & set(pool.content[sorted(kept)].tolist()):
        raise KvbenchError(f"integrity: {where} remembers a name twice, or one that is there")
    if not 0 <= arc.target <= arc.member.size - 1:
        raise KvbenchError(f"integrity: the target of t1 of {where} is {arc.target}")


def _touched(
    e: Engine, rows: I64, first: int, count: int, writing: tuple[np.int64, ...]
) -> tuple[Counter[int], Counter[int]]:
    """How many operations hold each slot; how many write it."""
    locks: Counter[int] = Counter()
    writers: Counter[int] = Counter()
    blocks = e.operations.blocks
    for row in rows:
        slots = blocks[row[first] : row[first] + row[count]].tolist()
        locks.update(slots)
        if row[OP_KIND] in writing:
            writers.update(slots)
    return locks, writers


def _check_fetching(e: Engine, rows: I64) -> None:
    """Who is set aside has a load, or a prefetch, and only one."""
    owners = Counter(rows[(rows[:, OP_KIND] == LOAD) | (rows[:, OP_KIND] == PREFETCH), OP_OWNER].tolist())
    for seq in np.flatnonzero((e.seqs.state == FETCHING) & (e.seqs.engine == e.number)).tolist():
        is_late = e.tiers.of_seq[seq, PREFETCH_STATE] == PF_DONE and owners[seq] == 2  # a batch that nobody waits for
        if owners[seq] != 1 and not is_late:
            raise KvbenchError(f"integrity: sequence {seq} is fetching and has {owners[seq]} operations")
