"""Prefill and decode engines on the measured clock: KV is really copied between two devices, whatever happens."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.incidents import Incident
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import FAILED, FINISHED
from kvbench.engine.settings import EngineSettings
from kvbench.measured.copies import Copies
from kvbench.measured.run import MeasuredRun
from kvbench.pairs.settings import Fault
from kvbench.scheduler.rules import CacheRules

from ..engine.digest_model import DigestModel
from ..engine.test_measured import check_tokens
from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import Ask
from ..pairs.test_faults import chats, random_asks, random_faults, random_incidents
from ..pairs.test_pairs import assert_baseline, assert_times_add_up, paired, rules
from .clock import set_clock

ROUNDS = 300 if os.environ.get("KVBENCH_LONG") == "1" else 12
AT_ONCE = {"setup_ns": 0.0, "fragment_ns": 0.0, "ns_per_byte": 0.0, "fair": False}


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock of a run."""
    return lambda random, longest_copy: set_clock(monkeypatch, random, longest_copy)


def measured(asks: list[Ask], settings: EngineSettings, pair, incidents=(), again=False, plant="", **decode):
    """A pair on the measured clock."""
    modelled = paired(asks, replace(settings, overlap=False), pair, incidents, again, **decode)
    members = modelled.fleet.members
    devices = [DigestModel(m.settings.cache.num_blocks, m.settings.block_tokens) for m in members]
    first = members[0]
    return MeasuredRun(modelled.requests, first.settings, first.tables, devices, plant=plant, fleet=modelled.fleet)


@pytest.mark.parametrize("settings", [VLLM, SGLANG], ids=["pull", "push"])
def test_whatever_happens_everybody_says_what_they_would_say_alone(clock, settings):
    """Cancels, links that go down, engines that die and come back, little memory, copies that take long."""
    random, seen = np.random.default_rng(7), Counter()
    for number in range(ROUNDS):
        clock(random, int(random.choice([100, 5_000, 30_000])))
        pull = settings is VLLM
        cache = CacheRules(settings.cache.kind, int(random.integers(26, 60)), free_order="auto")
        pair = rules(
            settings,
            layers=0 if pull else int(random.integers(0, 3)),
            lease_ns=int(random.choice([30_000, 400_000])),
            hands_out=bool(random.integers(2)),
            faults=random_faults(random),
            num_prefill=int(random.integers(1, 3)),
            num_decode=int(random.integers(1, 3)),
            **AT_ONCE,
        )
        incidents = random_incidents(random, pair.num_prefill + pair.num_decode)
        again = bool(random.integers(2)) or number % 3 == 0
        if number % 3 == 0:  # a side dies while everybody is at work
            dies = int(random.choice([0, pair.num_prefill]))
            incidents = (Incident(int(random.integers(20_000, 60_000)), dies, "restart", 5_000), *incidents)
        simulation = measured(
            random_asks(random),
            replace(settings, cache=cache),
            pair,
            incidents,
            again,
            fails_with_transfer=bool(random.integers(2)),
            reserved_decode_tokens=int(random.choice([0, 2])),
            preallocated_requests=4,
        )
        simulation.run()
        check_tokens(simulation)
        assert_baseline(simulation)
        assert_times_add_up(simulation)
        pairs = simulation.world.pairs
        seen["failed transfers"] += int(pairs.failed)
        seen["moved bytes"] += simulation.moves.moved_bytes["send"]
        seen["lost engines"] += len(simulation._retired)
    assert min(seen.values()) > 0, seen


@pytest.mark.parametrize("layers", [0, 1, 4])
def test_a_transfer_takes_the_time_that_its_copies_took(clock, layers, monkeypatch):
    """40 us each, one after the other on the link; layer by layer what the step did not hide."""
    random = np.random.default_rng(3)
    clock(random, 2)
    monkeypatch.setattr(Copies, "_timed", lambda self, move: self._launch(move) or 40_000)
    simulation = measured(chats(4, 60, 3), SGLANG, rules(SGLANG, layers=layers, **AT_ONCE), preallocated_requests=4)
    simulation.run()
    check_tokens(simulation)
    links = simulation.world.links
    copied = 40_000 * int(links.begun.sum())
    assert int(links.busy_ns.sum()) == copied if layers < 2 else 0 < int(links.busy_ns.sum()) < copied
    times = simulation.journal().columns["transfer_ns"]
    assert (times >= (40_000 if layers < 2 else 10_000)).all()


@pytest.mark.parametrize("settings", [VLLM, SGLANG], ids=["pull", "push"])
def test_a_transfer_whose_reader_dies_is_made_again(clock, settings):
    """Transfers take long, and the first decode engine dies ever later."""
    repeated = 0
    for at_ns in range(8_000, 60_000, 4_000):
        clock(np.random.default_rng(2), 40_000)
        pair = rules(settings, num_decode=2, lease_ns=10**9, **AT_ONCE)
        dies = Incident(at_ns, 1, "restart", 10_000)
        simulation = measured(chats(6, 60, 4), settings, pair, (dies,), again=True, preallocated_requests=4)
        simulation.run()
        check_tokens(simulation)
        assert_baseline(simulation)
        finished = simulation.journal().status == FINISHED
        repeated += int((simulation.world.pairs.attempt > 1)[finished].sum())
    assert repeated > 2


def test_who_is_retracted_comes_back_with_its_kv(clock):
    clock(np.random.default_rng(2), 500)
    tight = replace(SGLANG, cache=CacheRules("radix", 40, free_order="auto"))
    simulation = measured(chats(6, 40, 30), tight, rules(SGLANG, **AT_ONCE), preallocated_requests=4)
    simulation.run()
    check_tokens(simulation)
    assert simulation.counters().preemptions > 2


def test_a_failed_transfer_is_computed_on_the_decode_side(clock):
    clock(np.random.default_rng(5), 500)
    pair = rules(VLLM, faults=(Fault("link-down", 0, 10**9),), lease_ns=30_000, **AT_ONCE)
    simulation = measured(chats(8, 60, 5), VLLM, pair, fails_with_transfer=False)
    simulation.run()
    check_tokens(simulation)
    assert (simulation.journal().status == FINISHED).all()
    assert simulation.world.pairs.failed == 7
    simulation = measured(chats(8, 60, 5), VLLM, pair, fails_with_transfer=True)
    simulation.run()
    assert (simulation.journal().status == FAILED).all()


def test_what_a_planted_fault_frees_too_early_is_noticed(clock):
    """The bytes of a read whose lease is over are somebody else's by then."""
    clock(np.random.default_rng(1), 90_000)
    slow = rules(VLLM, lease_ns=6_000, faults=(Fault("heartbeats-lost", 0, 10**9),), **AT_ONCE)
    with pytest.raises(KvbenchError, match=r"is still read for sequence|still touches it|was written while it was"):
        measured(chats(8, 60, 5), replace(VLLM, faults=("lease_over_reads",)), slow).run()


@pytest.mark.parametrize("settings", [VLLM, SGLANG], ids=["pull", "push"])
def test_nothing_that_moves_changes_what_is_said(clock, settings):
    clock(np.random.default_rng(1), 500)
    simulation = measured(chats(4, 60, 9), settings, rules(settings, **AT_ONCE), plant="skip_move")
    simulation.run()
    with pytest.raises(AssertionError, match="sequence"):
        check_tokens(simulation)
