"""Conservation on the host: each slot is free or has one copy in one state, and each copy under way one operation."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..core.errors import KvbenchError
from ..memory.operations import (
    BACKUP,
    FREE_ROW,
    LOAD,
    OP_KIND,
    OP_OWNER,
    OP_STATE,
    OP_TARGET,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
)
from ..prefix.block_hash import GONE
from ..prefix.node import CHILDREN, LENGTH, LOCK, PARENT
from ..scheduler.state import Engine
from ..scheduler.state_columns import FETCHING
from ..tiers.host import ABSENT, COPYING


def check_tiers(e: Engine) -> None:
    """Raise KvbenchError that names the first thing that does not add up."""
    tier = e.tiers.host.read()
    content, state, nodes = tier["content"], tier["state"], e.tiers.host.order.nodes
    free = tier["free"][: tier["num_free"]].tolist()
    kept = np.flatnonzero(content[1:]) + 1
    if sorted([*free, *kept.tolist()]) != list(range(1, content.size)):
        raise KvbenchError("integrity: a slot of the host is free and has a copy, or neither")
    if np.any((state[1:] == ABSENT) != (content[1:] == 0)) or np.any((nodes[1:, LENGTH] > 0) != (content[1:] != 0)):
        raise KvbenchError("integrity: states and contents of the host disagree")
    entries = [int(v) & 0xFFFFFFFF for v in tier["table"] if v > GONE]
    if sorted(entries) != kept.tolist():
        raise KvbenchError("integrity: the table of the host and its slots disagree")
    locks, writers = _touched(e)
    for slot in kept.tolist():
        if nodes[slot, LOCK] != locks[slot]:
            raise KvbenchError(
                f"integrity: slot {slot} of the host is held {nodes[slot, LOCK]} times, by {locks[slot]} operations"
            )
        if writers[slot] > 1 or (writers[slot] == 1 and state[slot] != COPYING):
            raise KvbenchError(f"integrity: slot {slot} of the host is written by {writers[slot]} operations")
    if set(locks) - set(kept.tolist()):
        raise KvbenchError("integrity: an operation touches a slot of the host that has no copy")
    children = Counter(nodes[kept, PARENT].tolist())
    for slot in kept.tolist():
        if nodes[slot, CHILDREN] != children[slot]:
            raise KvbenchError(f"integrity: slot {slot} of the host counts {nodes[slot, CHILDREN]} children wrongly")
        if nodes[slot, PARENT] and content[nodes[slot, PARENT]] == 0:
            raise KvbenchError(f"integrity: a copy in slot {slot} of the host has lost its parent")
    _check_fetching(e)


def _touched(e: Engine) -> tuple[Counter[int], Counter[int]]:
    """How many operations hold each slot; how many write it."""
    locks: Counter[int] = Counter()
    writers: Counter[int] = Counter()
    ops = e.operations
    rows, blocks = ops.rows, ops.blocks
    for row in rows[(rows[:, OP_STATE] != FREE_ROW) & (rows[:, OP_TARGET] == e.number)]:
        slots = blocks[row[OP_TIER_FIRST] : row[OP_TIER_FIRST] + row[OP_TIER_COUNT]].tolist()
        locks.update(slots)
        if row[OP_KIND] == BACKUP:
            writers.update(slots)
    return locks, writers


def _check_fetching(e: Engine) -> None:
    """Who is set aside has a load, and only one."""
    rows = e.operations.rows
    loads = rows[(rows[:, OP_STATE] != FREE_ROW) & (rows[:, OP_KIND] == LOAD) & (rows[:, OP_TARGET] == e.number)]
    owners = Counter(loads[:, OP_OWNER].tolist())
    for seq in np.flatnonzero((e.seqs.state == FETCHING) & (e.seqs.engine == e.number)).tolist():
        if owners[seq] != 1:
            raise KvbenchError(f"integrity: sequence {seq} is fetching and has {owners[seq]} loads")
