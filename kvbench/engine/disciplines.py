"""The schedulers as verbs, and which of them an engine's rules ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..scheduler import (
    backup,
    copy_on_write,
    overlapped,
    prefill_first,
    prefill_first_calendar,
    reservation,
    shadow,
    static,
    token_budget,
    token_budget_calendar,
)
from ..scheduler.state import Engine
from ..scheduler.state_columns import NO_LINK, PAGED
from ..scheduler.waiting_order import FCFS


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

DISCIPLINES["reservation"] = replace(DISCIPLINES["token_budget"], name="reservation", schedule=reservation.schedule)


def discipline_of(engine: Engine) -> Discipline:
    """The scheduler that the engine's rules ask for."""
    if engine.rules.static:
        return DISCIPLINES["static"]
    if engine.rules.copy_on_write:
        return DISCIPLINES["copy_on_write"]
    if engine.rules.allocation != PAGED:
        return DISCIPLINES["reservation"]
    name = "prefill_first" if engine.rules.prefill_first else "token_budget"
    name += "_calendar" if engine.calendar.active else "_overlapped" if engine.overlap else ""
    return DISCIPLINES[name + "_sorted" if engine.rules.order != FCFS else name]


def watch_of(engine: Engine) -> Callable[[Engine], None]:
    """What looks at each step before it is committed: the shadow in check mode, else nothing."""
    return shadow.watch if engine.shadow.owner.size > 1 else shadow.ignore


def landing_of(engine: Engine) -> Callable[[Engine, int], None]:
    """What an engine does when an operation of its has ended; compiled only where something moves."""
    return backup.nothing_landed if engine.rules.backup_link == NO_LINK else backup.backed_up
