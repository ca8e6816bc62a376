"""What is on its way between two engines: both have to keep its memory until the link has done with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.errors import KvbenchError
from ..core.jit import still
from ..memory.operations import (
    DRAINING,
    MOVING,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_KIND,
    OP_OWNER,
    OP_SOURCE,
    OP_SOURCE_EPOCH,
    OP_STATE,
    OP_TARGET,
    OP_TARGET_COUNT,
    OP_TARGET_EPOCH,
    OP_TARGET_FIRST,
    SEND,
    Operations,
)
from ..scheduler.state import Engine
from ..scheduler.state_columns import BLOCKS


def check_transfers(engines: Sequence[Engine], operations: Operations) -> None:
    """Raise KvbenchError that names the first block which is still read or written and was let go."""
    ops, engines = operations.read(), [still(e) for e in engines]
    rows, blocks = ops["rows"], ops["blocks"]
    under_way = np.isin(rows[:, OP_STATE], (MOVING, DRAINING)) & (rows[:, OP_KIND] == SEND)
    for row in rows[under_way]:
        for engine, epoch, first, count, what in (
            (OP_SOURCE, OP_SOURCE_EPOCH, OP_FIRST, OP_COUNT, "read"),
            (OP_TARGET, OP_TARGET_EPOCH, OP_TARGET_FIRST, OP_TARGET_COUNT, "written"),
        ):
            e, seq = engines[int(row[engine])], int(row[OP_OWNER])
            if row[epoch] != e.side.epoch:  # of a life that is over
                continue
            if what == "read" and row[OP_HOLDS] == 1:  # the link holds them, whoever has let them go
                continue
            held = _table(e, seq)
            lost = [int(b) for b in blocks[row[first] : row[first] + row[count]] if int(b) not in held]
            if lost:
                where = f"block {lost[0]} of engine {e.number}"
                raise KvbenchError(f"pairs: {where} is still {what} for sequence {seq}, which has let it go")


def _table(e: Engine, seq: int) -> set[int]:
    slot = int(e.seqs.slot[seq])
    return {int(b) for b in e.slots.table[slot, : e.slots.rec[slot, BLOCKS]]} if slot >= 0 else set()
