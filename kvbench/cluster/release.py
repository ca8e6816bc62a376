"""What only the loop has needed goes back to the system, once the journal of a large run has been taken.

Bounds and percentiles take as much again as a million sequences do, and are worked out when nobody looks any more at
what engines noted of every gap, at what a router believes, or at prefix caches.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from .world import World

LARGE = 200_000
"""Sequences of a run for which it is worth compiling this."""


def release(world: World) -> None:
    """Neither the loop nor the journal of this world can be had afterwards."""
    if world.clients.seqs.state.size >= LARGE:
        _release(world)


@entry
def _release(w):
    none, no_rows = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    for k in range(w.ready.size):
        journal = w.engines[k].journal
        journal.gap, journal.count, journal.steps = none, none, no_rows
    router = w.router
    for tree in (router.tree, router.live):
        tree.nodes, tree.table, tree.keys, tree.holders = no_rows, none, none, no_rows
    router.blocks_told.table, router.late, router.sends = no_rows, no_rows, no_rows
