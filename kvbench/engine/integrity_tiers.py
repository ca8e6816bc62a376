"""Conservation on host and storage: a slot is free or has one copy in one state, one under way one operation."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

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
from ..prefix.node import CHILDREN, LENGTH, LOCK
from ..scheduler.state import Engine
from ..scheduler.state_columns import FETCHING
from ..tiers.arc import T1, T2
from ..tiers.host import ABSENT, CONFIRMED, COPYING, NO_SLOT, HostTier
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
    content, state, holds, parent = tier["content"], tier["state"], tier["holds"], tier["parent"]
    free = _follow(tier["free_head"], tier["after"], content.size)
    kept = np.flatnonzero(content[1:]) + 1
    if sorted([*free, *kept.tolist()]) != list(range(1, content.size)):
        raise KvbenchError(f"integrity: a slot of {where} is free and has a copy, or neither")
    if len(free) != tier["num_free"] or np.any((state[1:] == ABSENT) != (content[1:] == 0)):
        raise KvbenchError(f"integrity: states and contents of {where} disagree")
    entries = [slot for first in tier["bucket"] for slot in _follow(first, tier["after"], content.size)]
    if sorted(entries) != kept.tolist():
        raise KvbenchError(f"integrity: the table of {where} and its slots disagree")
    for slot in kept.tolist():
        if holds[slot] != locks[slot]:
            raise KvbenchError(
                f"integrity: slot {slot} of {where} is held {holds[slot]} times, by {locks[slot]} operations"
            )
        if writers[slot] > 1 or (writers[slot] == 1 and state[slot] != COPYING):
            raise KvbenchError(f"integrity: slot {slot} of {where} is written by {writers[slot]} operations")
    if set(locks) - set(kept.tolist()):
        raise KvbenchError(f"integrity: an operation touches a slot of {where} that has no copy")
    for slot in kept.tolist() if pool.truth.size > 1 else ():
        if state[slot] == CONFIRMED and pool.truth[slot] != content[slot]:
            raise KvbenchError(f"integrity: slot {slot} of {where} is confirmed and holds something else")
    children = Counter(parent[kept].tolist())
    for slot in kept.tolist():
        if tier["children"][slot] != children[slot]:
            raise KvbenchError(f"integrity: slot {slot} of {where} counts {tier['children'][slot]} children wrongly")
        if parent[slot] == NO_SLOT:
            raise KvbenchError(f"integrity: slot {slot} of {where} has a copy whose prefix is not there")
        if parent[slot] > 0 and content[parent[slot]] == 0:
            raise KvbenchError(f"integrity: a copy in slot {slot} of {where} has lost its parent")
    if pool.listed:
        idle = {slot for slot in kept.tolist() if holds[slot] == 0 and tier["children"][slot] == 0}
        _check_lists(where, pool, set(kept.tolist()), idle)
    else:
        _check_records(where, pool)


def _follow(first: int, after: NDArray[np.int32], most: int) -> list[int]:
    found = list[int]()
    while first != NO_SLOT and len(found) <= most:
        found.append(int(first))
        first = int(after[first])
    return found


def _check_records(where: str, pool: HostTier) -> None:
    """What a policy that is no list reads says the same as the slots."""
    nodes, there = pool.order.nodes[1:], pool.content[1:] != 0
    told = nodes[there][:, [LOCK, CHILDREN]]
    if np.any((nodes[:, LENGTH] > 0) != there) or np.any(
        told != np.stack((pool.holds[1:][there], pool.children[1:][there]), 1)
    ):
        raise KvbenchError(f"integrity: the policy of {where} is told something else of its copies")


def _check_lists(where: str, pool: HostTier, kept: set[int], idle: set[int]) -> None:
    """Who may leave is in a list; under ARC each copy is, each name among one of the ghosts, and none of these is."""
    arc, listed = pool.arc, list[int]()
    for which in (T1, T2):
        head = arc.member.size - 1 + int(which)
        slot, before = int(arc.after[head]), head
        while slot != head:
            if arc.before[slot] != before or arc.member[slot] != which:
                raise KvbenchError(f"integrity: slot {slot} of {where} is linked wrongly in t{which}")
            listed.append(slot)
            slot, before = int(arc.after[slot]), slot
    must = kept if arc.is_on else idle
    if len(listed) != len(set(listed)) or int(arc.size[1:].sum()) != len(listed) or not must <= set(listed) <= kept:
        raise KvbenchError(f"integrity: the lists of {where} are not its copies")
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
