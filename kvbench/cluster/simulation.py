"""The Python face of an engine: run it in slices, read its journal and its counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..client.clients import FLUSH, REPORT, announce, make_clients
from ..core import journal as core_journal
from ..core.ahead import Unit, begin
from ..core.errors import KvbenchError, UsageError
from ..core.jit import still
from ..core.journal import STEP_COLUMNS, Counters
from ..core.requests import I64, Requests
from ..core.units import NEVER_NS
from ..costs.tables import CostTables
from ..engine.attribution import parts_of
from ..engine.build import build_engine, share
from ..engine.disciplines import units
from ..engine.integrity import check_integrity
from ..engine.probe import settle_slots
from ..engine.settings import EngineSettings
from ..metrics.pairs import PairTimes
from ..pairs.disciplines import units as side_units
from ..prefix.keys import BlockKeys
from ..routing.settings import belief_of
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    CANCELLED,
    FAILED,
    FINISHED,
    GENERATED,
    REFUSED,
    TIMED_OUT,
)
from .admissions import Admissions, admissions_of
from .counters import counters_of
from .fault_words import words_of
from .fleet import Fleet, Member, routing_of
from .flush import Flushes
from .incidents import Incidents
from .kv_in_flight import check_transfers
from .loop import CONTROL, DONE, FAULT, PAUSED, UNIT, advance
from .outage import Outage
from .paired import announce_faults, decode_columns, joined, make_pairs_of, pair_times, taken_by, with_decode_queue
from .release import release
from .tiers import fetches, link_names, tier_columns
from .world import NO_INCIDENT, make_world

_SLICE_STEPS = 20_000

_STATUS_OF_STATE = {
    FINISHED: core_journal.FINISHED,
    CANCELLED: core_journal.CANCELLED,
    REFUSED: core_journal.REFUSED,
    FAILED: core_journal.FAILED,
    TIMED_OUT: core_journal.TIMED_OUT,
}


class Simulation:
    """Clients and engines on the modelled clock.

    >>> simulation = Simulation(requests, settings, tables)      # doctest: +SKIP
    >>> simulation.run()
    >>> simulation.journal().first_token_ns
    """

    slice_steps = _SLICE_STEPS
    """Steps between two calls of `progress`."""

    def __init__(
        self, requests: Requests, settings: EngineSettings, tables: CostTables, fleet: Fleet | None = None
    ) -> None:
        """fleet: several engines; settings and tables are then those of the first."""
        self.requests = requests
        self.settings = settings
        self.fleet = fleet or Fleet((Member(settings, tables),))
        self.fleet.check()
        helpers = begin((*self._units(), UNIT))
        self.arrivals = taken_by(requests, self.fleet)
        self._shared = shared = share(requests, settings, taken=self.arrivals)
        self._pairs = pairs = (
            make_pairs_of(self.fleet.pairs, shared, settings, self.fleet.sends_again) if self.fleet.pairs else None
        )
        self.engines: list[Engine] = [self._new_engine(number) for number in range(len(self.fleet.members))]
        self._retired: list[tuple[Engine, list[int]]] = []  # with their rows_before
        self.seqs = shared.seqs
        clients = make_clients(
            shared.requests,
            shared.seqs,
            concurrency=settings.concurrency * max(settings.beam.width, 1),
            closed_loop=settings.closed_loop,
        )
        helpers.finish()
        routing = routing_of(self.fleet, shared.requests, shared)
        self.world = make_world(clients, self.engines, routing, pairs, self._protocol, self.fleet.ranks)
        states = (settings.cache.state, settings.tiers.state, settings.tiers.store.state)
        self._is_prepared = all(state == "cold" for state in states)
        self._flushes = Flushes(requests, settings)
        if self.fleet.pairs:
            announce_faults(self.fleet.pairs, clients)
        if self.world.refresh_ns > 0:
            announce(clients, 0, REPORT, 0)
        for index, time_ns in enumerate(self._flushes.times):
            announce(clients, time_ns, FLUSH, index)
        self._outage = Outage(settings)
        for index, time_ns in enumerate(self._outage.times, len(self._flushes.times)):
            announce(clients, time_ns, FLUSH, index)
        self._incidents = Incidents(self.fleet.incidents, self.fleet.sends_again, self.world, self.fleet.ranks)
        self._reached_time = False
        self._rows_before: list[list[int]] = [[] for _ in self.engines]  # of gaps, before each phase that has begun
        self.num_sequences = requests.num_sequences

    @property
    def _protocol(self) -> str:
        return self.fleet.pairs.protocol if self.fleet.pairs else ""

    def _units(self) -> tuple[Unit, ...]:
        """Verbs of all engines, to be compiled ahead."""
        of_engines = [units(of) if of.role == "both" else side_units(of, self._protocol) for of in self.fleet.settings]
        return tuple({unit.name: unit for of in of_engines for unit in of}.values())

    def _new_engine(self, number: int) -> Engine:
        """One that is empty."""
        member, router = self.fleet.members[number], self.fleet.router
        role, shared, pairs = member.settings.role, self._shared, self._pairs
        is_told = router is not None and role != "decode"  # of two sides a router knows the first
        return build_engine(
            replace(shared, seqs=pairs.legs) if pairs and role == "prefill" else shared,
            member.settings,
            member.tables,
            number=number,
            tells_first=is_told,
            tells_blocks=is_told and router is not None and belief_of(router) == "events",
        )

    @property
    def engine(self) -> Engine:
        """The first engine."""
        return self.engines[0]

    def cache_prepared(self, leading: I64) -> None:
        """The cache is in the state of the settings: it has seen these leading blocks of each request, (requests,)."""
        self._is_prepared = True

    def advance(self, until_ns: int = NEVER_NS, max_steps: int = NEVER_NS) -> bool:
        """Run until a time (no step starts at or after it) or for some steps. True when all is done."""
        if not self._is_prepared:  # a cold number must not pass for a warm one
            raise KvbenchError(f"cache.state is {self.settings.cache.state} and nobody has prepared the cache")
        if not self.settings.check:
            return self._advance(until_ns, max_steps)
        for _ in range(min(max_steps, 1 << 40)):
            done = self._advance(until_ns, 1)
            self._check_landed()
            if done or self._reached_time:
                return done
        return False

    def _advance(self, until_ns: int, max_steps: int) -> bool:
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            status = self._turn(until_ns, max_steps)
            while status == CONTROL:
                self.act()
                status = self._turn(until_ns, max_steps)
        if status == FAULT:
            raise KvbenchError(self.fault())
        self._check_choices()
        self._reached_time = status == PAUSED
        return status == DONE

    def _check_choices(self) -> None:
        """UsageError: a user's router did not choose an engine that takes requests."""
        router = self.fleet.router
        if router is not None and router.is_own_file and (seq := int(self.world.router.bad_choice)) >= 0:
            raise UsageError(
                f"router.policy = {router.policy} returned no engine that takes requests for request "
                f"{int(self.engine.seqs.request[seq])}; return a number whose accepts is 1"
            )

    def _turn(self, until_ns: int, max_steps: int) -> int:
        """The loop, until it has to return."""
        return advance(self.world, until_ns, max_steps)

    def act(self) -> None:
        """What the loop leaves to Python, mostly on the engine that has its turn."""
        if self.world.incident != NO_INCIDENT:
            self._have_incident()
            return
        number = int(self.world.at)
        kind, subject = divmod(int(self.engines[number].control), 1 << 32)
        if kind == FLUSH and subject >= len(self._flushes.times):
            self._outage.carry_out(self.engines[number], subject - len(self._flushes.times))
        elif kind == FLUSH:
            self._flushes.carry_out(self.engines[number], subject)
        else:
            self._rows_before[number].append(int(self.engines[number].journal.rows))

    def _have_incident(self) -> None:
        incident = self._incidents.carry_out(self.engines)
        if incident is not None and incident.kind == "restart":
            numbers = self.fleet.engines_of(incident.engine)
            new = {number: self._new_engine(number) for number in numbers}
            for number in numbers:
                self._retired.append((self.engines[number], self._rows_before[number]))
            self._incidents.replaced_by(new, incident.at_ns)
            for number in numbers:
                self.engines[number] = new[number]
                self._rows_before[number] = [0] * len(self._rows_before[number])

    def _check_landed(self) -> None:
        stepping = self.world.stepping
        for engine in self.engines:
            if not stepping[engine.number]:
                check_integrity(engine)
        if self.fleet.pairs:
            check_transfers(self.engines, self.world.operations)

    def run(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Run to the end in slices, calling progress(sequences done, all) between them."""
        done = False
        while not done:
            done = self.advance(NEVER_NS, self.slice_steps)
            if progress is not None:
                progress(self.num_done // max(self.settings.beam.width, 1), self.num_sequences)
        self._check_landed()
        return True

    @property
    def num_done(self) -> int:
        """Sequences that have ended; with beams, each beam."""
        return int(self.world.clients.num_done)

    def _phase_of_gaps(self) -> NDArray[np.int64] | None:
        """(rows,) where phases are left out of results. A gap belongs to the phase in whose time its token came."""
        if not self.requests.excluded:
            return None
        phases = []
        for engine, begun in (*self._retired, *zip(self.engines, self._rows_before, strict=True)):
            rows = np.arange(int(engine.journal.rows))
            phases.append(np.maximum(np.searchsorted(begun, rows, side="right") - 1, 0))
        return np.concatenate(phases)

    def fault(self) -> str:
        """What made the loop stop, in words."""
        return words_of(self.engines)

    def journal(self) -> core_journal.Journal:
        """Rows of everything so far; sequences that have not ended have status PARTIAL."""
        q = self.seqs.read()
        status = np.full(q["state"].size, core_journal.PARTIAL, np.int64)
        for state, name in _STATUS_OF_STATE.items():
            status[q["state"] == state] = name
        generated = q["generated"].copy()
        for e in self.engines:
            settle_slots(e)
        engines = [still(e) for e in self.engines]
        for e in engines:
            running = np.flatnonzero((q["slot"] >= 0) & (q["engine"] == e.number))
            generated[running] = e.slots.rec[q["slot"][running], GENERATED]
        sample = np.arange(status.size) - q["first"][q["request"]]
        heard = sample == 0 if self.settings.beam.width else slice(None)  # beams give one result
        lives = [*(still(old) for old, _ in self._retired), *engines]
        journals = [e.journal.read() for e in lives]
        step_engine = np.repeat([e.number for e in lives], [j["num_steps"] * bool(j["steps"].size) for j in journals])
        if self._pairs is not None:
            q = joined(q, self._pairs)
        parts = parts_of(q, status, self.fleet.settings, self._waits(), fetches(self.engines, q["engine"]))
        if self._pairs is not None:
            parts = with_decode_queue(parts, self.seqs.read(), self._pairs)
        return core_journal.Journal(
            request_index=q["request"][heard],
            sample=sample[heard],
            status=status[heard],
            arrival_ns=q["arrival"][heard],
            queued_ns=q["queued"][heard],
            scheduled_ns=q["scheduled"][heard],
            first_token_ns=q["first_token"][heard],
            finish_ns=q["finish"][heard],
            cached_tokens=q["cached"][heard],
            output_tokens=generated[heard],
            recomputed_tokens=q["recomputed"][heard],
            preemptions=q["preemptions"][heard],
            itl_gap_ns=np.concatenate([j["gap"][: j["rows"]] for j in journals]),
            itl_count=np.concatenate([j["count"][: j["rows"]] for j in journals]),
            steps=np.concatenate([j["steps"][: j["num_steps"]] for j in journals]),
            parts_ns=parts.ns[heard],
            tokenize_ns=parts.before_queue[heard],
            itl_phase=self._phase_of_gaps(),
            part_names=parts.names,
            step_engine=step_engine if len(self.engines) > 1 else np.zeros(0, np.int64),
            moves=self.world.links.log[: self.world.links.num_log],
            link_names=link_names(self.engines) if self.world.links.num_log else (),
            columns={name: values[heard] for name, values in self._columns(q).items()},
        )

    def _waits(self) -> dict[str, I64]:
        """Parts of the time that only some runs have."""
        if self.fleet.router is None:
            return {}
        q, route_ns = self.seqs, self.world.route_ns
        decided = (q.engine >= 0) & (q.queued >= 0)  # else it was cancelled, or its engine died, on the way there
        return {"route": np.where(decided, route_ns, 0)}

    def _columns(self, sequences: dict[str, I64]) -> dict[str, I64]:
        """What only a fleet, or engines with tiers, have for each sequence."""
        if self._pairs is not None:
            return decode_columns(sequences, self._pairs, self.seqs.scheduled.copy())
        columns = tier_columns(self.engines, sequences["engine"], sequences["cached"])
        if self.fleet.router is None:
            return columns
        route_ns = np.where(sequences["engine"] >= 0, self.world.route_ns, core_journal.NEVER)
        return {
            "engine": self._port_of(sequences["engine"]),
            "predicted_cached_tokens": self.world.predicted.copy(),
            "best_predicted_tokens": self.world.best.copy(),
            "route_ns": route_ns,
            **columns,
        }

    def _port_of(self, engine: I64) -> I64:
        """What the router knows an engine as; NEVER where there is none."""
        return np.where(engine >= 0, engine // self.fleet.ranks, core_journal.NEVER)

    def release(self) -> None:
        """What only the loop has needed goes back to the system: neither it nor a journal can be had afterwards."""
        release(self.world)

    def admissions(self) -> Admissions:
        """Sequences that were admitted so far."""
        return admissions_of(self.engine)

    def block_keys(self) -> BlockKeys:
        """Keys of the whole blocks of every sequence."""
        return self.engine.block_keys

    def counters(self) -> Counters:
        """Totals so far, of all engines."""
        return counters_of(self.lives(), self.settings, int(self.world.now))

    def pair_times(self) -> PairTimes:
        """Times between prefill and decode engines, where there are such."""
        assert self._pairs is not None
        return pair_times(self.seqs.read(), self._pairs)

    def counters_by_engine(self) -> list[Counters]:
        """The same, of each that a router chooses between: an instance is the sum of its ranks."""
        now, lives = int(self.world.now), self.lives()
        of_each = [[lives[k] for k in self.fleet.engines_of(i)] for i in range(len(self.fleet.instances))]
        members = zip(of_each, self.fleet.instances, strict=True)
        return [counters_of(own, member.settings, now) for own, member in members]

    def lives(self) -> list[list[Engine]]:
        """Of each engine, the present one last."""
        return [[*(old for old, _ in self._retired if old.number == e.number), e] for e in self.engines]

    def lost_step_tokens(self) -> int:
        """Tokens of the last step of every engine that was lost, which may have been under way."""
        columns = [STEP_COLUMNS.index(name) for name in ("prefill_tokens", "decode_seqs")]
        journals = [old.journal.read() for old, _ in self._retired]
        return sum(int(j["steps"][j["num_steps"] - 1, columns].sum()) for j in journals if j["num_steps"] > 0)

    def first_keys(self) -> I64:
        """(sequences,) the first block of each in its namespace, by a number; NEVER: it fills no block."""
        keys, q = self.engine.block_keys, self.engine.seqs
        has_one = np.diff(keys.offset) > 0
        first = np.full(has_one.size, core_journal.NEVER)
        pair = np.stack([q.namespace[has_one], keys.key[keys.offset[:-1][has_one]]])
        first[has_one] = np.unique(pair, axis=1, return_inverse=True)[1].reshape(-1)
        return first
