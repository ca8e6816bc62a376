"""Conservation on host and storage: a slot is free or has one copy in one state, one under way one operation."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
from ..tiers.arc import NEITHER, T1, T2
from ..tiers.copies import ABSENT, CONFIRMED, COPYING, NO_SLOT, HostTier
from ..tiers.state import PF_DONE, PREFETCH_STATE

Bools = NDArray[np.bool_]


def check_tiers(e: Engine) -> None:
    """Raise KvbenchError that names the first thing that does not add up."""
    rows = e.operations.rows
    rows = rows[rows[:, OP_STATE] != FREE_ROW]
    own = rows[(rows[:, OP_SOURCE] == e.number) | (rows[:, OP_TARGET] == e.number)]
    host, store = e.tiers.host, e.tiers.store
    on_host = _touched(e, own, OP_TIER_FIRST, OP_TIER_COUNT, (BACKUP, PREFETCH), host.content.size)
    stored = _touched(e, rows, OP_STORE_FIRST, OP_STORE_COUNT, (STORE,), store.content.size)
    _check_pool("the host", host, *on_host)
    _check_pool("storage", store, *stored)
    _check_fetching(e, own)


def _check_pool(where: str, pool: HostTier, held: I64, written: I64) -> None:
    """held, written: (slots,) operations that hold each slot, and that write it. All slots at once: there are many."""
    tier, n = pool.read(), pool.content.size
    content, state, parent = tier["content"], tier["state"], tier["parent"]
    there = content != 0
    _check_chains(where, tier, there)
    _none(where, (state == ABSENT) == there, "has a state that its content has not")
    for slot in np.flatnonzero(there & (tier["holds"] != held))[:1]:
        times = f"held {tier['holds'][slot]} times, by {held[slot]} operations"
        raise KvbenchError(f"integrity: slot {slot} of {where} is {times}")
    _none(where, (written > 1) | ((written == 1) & (state != COPYING)), "is written by too many operations")
    _none(where, (held > 0) & ~there, "has no copy, and an operation touches it")
    if pool.truth.size > 1:
        _none(where, (state == CONFIRMED) & (pool.truth != content), "is confirmed and holds something else")
    children = np.bincount(parent[there & (parent > 0)], minlength=n)
    _none(where, there & (tier["children"] != children), "counts its children wrongly")
    _none(where, there & (parent == NO_SLOT), "has a copy whose prefix is not there")
    _none(where, there & (parent > 0) & ~there[np.maximum(parent, 0)], "has a copy that has lost its parent")
    if pool.listed:
        _check_lists(where, pool, there, there & (tier["holds"] == 0) & (tier["children"] == 0))
    else:
        _check_records(where, pool, there)


def _none(where: str, wrong: Bools, what: str) -> None:
    if np.any(wrong[1:]):
        raise KvbenchError(f"integrity: slot {1 + int(np.argmax(wrong[1:]))} of {where} {what}")


def _check_chains(where: str, tier: dict[str, Any], there: Bools) -> None:
    """Each slot is in one chain: that of its place in the table, or that of the free ones."""
    bucket, after = tier["bucket"], tier["after"]
    heads = np.concatenate((bucket, [tier["free_head"]]))
    pointers = np.bincount(np.concatenate((heads, after[1:])), minlength=there.size)
    _none(where, pointers != 1, "is in no chain, or in two")
    _none(where, ~_ends(after, int(NO_SLOT)), "is in a chain without an end")
    place = np.where(there, (tier["content"] >> 1) & (bucket.size - 1), bucket.size)
    follower = after != NO_SLOT
    _none(where, follower & (place[after] != place), "is followed by one of another place")
    at = np.flatnonzero(heads)
    if np.any(place[heads[at]] != at) or int((~there[1:]).sum()) != tier["num_free"]:
        raise KvbenchError(f"integrity: the table of {where} and its slots disagree")


def _ends(after: NDArray[np.int32], end: int) -> Bools:
    """Whether who follows these pointers comes to `end`, from each place: twice as far at a time."""
    far = after.astype(np.int64)
    for _ in range(max(far.size, 2).bit_length()):
        far = far[far]
    return np.asarray(far == end)


def _check_records(where: str, pool: HostTier, there: Bools) -> None:
    """What a policy that is no list reads says the same as the slots."""
    nodes = pool.order.nodes
    wrong = (nodes[:, LENGTH] > 0) != there
    wrong |= there & ((nodes[:, LOCK] != pool.holds) | (nodes[:, CHILDREN] != pool.children))
    _none(where, wrong, "is something else to the policy than it is")


def _check_lists(where: str, pool: HostTier, there: Bools, idle: Bools) -> None:
    """Who may leave is in a list; under ARC each copy is, each name among one of the ghosts, and none of these is."""
    arc, n = pool.arc, there.size
    slots, listed = np.arange(n), arc.member != NEITHER
    wrong = listed & ((arc.before[arc.after[:n]] != slots) | (arc.after[arc.before[:n]] != slots))
    _none(where, wrong, "is linked wrongly")
    must = there if arc.is_on else idle
    _none(where, (must & ~listed) | (listed & ~there), "is in no list, or in one and has no copy")
    for which in (T1, T2):
        own, head = arc.member == which, n - 1 + int(which)
        to_head = np.where(np.arange(n + 2) < n, np.append(np.where(own, arc.after[:n], head), [0, 0]), head)
        _none(where, own & ~_ends(to_head.astype(np.int32), head)[:n], f"is not in the list of t{which}")
        if int(own.sum()) != arc.size[which]:
            raise KvbenchError(f"integrity: t{which} of {where} counts {arc.size[which]} copies wrongly")
    if not arc.is_on:
        return
    names = np.concatenate((arc.b1.name, arc.b2.name))
    names = names[names != 0]
    if np.unique(names).size != names.size or np.isin(names, pool.content[there]).any():
        raise KvbenchError(f"integrity: {where} remembers a name twice, or one that is there")
    if not 0 <= arc.target <= n - 1:
        raise KvbenchError(f"integrity: the target of t1 of {where} is {arc.target}")


def _touched(
    e: Engine, rows: I64, first: int, count: int, writing: tuple[np.int64, ...], num_slots: int
) -> tuple[I64, I64]:
    """(slots,) how many operations hold each slot; how many write it."""
    blocks = e.operations.blocks
    counts = []
    for chosen in (rows, rows[np.isin(rows[:, OP_KIND], writing)]):
        runs = [blocks[row[first] : row[first] + row[count]] for row in chosen]
        slots = np.concatenate([*runs, np.zeros(0, np.int32)]).astype(np.int64)
        counts.append(np.bincount(slots, minlength=num_slots))
    return counts[0], counts[1]


def _check_fetching(e: Engine, rows: I64) -> None:
    """Who is set aside has a load, or a prefetch, and only one."""
    owners = Counter(rows[(rows[:, OP_KIND] == LOAD) | (rows[:, OP_KIND] == PREFETCH), OP_OWNER].tolist())
    for seq in np.flatnonzero((e.seqs.state == FETCHING) & (e.seqs.engine == e.number)).tolist():
        is_late = e.tiers.of_seq[seq, PREFETCH_STATE] == PF_DONE and owners[seq] == 2  # a batch that nobody waits for
        if owners[seq] != 1 and not is_late:
            raise KvbenchError(f"integrity: sequence {seq} is fetching and has {owners[seq]} operations")
