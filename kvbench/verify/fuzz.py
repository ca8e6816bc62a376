"""A stateful fuzz: engines of every combination under random load, checked after every step.

An *operation* is one step of an engine, or one event: the arrival of a sequence, or a cancel. A *round* is one
small engine, with rules drawn at random, that runs one random workload to its end. Then everything has to be free
or cached, and the counters have to be the sums of their rows.

A round is known by (seed, combination, number), so a failure is a command. Its requests are left out one by one for
as long as it fails, so the command names few.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..cluster.checked import NOT_WANTED, run_checked
from ..cluster.loop import CONTROL, DONE
from ..cluster.simulation import Simulation
from ..core.errors import KvbenchError, UsageError
from ..core.journal import CANCELLED
from ..core.requests import I64, Requests
from ..costs.axes import Grid, Line
from ..costs.tables import CostTables, Overheads, build_tables
from ..engine.integrity import check_integrity
from ..engine.observe import fault_of
from ..engine.probe import drain_copies
from ..engine.settings import EngineSettings
from ..offline.warm import prepared
from ..scheduler.state_columns import NO_FAULT, NUM_STATES, OUT_OF_KV
from ..scheduler.waiting_order import ORDERS, SHORTEST_PREFILL
from .fuzz_fleets import draw_fleet, with_sessions
from .fuzz_pairs import draw_pair, left_behind, unvisited
from .fuzz_systems import (
    FLEET,
    PD,
    TIERS,
    Combination,
    combinations,
    draw_settings,
    fleet_combinations,
    pair_combinations,
    tier_combinations,
)
from .fuzz_workload import Ask, draw_asks, request_table, some_of
from .sums import missing_sum

MOST_REQUESTS = 40
"""Of a round; the check looks at every sequence."""
SHORT_ROUNDS = 60
LONG_REQUESTS = (300, 900)
"""Of a round of a fleet, of pairs or with tiers after so many short ones: making engines takes longer than running
them, and those that live long see more restarts, and more of what leaves a tier."""
MOST_TURNS = 2_000
"""Turns of the loop for each request and then some; whoever needs more goes round in circles."""
MOST_TRIES = 300
"""To make a failing round smaller."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Failure:
    """What went wrong, where, and the smallest command found that shows it."""

    combination: str
    round: int
    step: int
    what: str
    command: str


@dataclass
class Tally:
    """One combination.

    ended_early   rounds in which the engine itself would have ended: out of memory under mixed or shared chunks
    interrupted   somebody stopped it; the round that it was in is not counted
    visited       of a pair, see cluster.checked; unvisited: states that have to be visited and were not
    """

    combination: str
    rounds: int = 0
    operations: int = 0
    steps: int = 0
    preemptions: int = 0
    evictions: int = 0
    cancels: int = 0
    ended_early: int = 0
    interrupted: bool = False
    visited: I64 | None = None
    unvisited: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class _Outcome:
    """One round. what: what went wrong, "" if nothing."""

    what: str
    step: int
    operations: int
    preemptions: int = 0
    evictions: int = 0
    cancels: int = 0
    ended_early: bool = False
    visited: I64 = field(default_factory=lambda: NOT_WANTED)


@cache
def step_costs() -> CostTables:
    """A step takes a microsecond, and a little for every sequence."""
    line, grid = Line(0, np.zeros(2)), Grid(0, 0, np.zeros((2, 2)), np.zeros((2, 2)))
    return build_tables(line, line, line, grid, grid, Overheads(1000.0, 13.0, 0.0))


def find_combinations(name: str, path: str = "") -> list[Combination]:
    """All, or those whose name begins like this; path: TIERS, FLEET or PD. UsageError when there is none."""
    path = path or name.rpartition("/")[2]
    all_of_them = {TIERS: tier_combinations, FLEET: fleet_combinations, PD: pair_combinations}.get(path, combinations)()
    found = [c for c in all_of_them if c.name.startswith(name)]
    if not found:
        raise UsageError(f"no combination {name}; there are {', '.join(c.name for c in all_of_them)}")
    return found


def fuzz(
    operations: int, seed: int, chosen: Sequence[Combination], progress: Progress = lambda done, total: None
) -> list[Tally]:
    """Each combination in turn, until each has had its share of the operations. A failure ends its combination.

    An interrupt (Ctrl-C) ends all; what was done until then is returned.
    """
    tallies: list[Tally] = []
    for number, c in enumerate(chosen):
        share = operations * (number + 1) // len(chosen) - operations * number // len(chosen)
        done = sum(t.operations for t in tallies)
        tally = Tally(c.name)
        tallies.append(tally)
        try:
            while tally.operations < share and not tally.failures:
                _add(tally, seed, c)
                progress(min(done + tally.operations, operations), operations)
        except KeyboardInterrupt:
            tally.interrupted = True
            break
    return tallies


def _add(tally: Tally, seed: int, c: Combination) -> None:
    outcome = run_round(seed, c, tally.rounds)
    if outcome.what:
        tally.failures.append(_failure(seed, c, tally.rounds, outcome, range(len(_asks(seed, c, tally.rounds)))))
        tally.failures[-1] = _smallest(seed, c, tally.rounds, outcome)
    tally.rounds += 1
    tally.operations += outcome.operations
    tally.steps += outcome.step
    tally.preemptions += outcome.preemptions
    tally.evictions += outcome.evictions
    tally.cancels += outcome.cancels
    tally.ended_early += outcome.ended_early
    if c.path == PD:
        tally.visited = outcome.visited + (0 if tally.visited is None else tally.visited)
        tally.unvisited = unvisited(c, tally.visited)


def repeat(seed: int, c: Combination, number: int, requests: Sequence[int] | None) -> Tally:
    """One round again, perhaps with a choice of its requests. UsageError: it has no such requests."""
    asks = _asks(seed, c, number)
    if requests is not None and not all(0 <= r < len(asks) for r in requests):
        raise UsageError(f"--requests: round {number} of {c.name} has requests 0 to {len(asks) - 1}")
    outcome = run_round(seed, c, number, requests)
    tally = Tally(
        c.name,
        1,
        outcome.operations,
        outcome.step,
        outcome.preemptions,
        outcome.evictions,
        outcome.cancels,
        int(outcome.ended_early),
    )
    if outcome.what:
        chosen = range(len(asks)) if requests is None else sorted(set(requests))
        tally.failures.append(_failure(seed, c, number, outcome, chosen))
    return tally


# ---------------------------------------------------------------- one round


def _generator(seed: int, c: Combination, number: int, what: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(c.name.encode()), number, what])


def _asks(seed: int, c: Combination, number: int) -> list[Ask]:
    settings = draw_settings(_generator(seed, c, number, 0), c, number)
    rng = _generator(seed, c, number, 1)
    is_long = c.path in (FLEET, PD, TIERS) and number >= SHORT_ROUNDS
    count = int(rng.integers(*LONG_REQUESTS if is_long else (8, MOST_REQUESTS)))
    return draw_asks(rng, count, settings.cache.num_blocks * settings.block_tokens)


def run_round(seed: int, c: Combination, number: int, requests: Sequence[int] | None = None) -> _Outcome:
    """Run one round to its end, or to the first thing that is wrong."""
    settings = draw_settings(_generator(seed, c, number, 0), c, number)
    asks = _asks(seed, c, number)
    chosen = range(len(asks)) if requests is None else sorted(set(requests))
    table = request_table(some_of(asks, chosen))
    simulation = _simulation(seed, c, number, settings, table)
    what, early = "", False
    visited = np.zeros((2, NUM_STATES) if c.path == PD else (0, 0), np.int64)
    try:
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            prepared(simulation)
            status, intact = _run(simulation, MOST_TURNS * (len(table) + 10), visited)
        if any(fault_of(e) == OUT_OF_KV for e in simulation.engines) and _promises_too_much(settings):
            early = True  # the engine would end here as well
        else:
            what = _wrong(simulation, status, intact)
    except KvbenchError as error:
        what = str(error)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    return _outcome(simulation, what, early, visited)


def _promises_too_much(settings: EngineSettings) -> bool:
    """Rules of the engine that admit more than fits: decodes beside a chunk; others beside a chunk whose rest nobody
    keeps memory for, while copies to a tier hold what has ended.
    """
    rules = settings.scheduler
    shares = ORDERS.get(rules.policy) == SHORTEST_PREFILL and settings.tiers.on
    return rules.enable_mixed_chunk or shares


def _simulation(seed: int, c: Combination, number: int, settings: EngineSettings, table: Requests) -> Simulation:
    if c.path not in (FLEET, PD):
        return Simulation(table, settings, step_costs())
    if c.path == PD:
        times = -(-len(_asks(seed, c, number)) // MOST_REQUESTS)
        fleet = draw_pair(_generator(seed, c, number, 2), settings, step_costs(), times)
        return Simulation(with_sessions(table), fleet.members[0].settings, step_costs(), fleet)
    fleet = draw_fleet(_generator(seed, c, number, 2), number, settings, step_costs(), len(table))
    return Simulation(with_sessions(table), fleet.members[0].settings, step_costs(), fleet)


def _run(simulation: Simulation, most_turns: int, visited: I64) -> tuple[int, bool]:
    """To the end, checked after every turn."""
    status, intact = run_checked(simulation.world, most_turns, visited)
    while status == CONTROL and intact:
        simulation.act()
        status, intact = run_checked(simulation.world, most_turns, visited)
    return status, intact


def _wrong(simulation: Simulation, status: int, intact: bool) -> str:
    if any(fault_of(e) != NO_FAULT for e in simulation.engines):
        return simulation.fault()
    if not intact:
        _check_all(simulation)
        return "integrity: the compiled check objects to what the plain one passes"
    if status != DONE:
        return f"no end after {simulation.counters().num_steps} steps"
    _check_all(simulation)
    if simulation.settings.tiers.on:
        drain_copies(simulation.engine)
        _check_all(simulation)
    return left_behind(simulation) if simulation.fleet.pairs else missing_sum(simulation)


def _check_all(simulation: Simulation) -> None:
    for engine in simulation.engines:
        check_integrity(engine)


def _outcome(simulation: Simulation, what: str, early: bool, visited: I64) -> _Outcome:
    counters, rows = simulation.counters(), simulation.journal()
    cancels = int((rows.status == CANCELLED).sum())
    arrived = int((rows.arrival_ns <= counters.end_ns).sum())
    operations = counters.num_steps + arrived + cancels
    return _Outcome(
        what,
        counters.num_steps,
        operations,
        counters.preemptions,
        int(counters.evicted_blocks),
        cancels,
        early,
        visited,
    )


# ---------------------------------------------------------------- smaller


def _smallest(seed: int, c: Combination, number: int, outcome: _Outcome) -> Failure:
    """Leave requests out, half of them first and at last single ones, for as long as something is wrong."""
    chosen = list(range(len(_asks(seed, c, number))))
    part, tries = len(chosen) // 2, 0
    while part >= 1 and tries < MOST_TRIES:
        start = 0
        while start < len(chosen) and tries < MOST_TRIES:
            fewer = chosen[:start] + chosen[start + part :]
            tries += 1
            smaller = run_round(seed, c, number, fewer) if fewer else None
            if smaller is not None and smaller.what:
                chosen, outcome = fewer, smaller
            else:
                start += part
        part //= 2
    return _failure(seed, c, number, outcome, chosen)


def _failure(seed: int, c: Combination, number: int, outcome: _Outcome, chosen: Sequence[int]) -> Failure:
    names = ",".join(str(i) for i in chosen)
    command = f"kvbench verify fuzz --seed {seed} --combination {c.name} --round {number} --requests {names}"
    return Failure(c.name, number, outcome.step, outcome.what, command)
