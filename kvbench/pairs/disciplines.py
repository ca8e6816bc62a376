"""What an engine of a pair does, as verbs: by its scheduler, its side, and whether it has a calendar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

from numba import njit

from ..core.ahead import Unit
from ..core.jit import PLAIN
from ..engine.build import runs_calendar
from ..engine.disciplines import CANCEL, NOTHING_MOVES, VERB, Discipline, Moving
from ..engine.settings import EngineSettings, is_prefill_first
from ..scheduler.side import PREFILL
from ..scheduler.state import Engine
from ..scheduler.waiting_order import FCFS, order_of
from . import layerwise, pull, pull_decode, pull_prefill, push, push_decode, push_prefill
from .settings import LAYERWISE, PULL, PUSH
from .state import BETWEEN

DISCIPLINES = {
    module.__name__.rpartition(".")[2]: Discipline(
        module.__name__.rpartition(".")[2], module.schedule, module.commit, module.cancel
    )
    for module in (pull_prefill, pull_decode, push_prefill, push_decode)
}
DISCIPLINES |= {
    "push_prefill_sorted": replace(
        DISCIPLINES["push_prefill"], name="push_prefill_sorted", schedule=push_prefill.schedule_sorted
    ),
    "pull_decode_calendar": Discipline(
        "pull_decode_calendar", pull_decode.schedule_calendar, pull_decode.commit_calendar, pull_decode.cancel
    ),
    "push_decode_calendar": Discipline(
        "push_decode_calendar", push_decode.schedule_calendar, push_decode.commit_calendar, push_decode.cancel
    ),
}

_PROTOCOLS = {PULL: pull, PUSH: push, LAYERWISE: layerwise}


def side_of(engine: Engine, protocol: str) -> tuple[Discipline, Moving]:
    """The scheduler of one side, and what it does beside its steps."""
    is_prefill, module = engine.side.role == PREFILL, cast(Any, _PROTOCOLS[protocol])
    name = _name(protocol, is_prefill, engine.calendar.active, engine.rules.order != FCFS)
    return DISCIPLINES[name], replace(
        NOTHING_MOVES, landed=module.prefill_landed if is_prefill else module.decode_landed
    )


def _name(protocol: str, is_prefill: bool, calendar: bool, is_sorted: bool) -> str:
    engine = PUSH if protocol == PUSH else PULL  # under layerwise both sides are those of a pull
    if is_prefill:
        return f"{engine}_prefill{'_sorted' if engine == PUSH and is_sorted else ''}"
    return f"{engine}_decode{'_calendar' if calendar else ''}"


def units(settings: EngineSettings, protocol: str) -> tuple[Unit, ...]:
    """The verbs of a side, and what happens between both, to be compiled ahead; the longest first."""
    is_prefill = settings.role == "prefill"
    is_sorted = is_prefill_first(settings) and order_of(settings.scheduler.policy, settings.cache.kind) != FCFS
    name = _name(protocol, is_prefill, runs_calendar(settings), is_sorted)
    verbs = tuple(
        Unit(f"pairs.{name}.{of[0]}", __name__, "compile_verbs", (name, *of), seconds)
        for of, seconds in ((("schedule",), 17.0), (("commit", "cancel"), 8.0))
    )
    return (*verbs[:1], Unit(f"pairs.{protocol}", __name__, "pair_pointer", (protocol,), 9.0), *verbs[1:])


def compile_verbs(discipline: str, *verbs: str) -> None:
    """Compile them as the function pointers that the loop calls."""
    for verb in verbs:
        function: Any = getattr(DISCIPLINES[discipline], verb)
        function.compile((CANCEL if verb == "cancel" else VERB).signature)


def _nobody(pairs, c, engines, ready, stepping, what, subject, k, now):
    """Of a run without pairs; it is never called."""


@cache
def pair_pointer(protocol: str) -> Any:
    """What happens between the engines, as a function pointer: a run compiles its own protocol, or nothing.

    protocol   see pairs.settings, or "": every engine does both
    """
    function: Callable[..., None] = _PROTOCOLS[protocol].verb if protocol else _nobody
    return function if PLAIN else njit(BETWEEN.signature, cache=True, nogil=True, error_model="numpy")(function)
