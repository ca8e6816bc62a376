"""Single steps of an engine from Python: for recordings of real engines, references and the measured clock."""

from __future__ import annotations

from ..core.jit import entry
from ..core.units import NEVER_NS
from ..memory.links import end_next
from ..memory.operations import NO_ROW
from ..scheduler import calendar
from ..scheduler.lifecycle import accept
from ..scheduler.mail import is_unread, take
from ..scheduler.queues import take_ended
from ..scheduler.state import Engine
from ..scheduler.state_columns import NEXT, NO_SEQ, NO_SLOT, ROUTED
from . import step
from .disciplines import discipline_of, moving_of


@entry
def set_now(e, now):
    """Move the clock."""
    e.now = now


@entry
def arrive(e, seq, arrival_ns):
    """A sequence arrives now; arrival_ns breaks ties of urgency."""
    q = e.seqs
    q.arrival[seq] = q.queued[seq] = arrival_ns
    q.engine[seq] = e.number
    q.state[seq] = ROUTED
    accept(e, seq)


@entry
def _next_landed(e):
    """The next operation that has ended, or will if nothing else comes; NO_ROW: nothing moves."""
    if is_unread(e.landed):
        return take(e.landed)[1]
    if e.links.next_ns == NEVER_NS:
        return NO_ROW
    e.now = max(e.now, e.links.next_ns)
    return end_next(e.links, e.operations)


def drain_copies(engine: Engine) -> None:
    """Wait until everything beside the steps of a lone engine is done."""
    landed = moving_of(engine).landed
    row = _next_landed(engine)
    while row != NO_ROW:
        landed(engine, row)
        row = _next_landed(engine)


@entry
def settle(e):
    """What the engine tells of is heard by nobody."""
    while e.ended_head != NO_SEQ:
        take_ended(e)


@entry
def settle_slots(e):
    """Bring the counters of every slot up to date (calendar)."""
    slot = e.slots.head
    while slot != NO_SLOT:
        calendar.settle(e.calendar, e.slots.rec, slot)
        slot = e.slots.rec[slot, NEXT]


@entry
def idle(e):
    """What the loop does when there is nothing to do."""
    if step.is_idle(e):
        step.go_idle(e)


def schedule(e: Engine) -> None:
    """Fill the plan of the step that starts now."""
    discipline_of(e).schedule(e)


def commit(e: Engine) -> None:
    """The planned step has been executed."""
    discipline_of(e).commit(e)


def cancel(e: Engine, seq: int) -> None:
    """Cancel a sequence that waits or runs."""
    discipline_of(e).cancel(e, seq)
    settle(e)
