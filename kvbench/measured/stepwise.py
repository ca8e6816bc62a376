"""Steps that a driver runs itself: the measured clock's half of the loop (cluster.loop stops where a step is planned).

complete  the step has been launched: its host time is known, its device time too, or not yet under overlap
launched  the same of one engine among several: it lands when its time has come
landed    overlap: the step that was launched last has ended, so long after it began
wait      overlap: nothing could be planned before the step that runs has ended
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import njit, types

from ..cluster.loop import advance, end_operation, land_step
from ..cluster.world import World
from ..core.jit import PLAIN, entry, inline
from ..costs.tables import HOST
from ..engine.step import STEP_USED, STEP_WASTE, execute, lag, lengthen, run_for
from ..memory import links
from ..memory.operations import (
    BACKUP,
    DRAINING,
    LOAD,
    OP_KIND,
    OP_OWNER,
    OP_STATE,
    OP_STORE_COUNT,
    OP_STORE_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
)
from ..scheduler import write_back
from ..scheduler.spent import scaled
from ..scheduler.state import Engine
from ..tiers import host, paths
from ..tiers.state import PREFETCH_END, PREFETCH_NEXT, TRUNCATED_BLOCKS


class Now(NamedTuple):
    """Scalars of an engine that the driver reads at each step."""

    now: int
    num_plan: int
    num_copies: int
    num_forks: int
    num_flight: int
    num_done: int
    evicted: int
    operations: int
    """Opened so far."""


@entry
def _read(e):
    return (
        e.now,
        e.num_plan,
        e.num_copies,
        e.num_forks,
        e.num_flight,
        e.num_done,
        e.pool.evicted,
        e.operations.begun,
    )


def _complete(w, on_host, device):
    """The planned step took so long; what the host has results of is committed."""
    e = w.engines[w.at]
    _run(w, e, on_host, device)
    land_step(w, e)


def _launched(w, on_host, device):
    """The same, and it lands in its turn: other engines have theirs before it."""
    e = w.engines[w.at]
    _run(w, e, on_host, device)
    w.ready[w.at] = e.now
    w.stepping[w.at] = 1


@inline
def _run(w, e, on_host, device):
    execute(e)  # counts its rows
    e.began = e.now
    if not e.overlap:
        e.step_prefill_ns = scaled(e.step_prefill_ns, e.step_model_ns, on_host + device)
    if e.rules.tiered:
        e.resources[HOST] = on_host
        stretch = w.stretches[w.at]
        stretch(e, on_host + device)
        device += lengthen(e)
    run_for(e, on_host, device, e.pool.evicted - e.evicted_before)
    w.watches[w.at](e)


def _wait(w):
    """The step that ran has ended, and nothing was planned beside it."""
    e = w.engines[w.at]
    lag(e)
    land_step(w, e)


def _end_next(w):
    """What moves and is there next has ended."""
    return end_operation(w)


@entry
def took(e, row, ns):
    """A copy that moves over a link took so long."""
    t, ops = e.tiers, e.operations
    links.lengthen(e.links, ops, row, ns)
    if ops.rows[row, OP_KIND] == LOAD:
        t.load_end = max(t.load_end, links.expected_end(e.links, ops, row))
    if ops.rows[row, OP_KIND] == BACKUP and t.writes_back:
        t.write_end = max(t.write_end, links.expected_end(e.links, ops, row))


@entry
def cut_short(e, row, count):
    """Of a prefetch only the first `count` pages are there, and it asks for no more."""
    t, rows, blocks = e.tiers, e.operations.rows, e.operations.blocks
    missing, seq = rows[row, OP_TIER_COUNT] - count, rows[row, OP_OWNER]
    paths.withdraw(t.host, blocks, rows[row, OP_TIER_FIRST] + count, missing)
    paths.unpin(t.store, blocks, rows[row, OP_STORE_FIRST] + count, missing)
    rows[row, OP_TIER_COUNT] = rows[row, OP_STORE_COUNT] = count
    t.counts[TRUNCATED_BLOCKS] += missing + t.of_seq[seq, PREFETCH_END] - t.of_seq[seq, PREFETCH_NEXT]
    t.of_seq[seq, PREFETCH_END] = t.of_seq[seq, PREFETCH_NEXT]
    if count == 0:
        rows[row, OP_STATE] = DRAINING  # it will have failed


@entry
def names_of(e, seq, stop):
    """The names by which the host knows the first blocks of a sequence."""
    host.name_blocks(e.tiers.host, e.block_keys, seq, e.seqs.namespace[seq], stop)
    return e.tiers.host.names[:stop].copy()


@entry
def write_evicted(e):
    """Write-back: what the plan has evicted is to be copied before the step overwrites it."""
    write_back.write(e)


@entry
def landed(e, device):
    """Under overlap: the step that was launched last took `device` ns; it had been counted with none."""
    e.flight_prefill_ns = scaled(e.flight_prefill_ns, e.step_model_ns, device)
    row = e.journal.steps[e.journal.num_steps - 1]
    end = e.device_end + device
    weight = end // 1000 - e.device_end // 1000
    e.used_us += row[STEP_USED] * weight
    e.waste_us += row[STEP_WASTE] * weight
    e.table_us += e.table_blocks * weight
    e.busy_us += weight
    e.busy_ns += device
    e.device_ns += device
    row[1] += device
    e.device_end = end


@cache
def _compiled(name: str) -> Callable[..., Any]:
    verbs = {"complete": _complete, "launched": _launched, "wait": _wait, "end_next": _end_next}
    function: Any = verbs[name]
    if PLAIN:
        return function
    world, i8 = World.numba_type, types.int64
    timed = types.void(world, i8, i8)
    signatures = {"complete": timed, "launched": timed, "wait": types.void(world), "end_next": i8(world)}
    signature = signatures[name]
    return njit(signature, cache=True, nogil=True, error_model="numpy")(function)


def now(engine: Engine) -> Now:
    """See Now."""
    return Now(*_read(engine))


class Stepper:
    """The verbs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def plan(self, until_ns: int) -> int:
        """Go on to the next step. Returns PLANNED, MUST_WAIT (for the step that runs), or what `advance` does."""
        return advance(self._world, until_ns, 1, measured=True)

    def complete(self, host: int, device: int) -> None:
        """host, device: ns (device 0 under overlap, see landed)."""
        _compiled("complete")(self._world, host, device)

    def launched(self, host: int, device: int) -> None:
        """Of several engines: see _launched."""
        _compiled("launched")(self._world, host, device)

    def wait(self) -> None:
        """See _wait."""
        _compiled("wait")(self._world)

    def end_next(self) -> int:
        """The operation that ends next has ended. Returns its row, which stays until its engines have heard."""
        return int(_compiled("end_next")(self._world))
