"""Fault scenarios: each right engine passes every check, each broken one is caught, and by what it should be."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.bench.scenarios import scenario_names
from kvbench.bench.step_times import step_costs
from kvbench.bench.system import build_system
from kvbench.cli import call
from kvbench.cluster.simulation import Simulation
from kvbench.core.jit import PLAIN
from kvbench.engine.build import calendar_fits
from kvbench.memory.operations import LOAD, MOVING, OP_KIND, OP_OWNER, OP_STATE
from kvbench.report.faults_table import FaultLine, FigureLine, faults_report
from kvbench.report.table import run_table
from kvbench.scheduler.keys import FAULT_KEYS
from kvbench.scheduler.state_columns import CANCELLED, FIRST_TERMINAL, PLANTED, STATE_NAMES
from kvbench.tiers.state import PF_ASIDE, PF_RUNS, PREFETCH_STATE
from kvbench.verify import faults
from kvbench.verify.faults import EFFECTS, FAULTS, Effect, FaultVerdict, Figure, first_complaint, measure, verify_faults
from kvbench.verify.shadow import Shadow
from kvbench.workload.build import build_workload

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")

CAUGHT_BY = {
    "recomputed-hits": "hits more than the whole blocks before its last prompt token",
    "refused-hits": "hit tokens: kept",
    "unwritten-hit": "which nobody had written there",
    "same-step-hit": "which nobody had written there",
    "cancel-leak": "blocks have an owner",
    "retract-pages": "out of KV memory",
    "reuse-under-copy": "is written while an operation of another queue still touches it",
    "tier-load-unheld": "of the host is held 0 times, by 1 operations",
    "tier-write-back-unheld": "of the host is held 0 times, by 1 operations",
    "tier-namespace": "is read for a prefix that it does not hold",
    "tier-parent": "has a copy whose prefix is not there",
    "tier-backup-failed": "of storage is confirmed and holds something else",
    "tier-store-miss": "of the host is held 1 times, by 0 operations",
    "tier-short-host": "of the host is confirmed and holds something else",
    "tier-cancel": "the free queue is torn",
    "overlap-slot": "has two owners",
    "push-while-written": "is still written for sequence",
    "lease-during-read": "is still read for sequence",
    "router-late": "is still read for sequence",
    "slru-never-rises": "no node counts more than 0 insertions",
    "eplb-half-switched": "map of layer 0 was read half switched",
    "eplb-replicas-differ": "devices choose replicas differently in layer 0: device 1",
    "eplb-worker-dies": "8 of 16 layers keep the old map for ever",
    "eplb-cancelled": "cancelled after 8 of 16 layers",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_right_engine_passes(fault):
    assert first_complaint(faults._configured(fault.name)) == ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_broken_engine_is_caught(fault):
    assert CAUGHT_BY[fault.name] in first_complaint(faults._configured(fault.name, fault.broken))


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda e: e.name)
def test_what_was_reported_is_measured(effect):
    figures = measure(effect)
    assert [f.name for f in figures] == [name for name, _ in effect.expected]
    assert all(f.passed for f in figures)


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda e: e.name)
def test_the_other_way_round_it_does_not_behave(effect):
    turned = Effect(effect.name, effect.source, effect.second, effect.first, effect.expected)
    assert not any(f.passed for f in measure(turned))


@pytest.mark.parametrize("load", ["whole", "layerwise"])
def test_cancels_come_in_every_state_of_a_fetch(load):
    """While it waits, and storage is asked; while it is set aside for that; while it is loaded; while it runs and its
    blocks are copied out."""
    changes = [("t", f"tiers.host.load={load}"), ("t", "num_prompts=300")]  # enough for the rarest of them
    system = build_system(configure("faults/tier-cancel", changes=changes).config)
    requests, _ = build_workload(system.config.tree())
    simulation = Simulation(requests, system.settings, step_costs(system).tables)
    e, seen, done = simulation.engine, set(), False
    while not done:
        q, before = e.seqs, {}
        rows = e.operations.rows[e.operations.rows[:, OP_STATE] == MOVING]
        loads = set(rows[rows[:, OP_KIND] == LOAD, OP_OWNER].tolist())
        for seq in np.flatnonzero(q.state < FIRST_TERMINAL).tolist():
            prefetch = e.tiers.of_seq[seq, PREFETCH_STATE]
            state = "loaded" if seq in loads else STATE_NAMES[q.state[seq]]
            before[seq] = "set aside" if prefetch == PF_ASIDE else "asked for" if prefetch == PF_RUNS else state
        done = simulation.advance(max_steps=1)
        seen |= {state for seq, state in before.items() if q.state[seq] == CANCELLED}
    wanted = {"asked for", "set aside", "waiting", "decoding"}  # layerwise, a load is over when its prefill step is
    assert seen >= (wanted | {"loaded"} if load == "whole" else wanted)


def test_every_planted_fault_has_a_key_and_a_scenario():
    keys = {key.name for key in FAULT_KEYS}
    assert keys == {f"faults.{name}" for name in PLANTED}
    assert keys <= {text.partition("=")[0] for text in (*(f.broken for f in FAULTS), *(e.first for e in EFFECTS))}
    files = {name.removeprefix("faults/") for name in scenario_names() if name.startswith("faults/")}
    assert files == {f.name for f in FAULTS} | {e.name for e in EFFECTS}
    assert all(key.default is False for key in FAULT_KEYS)


def test_a_fault_stands_in_the_head_of_the_table():
    result = run(
        configure("faults/cancel-leak", changes=[("test", "num_prompts=2"), ("test", "faults.leak_on_cancel=true")])
    )
    head = run_table(result.record).split("\n\n")[0]
    assert "PLANTED FAULT faults.leak_on_cancel" in head
    assert result.document["config"]["faults"]["leak_on_cancel"] is True
    plain = run(configure("faults/cancel-leak", changes=[("test", "num_prompts=2")]))
    assert "PLANTED" not in run_table(plain.record)


def test_blocks_that_show_late_keep_off_the_calendar():
    for text, fits in (("true", True), ("false", False)):
        configured = configure("chat", changes=[("test", f"cache.hit_same_step={text}"), ("test", "overlap=false")])
        assert calendar_fits(build_system(configured.config).settings) is fits


def test_blocks_that_show_late_are_hit_by_later_requests():
    """Turned off, a hit comes a step later; requests that come one after another find as much as before."""
    changes = ["arrivals.rate=1", "arrivals.process=constant", "num_prompts=6", "path=step"]

    def cached(text: str) -> list[int]:
        assigned = [("test", c) for c in (*changes, f"cache.hit_same_step={text}")]
        return run(configure("faults/same-step-hit", changes=assigned)).journal.cached_tokens.tolist()

    assert cached("false") == cached("true")
    assert sum(cached("false")) > 0


# ---------------------------------------------------------------- the shadow by itself


def test_the_shadow_sees_a_block_that_somebody_else_wrote(monkeypatch):
    right = Shadow._write

    def astray(self, row):
        right(self, row._replace(blocks=[*row.blocks[1:], row.blocks[0]]) if row.seq == 3 else row)

    monkeypatch.setattr(Shadow, "_write", astray)
    assert "request 3 reads block" in first_complaint(faults._configured("cancel-leak"))


# ---------------------------------------------------------------- report and command


def lines(right: str = "", broken: str = "seen", passed: bool = True) -> tuple[list[FaultLine], list[FigureLine]]:
    fault = FaultLine("a-fault", "vLLM #1", "faults.x=true", right, broken, passed)
    figure = FigureLine("an-effect", "vLLM #2", "first a=1, second a=2", "itl p99", 2.0, 1.0, "falls", passed)
    return [fault], [figure]


def test_the_report():
    good = faults_report(*lines())
    assert "0 do not behave" in good
    assert "caught" in good
    assert "falls, yes" in good
    bad = faults_report(*lines("oh", "", False))
    assert "2 do not behave" in bad
    assert "FAILS" in bad
    assert "MISSED" in bad
    assert "falls, NO" in bad
    assert max(map(len, (good + bad).splitlines())) <= 100


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(faults, "FAULTS", FAULTS[4:5])
    monkeypatch.setattr(faults, "EFFECTS", EFFECTS[:1])
    assert call(["verify", "faults", "-q"]) == 0
    out = capsys.readouterr().out
    assert "cancel-leak" in out
    assert "long-scan" in out
    assert max(map(len, out.splitlines())) <= 100
    monkeypatch.setattr(faults, "first_complaint", lambda configured: "")
    assert call(["verify", "faults", "-q"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_progress_ends_at_all(monkeypatch):
    monkeypatch.setattr(faults, "first_complaint", lambda configured: "x")
    monkeypatch.setattr(faults, "measure", lambda effect: [])
    seen: list[tuple[int, int]] = []
    verdicts, figures = verify_faults(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(FAULTS) + len(EFFECTS),) * 2
    assert len(verdicts) == len(FAULTS)
    assert figures == []


def test_verdicts():
    fault = FAULTS[0]
    assert FaultVerdict(fault, "", "seen").passed
    assert not FaultVerdict(fault, "", "").passed
    assert not FaultVerdict(fault, "oh", "seen").passed
    assert not Figure(EFFECTS[0], "hit_rate", "rises", 0.5, 0.5).passed
    assert np.isfinite(measure(EFFECTS[0])[0].first)
