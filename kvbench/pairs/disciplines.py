"""What an engine of a pair does, as verbs: by its scheduler, its side, and whether it has a calendar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from numba import njit

from ..core.jit import PLAIN
from ..engine.disciplines import NOTHING_MOVES, Discipline, Moving
from ..scheduler.side import PREFILL
from ..scheduler.state import Engine
from ..scheduler.waiting_order import FCFS
from . import pull, pull_decode, pull_prefill, push, push_decode, push_prefill
from .state import BETWEEN


def side_of(engine: Engine) -> tuple[Discipline, Moving]:
    """The scheduler of one side, and what it does beside its steps."""
    discipline, landed = _verbs_of(engine)
    return discipline, replace(NOTHING_MOVES, landed=landed)


def _verbs_of(engine: Engine) -> tuple[Discipline, Callable[[Engine, int], None]]:
    """The scheduler, and what is done when a transfer is over."""
    is_prefill, is_push = engine.side.role == PREFILL, bool(engine.rules.prefill_first)
    if is_push and is_prefill:
        schedule = push_prefill.schedule if engine.rules.order == FCFS else push_prefill.schedule_sorted
        return Discipline("push_prefill", schedule, push_prefill.commit, push_prefill.cancel), push.prefill_landed
    if is_prefill:
        verbs = pull_prefill
        return Discipline("pull_prefill", verbs.schedule, verbs.commit, verbs.cancel), pull.prefill_landed
    module: Any = push_decode if is_push else pull_decode
    landing = push.decode_landed if is_push else pull.decode_landed
    name = module.__name__.rpartition(".")[2]
    if engine.calendar.active:
        return Discipline(name + "_calendar", module.schedule_calendar, module.commit_calendar, module.cancel), landing
    return Discipline(name, module.schedule, module.commit, module.cancel), landing


def _nobody(pairs, c, engines, ready, stepping, what, subject, k, now):
    """Of a run without pairs; it is never called."""


@cache
def pair_pointer(protocol: str) -> Any:
    """What happens between the engines, as a function pointer: a run compiles its own protocol, or nothing.

    protocol   pull, push, or "": every engine does both
    """
    function = {"pull": pull.verb, "push": push.verb}.get(protocol, _nobody)
    return function if PLAIN else njit(BETWEEN.signature, cache=True, nogil=True, error_model="numpy")(function)
