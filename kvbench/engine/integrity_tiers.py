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
from ..prefix.node import CHILDREN, LENGTH, LOCK, PARENT
from ..scheduler.state import Engine
from ..scheduler.state_columns import FETCHING
from ..tiers.host import ABSENT, COPYING, HostTier
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
    children = Counter(nodes[kept, PARENT].tolist())
    for slot in kept.tolist():
        if nodes[slot, CHILDREN] != children[slot]:
            raise KvbenchError(f"integrity: slot {slot} of {where} counts {nodes[slot, CHILDREN]} children wrongly")
        if nodes[slot, PARENT] and content[nodes[slot, PARENT]] == 0:
            raise KvbenchError(f"integrity: a copy in slot {slot} of {where} has lost its parent")


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
