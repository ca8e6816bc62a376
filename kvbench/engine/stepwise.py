"""The event loop cut at the step, for a driver that runs the step itself: the measured clock.

    plan      what has happened by now is delivered, then a step is planned
    complete  the step has been launched: its host time is known, its device time too, or not yet under overlap
    landed    overlap: the step that was launched last has ended, so long after it began
    wait      overlap: nothing could be planned before the step that runs has ended

The modelled clock runs the same verbs inside one compiled loop (engine.loop).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import njit, types

from ..core.jit import PLAIN, entry
from ..scheduler.spent import scaled
from ..scheduler.state import Engine
from . import loop

# What `plan` returns besides loop.DONE, PAUSED and FAULT.
PLANNED, MUST_WAIT, EMPTY = 16, 17, 18


class Now(NamedTuple):
    """Scalars of an engine that the driver reads at each step."""

    now: int
    num_plan: int
    num_copies: int
    num_forks: int
    num_flight: int
    num_done: int
    evicted: int
    copies_head: int
    copies_tail: int
    copies_moved: int


@entry
def _read(e):
    ops = e.backups
    return (
        e.now,
        e.num_plan,
        e.num_copies,
        e.num_forks,
        e.num_flight,
        e.num_done,
        e.pool.evicted,
        ops.head,
        ops.tail,
        ops.moved,
    )


def _plan(e, until_ns, schedule, cancel):
    """Deliver events, jump over idle time, plan a step.

    returns  PLANNED, MUST_WAIT (for the step that runs), EMPTY (call again), loop.DONE, PAUSED or FAULT
    """
    status = loop.until_work(e, until_ns, cancel)
    while status == loop.JUMPED:
        status = loop.until_work(e, until_ns, cancel)
    if status != loop.WORK:
        return status
    loop.make_space(e)
    schedule(e)
    if e.num_plan > 0:
        e.empty_plans = 0
        return PLANNED
    if e.num_flight > 0:
        return MUST_WAIT
    loop.note_empty_plan(e)
    return EMPTY


def _complete(e, host, device, evicted, commit, watch):
    """The planned step took so long; what the host has results of is committed."""
    loop.execute(e)  # counts its rows
    before = e.now
    if not e.overlap:
        e.step_prefill_ns = scaled(e.step_prefill_ns, e.step_model_ns, host + device)
    loop.run_for(e, host, device, evicted)
    watch(e)
    loop.apply_results(e, before, commit)


def _wait(e, commit):
    """The step that ran has ended, and nothing was planned beside it."""
    before = e.now
    e.now = max(e.now, e.device_end)
    loop.apply_results(e, before, commit)


@entry
def landed(e, device):
    """Under overlap: the step that was launched last took `device` ns; it had been counted with none."""
    e.flight_prefill_ns = scaled(e.flight_prefill_ns, e.step_model_ns, device)
    row = e.journal.steps[e.journal.num_steps - 1]
    end = e.device_end + device
    weight = end // 1000 - e.device_end // 1000
    e.used_us += row[loop.STEP_USED] * weight
    e.waste_us += row[loop.STEP_WASTE] * weight
    e.table_us += e.table_blocks * weight
    e.busy_us += weight
    e.busy_ns += device
    e.device_ns += device
    row[1] += device
    e.device_end = end


@cache
def _compiled(name: str) -> Callable[..., int]:
    """The verbs take the scheduler as function pointers, so each is compiled once."""
    function: Any = {"plan": _plan, "complete": _complete, "wait": _wait}[name]
    if PLAIN:
        return function
    engine, i8 = Engine.numba_type, types.int64
    verb, cancel = types.FunctionType(types.void(engine)), types.FunctionType(types.void(engine, types.int64))
    signature = {
        "plan": i8(engine, i8, verb, cancel),
        "complete": types.void(engine, i8, i8, i8, verb, verb),
        "wait": types.void(engine, verb),
    }[name]
    return njit(signature, cache=True, nogil=True, error_model="numpy")(function)


class Stepper:
    """The verbs of one engine, with its scheduler and its watch; both are found once."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._discipline, self._watch = engine, loop.discipline_of(engine), loop.watch_of(engine)

    def plan(self, until_ns: int) -> int:
        """See _plan."""
        return _compiled("plan")(self._engine, until_ns, self._discipline.schedule, self._discipline.cancel)

    def complete(self, host: int, device: int, evicted: int) -> None:
        """host, device: ns (device 0 under overlap, see landed). evicted: blocks evicted while it was planned."""
        _compiled("complete")(self._engine, host, device, evicted, self._discipline.commit, self._watch)

    def wait(self) -> None:
        """See _wait."""
        _compiled("wait")(self._engine, self._discipline.commit)

    def now(self) -> Now:
        return Now(*_read(self._engine))
