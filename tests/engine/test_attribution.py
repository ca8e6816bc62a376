"""Where the time of each sequence went, against a plain observer that looks at every sequence in every step."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from kvbench.cluster import world
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import FINISHED, PARTS
from kvbench.costs.tables import HOST
from kvbench.engine.disciplines import Discipline
from kvbench.engine.settings import EngineSettings
from kvbench.metrics.latency import sequence_times
from kvbench.scheduler.state_columns import (
    FIRST_TERMINAL,
    GENERATED,
    IN_PREFILL,
    PHASE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
)

from ..reference.cost import Step
from ..reference.engine import Ask
from . import systems
from .compare import as_lists, finish, small_tables
from .test_runs import SYSTEMS as RUNS
from .test_runs import mixed_asks
from .workloads import request_table

LONG = "KVBENCH_LONG" in os.environ
JITTED = os.environ.get("KVBENCH_TEST_JIT") == "1"

pytestmark = pytest.mark.skipif(JITTED, reason="the observer hooks into plain code; tests of both paths run compiled")


class Observer:
    """Adds up, in every step and for every sequence, what the step was to it.

    mode   sequence -> "prefill", "decode" or "again", while it is in the hands of the scheduler
    """

    def __init__(self, system: EngineSettings) -> None:
        self.system = system
        self.mode: dict[int, str] = {}
        self.lost: dict[int, int] = {}
        self.sums: dict[tuple[int, str], int] = {}
        self.device: tuple[list[int], int | None] | None = None  # overlap: what the step on the device computes

    def add(self, seq: int, part: str, ns: int) -> None:
        self.sums[seq, part] = self.sums.get((seq, part), 0) + ns

    def hook(self, discipline: Discipline) -> Discipline:
        def schedule(e):
            self.start, before = e.now, e.seqs.preemptions.copy()
            discipline.schedule(e)
            for seq in np.flatnonzero(e.seqs.preemptions > before).tolist():
                self.mode[seq] = "again"
                self.lost.setdefault(seq, e.now)
            for seq in np.flatnonzero((e.seqs.slot >= 0) & (e.seqs.state < FIRST_TERMINAL)).tolist():
                self.mode.setdefault(seq, "prefill")

        def commit(e):
            self.pass_step(e, e.now - self.start)
            generated = {seq: self.generated(e, seq) for seq in self.mode}
            discipline.commit(e)
            for seq, before in generated.items():
                if self.mode[seq] != "decode" and e.seqs.slot[seq] >= 0 and self.generated(e, seq) > before:
                    self.mode[seq] = "decode"
                    if seq in self.lost:
                        self.add(seq, "preempted", e.now - self.lost.pop(seq))

        return replace(discipline, schedule=schedule, commit=commit)

    @staticmethod
    def generated(e, seq: int) -> int:
        slot = e.seqs.slot[seq]
        return int(e.slots.rec[slot, GENERATED] if slot >= 0 else e.seqs.generated[seq])

    def pass_step(self, e, elapsed: int) -> None:
        planned = self.composition(e)
        own, longer = planned if self.device is None else self.device
        for seq, mode in self.mode.items():
            if e.seqs.state[seq] >= FIRST_TERMINAL or mode == "again":
                continue
            if mode == "prefill":
                self.add(seq, "prefill" if seq in own else "stall", elapsed)
                continue
            stall = elapsed if longer is None else min(longer, elapsed)
            self.add(seq, "decode", elapsed - stall)
            self.add(seq, "stall", stall)
        if self.system.overlap:
            self.device = planned if e.num_plan > 0 else None

    def composition(self, e) -> tuple[list[int], int | None]:
        """(who is in its prefill, ns that the step is longer than its decodes alone; None: it has none)."""
        rec, rows = e.slots.rec, e.plan[: e.num_plan].tolist()
        chunks = [row for row in rows if rec[row[PLAN_SLOT], PHASE] == IN_PREFILL]
        own = [int(rec[row[PLAN_SLOT], SEQ]) for row in chunks]
        if not chunks:
            return own, 0
        batch = len(rows) - len(chunks)
        if batch == 0:
            return own, None
        context = sum(row[PLAN_START] + 1 for row in rows if row not in chunks)
        tables = as_lists(small_tables())
        with_them = Step(tables, [(row[PLAN_TOKENS], row[PLAN_START]) for row in chunks], batch, context).resources()
        alone = Step(tables, [], batch, context).resources()
        longer = [a - b for a, b in zip(with_them, alone, strict=True)]
        return own, sum(longer) - (longer[HOST] if self.system.overlap else 0)


def observed(asks: list[Ask], system: EngineSettings, monkeypatch) -> tuple[Simulation, Observer]:
    observer = Observer(system)
    with monkeypatch.context() as patch:
        of = world.discipline_of
        patch.setattr(world, "discipline_of", lambda engine: observer.hook(of(engine)))
        simulation = Simulation(request_table(asks), system, small_tables())
        finish(simulation)
    return simulation, observer


def check(simulation: Simulation, observer: Observer) -> None:
    journal, system = simulation.journal(), simulation.settings
    prompt = simulation.requests.prompt_tokens[journal.request_index]
    life = journal.finish_ns - journal.arrival_ns
    assert (journal.parts_ns.sum(axis=1) == life).all()
    assert (journal.parts_ns >= 0).all()
    for seq in range(journal.status.size):
        parts = dict(zip(PARTS, journal.parts_ns[seq].tolist(), strict=True))
        ended = journal.finish_ns[seq] - (system.detokenize_ns if journal.status[seq] == FINISHED else 0)
        expected = {name: observer.sums.get((seq, name), 0) for name in ("prefill", "decode", "stall", "preempted")}
        if seq in observer.lost:  # it ended before it was back
            expected["preempted"] += ended - observer.lost[seq]
        assert {name: parts[name] for name in expected} == expected, seq
        if journal.status[seq] == FINISHED:
            tokenize = system.tokenize_ns_per_request + system.tokenize_ns_per_token * prompt[seq]
            assert parts["tokenize"] == tokenize + system.detokenize_ns
            assert parts["queue"] == sequence_times(journal).queue_ns[seq]  # one definition
            assert parts["queue"] == journal.scheduled_ns[seq] - journal.arrival_ns[seq] - (
                parts["tokenize"] - system.detokenize_ns
            )


SYSTEMS = {"vllm": lambda fast: systems.vllm("0.33", fast), "sglang": systems.sglang}
PHASES = tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.mark.parametrize("overlap", [False, True], ids=["in-turn", "overlap"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_each_part_is_what_an_observer_adds_up(name, overlap, monkeypatch):
    @settings(max_examples=600 if LONG else 12, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(SYSTEMS[name](False))
    def run(case: systems.Case) -> None:
        asks, system = case
        with contextlib.suppress(KvbenchError):  # mixed chunks that run out of memory in the middle of a step
            check(*observed(asks, replace(system, overlap=overlap), monkeypatch))

    run()


@pytest.mark.parametrize("name", ["vllm-step", "sglang-step"])
def test_a_run_short_of_memory_has_every_part_but_transfers(name, monkeypatch):
    simulation, observer = observed(mixed_asks(), RUNS[name], monkeypatch)
    check(simulation, observer)
    total = dict(zip(PARTS, simulation.journal().parts_ns.sum(axis=0).tolist(), strict=True))
    assert [part for part, ns in total.items() if ns == 0] == ["transfer"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_calendar_gives_the_same(name, monkeypatch):
    @settings(max_examples=300 if LONG else 8, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(SYSTEMS[name](True))
    def run(case: systems.Case) -> None:
        asks, system = case
        step, observer = observed(asks, replace(system, fast=False), monkeypatch)
        check(step, observer)
        fast = Simulation(request_table(asks), system, small_tables())
        finish(fast)
        assert fast.counters().path == "calendar"
        assert np.array_equal(fast.journal().parts_ns, step.journal().parts_ns)

    run()
