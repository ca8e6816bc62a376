"""The loop with a compiled check of every engine after each of its steps: for millions of steps of small engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from ..core.jit import PLAIN, inline
from ..core.requests import I64
from ..core.units import NEVER_NS
from ..engine.partition import is_intact
from ..scheduler.state_columns import NO_FAULT
from .loop import SLICE_OVER, compiled_advance
from .world import World

INTACT, BROKEN = range(2)


def _run_checked(w, max_steps, advance, visited):
    """Run a world and check the engine that has landed after every step.

    visited  (2, states) written: sequences seen in each state, of prefill engines and of all others; (0, 0): not wanted
    returns  (status of the last turn, BROKEN when the check failed after it)
    """
    for _ in range(max_steps):
        status = advance(w, NEVER_NS, np.int64(1), False)
        e = w.engines[w.at]
        if visited.size > 0:
            _count_states(visited[0], w.pairs.legs.state)
            _count_states(visited[1], w.clients.seqs.state)
        if e.fault == NO_FAULT and w.stepping[w.at] == 0 and not is_intact(e):  # with a fault it was left half way
            return status, BROKEN
        if status != SLICE_OVER or e.fault != NO_FAULT:
            return status, INTACT
    return np.int64(SLICE_OVER), INTACT


@inline
def _count_states(visited, state):
    for seq in range(state.size):
        visited[state[seq]] += 1


@cache
def _compiled() -> Callable[..., tuple[int, int]]:
    """The loop is a function pointer here, so it is compiled once for all."""
    if PLAIN:
        return _run_checked
    world, i8 = World.numba_type, types.int64
    turn: Any = types.FunctionType(i8(world, i8, i8, types.boolean))
    signature = types.Tuple((i8, i8))(world, i8, turn, types.int64[:, ::1])
    return njit(signature, cache=True, nogil=True, error_model="numpy")(_run_checked)


NOT_WANTED = np.zeros((0, 0), np.int64)


def run_checked(world: World, max_steps: int, visited: I64 = NOT_WANTED) -> tuple[int, bool]:
    """Steps of a world, each checked. Returns what `loop.advance` does, and whether all of them added up.

    visited   (2, states) counts of states, see _run_checked
    """
    status, broken = _compiled()(world, max_steps, compiled_advance(), visited)
    return status, broken == INTACT
