"""The schedulers as verbs, and which of them an engine's rules ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ..core.ahead import Unit
from ..core.jit import PLAIN
from ..scheduler import (
    backup,
    copy_on_write,
    fetching,
    overlapped,
    prefetching,
    prefill_first,
    prefill_first_calendar,
    reservation,
    shadow,
    static,
    step_target,
    token_budget,
    token_budget_calendar,
    write_back,
)
from ..scheduler.state import Engine
from ..scheduler.state_columns import PAGED
from ..scheduler.waiting_order import FCFS, order_of
from .build import runs_calendar
from .settings import EngineSettings, is_prefill_first

VERB = None if PLAIN else types.FunctionType(types.void(Engine.numba_type))
CANCEL = None if PLAIN else types.FunctionType(types.void(Engine.numba_type, types.int64))
"""Types of the pointers that the loop calls."""


@dataclass(frozen=True)
class Discipline:
    """A scheduler as three verbs, each compiled by itself: schedule(e), commit(e), cancel(e, sequence)."""

    name: str
    schedule: Callable[[Engine], None]
    commit: Callable[[Engine], None]
    cancel: Callable[[Engine, int], None]


DISCIPLINES = {
    module.__name__.rpartition(".")[2]: Discipline(
        module.__name__.rpartition(".")[2], module.schedule, module.commit, module.cancel
    )
    for module in (token_budget, token_budget_calendar, prefill_first, prefill_first_calendar, static, copy_on_write)
}
DISCIPLINES |= {
    name + "_overlapped": replace(DISCIPLINES[name], name=name + "_overlapped", commit=commit)
    for name, commit in (
        ("token_budget", overlapped.commit_token_budget),
        ("prefill_first", overlapped.commit_prefill_first),
    )
}
DISCIPLINES |= {
    name + "_sorted": replace(DISCIPLINES[name], name=name + "_sorted", schedule=module.schedule_sorted)
    for name, module in (
        ("prefill_first", prefill_first),
        ("prefill_first_calendar", prefill_first_calendar),
        ("prefill_first_overlapped", prefill_first),
    )
}

DISCIPLINES |= {
    name.replace("token_budget", "step_target"): replace(
        DISCIPLINES[name], name=name.replace("token_budget", "step_target"), schedule=step_target.schedule
    )
    for name in ("token_budget", "token_budget_overlapped")
}
DISCIPLINES["reservation"] = replace(DISCIPLINES["token_budget"], name="reservation", schedule=reservation.schedule)


def discipline_of(engine: Engine) -> Discipline:
    """The scheduler that the engine's rules ask for."""
    rules = engine.rules
    return _find(
        static=rules.static,
        copy_on_write=rules.copy_on_write,
        reserves=rules.allocation != PAGED,
        prefill_first=rules.prefill_first,
        by_time=not rules.prefill_first and (rules.step_target_ms > 0 or rules.equal_chunks),
        calendar=engine.calendar.active,
        overlap=engine.overlap,
        is_sorted=rules.order != FCFS,
    )


def discipline_for(settings: EngineSettings) -> Discipline:
    """That of an engine of these settings, before there is one."""
    prefill_first = is_prefill_first(settings)
    return _find(
        static=settings.batching == "static",
        copy_on_write=settings.cache.copy_on_write,
        reserves=settings.cache.allocation != "paged",
        prefill_first=prefill_first,
        by_time=settings.scheduler.goes_by_time,
        calendar=runs_calendar(settings),
        overlap=settings.overlap,
        is_sorted=prefill_first and order_of(settings.scheduler.policy, settings.cache.kind) != FCFS,
    )


def _find(
    *,
    static: bool,
    copy_on_write: bool,
    reserves: bool,
    prefill_first: bool,
    by_time: bool,
    calendar: bool,
    overlap: bool,
    is_sorted: bool,
) -> Discipline:
    if static:
        return DISCIPLINES["static"]
    if copy_on_write:
        return DISCIPLINES["copy_on_write"]
    if reserves:
        return DISCIPLINES["reservation"]
    name = "prefill_first" if prefill_first else "step_target" if by_time else "token_budget"
    name += "_calendar" if calendar else "_overlapped" if overlap else ""
    return DISCIPLINES[name + "_sorted" if is_sorted else name]


def units(settings: EngineSettings) -> tuple[Unit, ...]:
    """The verbs of a discipline, to be compiled ahead; the longest first. `cancel` calls what `commit` calls."""
    discipline = discipline_for(settings)
    return tuple(
        Unit(_title(getattr(discipline, verbs[0])), __name__, "compile_verbs", (discipline.name, *verbs), seconds)
        for verbs, seconds in ((("schedule",), 17.0), (("commit", "cancel"), 10.0))
    )


def _title(verb: Callable[..., None]) -> str:
    return f"{verb.__module__.rpartition('.')[2]}.{verb.__name__}"


def compile_verbs(discipline: str, *verbs: str) -> None:
    """Compile them as the function pointers that the loop calls."""
    for verb in verbs:
        function: Any = getattr(DISCIPLINES[discipline], verb)
        pointer = CANCEL if verb == "cancel" else VERB
        function.compile(pointer.signature)  # one with another return type would be another entry of Numba's cache


def watch_of(engine: Engine) -> Callable[[Engine], None]:
    """What looks at each step before it is committed: the shadow in check mode, else nothing."""
    return shadow.watch if engine.shadow.owner.size > 1 else shadow.ignore


@dataclass(frozen=True)
class Moving:
    """What an engine does for what is moved beside its steps, each compiled by itself.

    before    before a step is planned. after: when it is committed
    landed    (engine, row) an operation of its has ended
    stretch   (engine, ns) how much longer the planned step takes
    """

    before: Callable[[Engine], None]
    after: Callable[[Engine], None]
    landed: Callable[[Engine, int], None]
    stretch: Callable[[Engine, int], None]


NOTHING_MOVES = Moving(shadow.ignore, shadow.ignore, shadow.ignore_row, shadow.ignore_row)
BACKUP = replace(NOTHING_MOVES, after=backup.write, landed=backup.written)
TIERS = Moving(fetching.prepare, backup.write, fetching.landed, fetching.stretch)
STORAGE = replace(TIERS, before=prefetching.prepare, landed=prefetching.landed)
WRITE_BACK = replace(TIERS, before=write_back.prepare, stretch=write_back.stretch)
WRITE_BACK_STORAGE = replace(WRITE_BACK, before=write_back.prepare_ahead, landed=prefetching.landed)


def moving_of(engine: Engine) -> Moving:
    """Compiled only where something moves."""
    if not engine.rules.tiered:
        return BACKUP if engine.rules.backs_up else NOTHING_MOVES
    if engine.tiers.writes_back:
        return WRITE_BACK_STORAGE if engine.tiers.store_up >= 0 else WRITE_BACK
    return STORAGE if engine.tiers.store_up >= 0 else TIERS
