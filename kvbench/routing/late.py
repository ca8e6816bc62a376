"""Events of caches on their way to the router: some are lost, the others come late, in order.

They are heard before the next decision, which is when it matters.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..prefix.changes import IS_STORED
from . import block_view
from .choose import draw_lost

_DUE, _ENGINE, _CHANGE = range(3)


@jit
def tell_block(router, engine, change, now):
    """An engine says that it has a block or has it no more, see prefix.changes."""
    if router.lost_events > 0 and draw_lost(router):
        return
    if router.num_late == router.late.shape[0]:
        _enlarge(router)
    row = router.late[(router.late_head + router.num_late) % router.late.shape[0]]
    row[_DUE], row[_ENGINE], row[_CHANGE] = now + router.delay_ns, engine, change
    router.num_late += 1


@jit
def _enlarge(router):
    old, larger = router.late, np.zeros((2 * router.num_late, 3), np.int64)
    for i in range(router.num_late):
        row = old[(router.late_head + i) % router.num_late]
        for column in range(3):
            larger[i, column] = row[column]
    router.late, router.late_head = larger, 0


@jit
def catch_up(router, now):
    """Hear what is due."""
    while router.num_late > 0:
        row = router.late[router.late_head]
        if row[_DUE] > now:
            return
        if row[_CHANGE] & IS_STORED:
            block_view.stored(router.blocks_told, row[_CHANGE], row[_ENGINE])
        else:
            block_view.removed(router.blocks_told, row[_CHANGE] | IS_STORED, row[_ENGINE])
        router.late_head = (router.late_head + 1) % router.late.shape[0]
        router.num_late -= 1


@jit
def forget_late(router, engine):
    """An engine that is gone has nothing more to say."""
    kept = np.int64(0)
    size = router.late.shape[0]
    for i in range(router.num_late):
        row = router.late[(router.late_head + i) % size]
        if row[_ENGINE] != engine:
            to = router.late[(router.late_head + kept) % size]
            for column in range(3):
                to[column] = row[column]
            kept += 1
    router.num_late = kept
