"""What happens to engines of a fleet: one restarts and has lost everything, is drained, is added, slows down.

The loop stops at the very moment, in the middle of steps too, and Python acts: a run without incidents compiles none of
this. A restarted engine is a new one under the old number; what the old one had counted stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.clients import INCIDENT, announce
from ..core.errors import UsageError
from ..core.jit import entry
from ..core.units import NS_PER_S
from ..costs.tables import CostTables
from ..engine.settings import EngineSettings
from ..pairs.loss import FIRST_AGAIN
from ..scheduler.spent import note_given_up
from ..scheduler.state import Engine
from ..scheduler.state_columns import FAILED, TOKENIZING
from .loss import lose_engine
from .pair_incidents import lose_of_pair, send_again, settle_pair
from .routing import decide
from .world import NO_INCIDENT, World

KINDS = ("restart", "drain", "add", "slow")


@dataclass(frozen=True)
class Incident:
    """Something happens to engine number `engine`: what a router knows as one, so an instance with all its ranks.

    restart   it is gone with its cache and all that it had, and takes requests again down_ns later
    drain     it gets no more requests
    add       it was not there before
    slow      its steps take `factor` times as long from now on
    """

    at_ns: int
    engine: int
    kind: str
    down_ns: int = 0
    factor: float = 1.0


def read_incidents(tables: list[Mapping[str, Any]], num_engines: int) -> tuple[Incident, ...]:
    """[[fleet.event]] tables. UsageError: one that says nothing, or too much, or of an engine that is not there."""
    found = []
    for i, table in enumerate(tables, 1):
        where = f"[[fleet.event]] {i}"
        known: dict[str, Any] = {"at_s": 0.0, "engine": -1, "kind": "", "down_s": 0.0, "factor": 0.0}
        if unknown := [name for name in table if name not in known]:
            raise UsageError(f"{where}: unknown key {unknown[0]}; one of {', '.join(known)}")
        row = known | dict(table)
        if row["kind"] not in KINDS:
            raise UsageError(f"{where}: kind is one of {', '.join(KINDS)}; got {row['kind']!r}")
        for name in ("at_s", "down_s", "factor"):
            if isinstance(row[name], bool) or not isinstance(row[name], int | float) or not 0 <= row[name] < 1e9:
                raise UsageError(f"{where}: {name} is a number, at least 0; got {row[name]!r}")
        if isinstance(row["engine"], bool) or row["engine"] not in range(num_engines):
            raise UsageError(f"{where}: engine is one of 0 to {num_engines - 1}; got {row['engine']!r}")
        for name, kind in (("down_s", "restart"), ("factor", "slow")):
            if name in table and row["kind"] != kind:
                raise UsageError(f"{where}: {name} has no effect on kind = {row['kind']}; it belongs to {kind}")
        if row["kind"] == "slow" and row["factor"] <= 0:
            raise UsageError(f"{where}: slow needs factor, the times that a step takes as long: 2.0")
        at_ns, down_ns = (round(row[name] * NS_PER_S) for name in ("at_s", "down_s"))
        found.append(Incident(at_ns, row["engine"], row["kind"], down_ns, float(row["factor"])))
    return tuple(found)


def check_incidents(incidents: tuple[Incident, ...], settings: EngineSettings) -> None:
    """UsageError: an engine that cannot be lost."""
    if any(i.kind == "restart" for i in incidents):
        for idle, what in (
            (settings.batching == "static", "batching = static"),
            (settings.cache.copy_on_write, "cache.copy_on_write"),
            (settings.cache.allocation != "paged", f"cache.allocation = {settings.cache.allocation}"),
            (settings.backup_ns_per_block > 0, "cache.backup"),
            (settings.tiers.on, "tiers.*"),  # its copies under way would land in the engine that takes its place
        ):
            if idle:
                raise UsageError(
                    f"[[fleet.event]]: an engine with {what} cannot restart here; leave one of the two out"
                )


class Incidents:
    """Those of a run, in the order in which the clients' events name them."""

    def __init__(self, incidents: tuple[Incident, ...], again: bool, world: World, ranks: int = 1) -> None:
        """again: what an engine loses is sent again, else it fails. ranks: engines of an instance."""
        self._again, self._ranks = again, ranks
        self._world: Any = world  # its lists have types only in jitted code
        back = [Incident(i.at_ns + i.down_ns, i.engine, "add") for i in incidents if i.kind == "restart"]
        self._all = (*incidents, *back)
        for index, incident in enumerate(self._all):
            announce(world.clients, incident.at_ns, INCIDENT, index)
        first: dict[int, str] = {}
        for incident in incidents:
            first.setdefault(incident.engine, incident.kind)
        for engine, kind in first.items():
            if kind == "add":
                self._takes(engine, 0)

    def _takes(self, engine: int, whether: int) -> None:
        """An engine takes requests or not; of decode engines the pairs know, of all others the router."""
        world = self._world
        if world.paired and engine >= world.pairs.num_prefill:
            world.pairs.accepts[engine] = whether
        else:
            world.router.accepts[engine] = whether

    def carry_out(self, engines: list[Engine]) -> Incident | None:
        """It happens now. Of a restart the caller puts a new engine in the place of the old one: see replaced_by.

        None: it was a sequence of a pair that is sent again.
        """
        world = self._world
        number = _taken(world)
        if number <= FIRST_AGAIN:
            send_again(world, FIRST_AGAIN - number)
            return None
        incident = self._all[number]
        if incident.kind == "add":
            self._takes(incident.engine, 1)
        elif incident.kind in ("drain", "restart"):
            self._takes(incident.engine, 0)
        else:
            first = incident.engine * self._ranks
            for engine in engines[first : first + self._ranks]:
                _set_costs(engine, slowed(engine.costs, incident.factor))
        return incident

    def replaced_by(self, new: Mapping[int, Engine], now_ns: int) -> None:
        """Engines, of one instance, have lost what they had, and others that are empty stand in their places."""
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            lose = lose_of_pair if self._world.paired else lose_engine
            lost = np.concatenate([lose(self._world, number, now_ns, self._again) for number in new])
            for number, engine in new.items():
                _put(self._world, number, engine, now_ns)
            for seq in lost[lost >= 0]:
                _send_again(self._world, seq, now_ns)
            if self._world.paired:
                settle_pair(self._world, now_ns)


def slowed(tables: CostTables, factor: float) -> CostTables:
    """Tables of a device on which everything takes `factor` times as long; the host's part stays."""
    values = tables.read()
    times = [n for n in values if (n.endswith("_ns") or n == "copy_ns_per_byte") and not n.startswith("host_")]
    return CostTables(*(value * factor if name in times else value for name, value in values.items()))


@entry
def _taken(w):
    """The number of what has happened."""
    index = w.incident
    w.incident = NO_INCIDENT
    return index


@entry
def _set_costs(e, costs):
    e.costs = costs


@entry
def _put(w, number, engine, now):
    """Another engine in the place of one that has lost all: who ended there ended here."""
    engine.now = now
    engine.num_done = w.engines[number].num_done
    if w.paired:
        engine.side.epoch = w.engines[number].side.epoch + 1
    w.engines[number] = engine


@entry
def _send_again(w, seq, now):
    """The router decides anew on a sequence that its engine has lost; a prompt that is on its way is tokenised once."""
    q = w.clients.seqs
    q.state[seq] = TOKENIZING
    decide(w, seq, now)
    if q.state[seq] == FAILED:  # nobody takes it
        note_given_up(q.spent, seq, now)
