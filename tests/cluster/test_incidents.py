"""Engines restart, are drained, are added and slow down, at any moment: nothing is lost or told twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet
from kvbench.cluster.incidents import Incident
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.core.journal import FAILED, FINISHED, NEVER
from kvbench.engine.integrity import check_integrity
from kvbench.routing.settings import RouterSettings
from kvbench.tiers.rules import TierRules

from ..engine.test_clients import plain
from ..engine.test_runs import EACH, SGLANG, VLLM
from ..engine.workloads import workloads
from .test_fleet import fleet_run, members

SYSTEMS = {"vllm": VLLM, "sglang": SGLANG, "lagging": replace(SGLANG, overlap=True, fast=False)}

INCIDENTS = st.lists(
    st.builds(
        Incident,
        at_ns=st.integers(0, 200_000),
        engine=st.integers(0, 2),
        kind=st.sampled_from(["restart", "restart", "drain", "add", "slow"]),
        down_ns=st.integers(0, 60_000),
        factor=st.sampled_from([0.5, 2.0]),
    ),
    max_size=5,
)


def check_books(simulation: Simulation) -> None:
    """Every sequence has ended once, its parts add up, and no engine or router has anything left."""
    journal = simulation.journal()
    assert (journal.finish_ns != NEVER).all()
    assert np.array_equal(journal.parts_ns.sum(axis=1), journal.finish_ns - journal.arrival_ns)
    assert (journal.parts_ns[:, :6] >= 0).all()
    assert int(simulation.world.clients.num_done) == journal.status.size
    assert not simulation.world.router.load[:, :3].any()
    for engine in simulation.engines:
        check_integrity(engine)
        assert engine.slots.holders == 0
        assert (engine.coming, engine.coming_tokens) == (0, 0)
    done = journal.status == FINISHED
    wanted = simulation.engine.seqs.output
    assert np.array_equal(journal.output_tokens[done], wanted[done])


@given(
    asks=workloads(),
    incidents=INCIDENTS,
    name=st.sampled_from(list(SYSTEMS)),
    again=st.booleans(),
    policy=st.sampled_from(["round-robin", "least-loaded", "cache-aware"]),
)
def test_whatever_happens(asks, incidents, name, again, policy):
    settings = replace(SYSTEMS[name], check=True)
    router = RouterSettings(policy, decide_us=0.3)
    fleet = Fleet(members(*[settings] * 3), router, incidents=tuple(incidents), sends_again=again)
    simulation = fleet_run(asks, fleet)
    check_books(simulation)
    assert again or not simulation.counters().preemptions or simulation.journal().preemptions.any()


@EACH
def test_what_an_engine_loses_fails_or_runs_elsewhere(system):
    asks = [plain(i, 2_000 * i, output=60) for i in range(8)]
    ends = {}
    for again in (False, True):
        restart = Incident(60_000, 0, "restart", 1_000_000_000)
        fleet = Fleet(members(system, system), RouterSettings("round-robin"), incidents=(restart,), sends_again=again)
        simulation = fleet_run(asks, fleet)
        check_books(simulation)
        journal = ends[again] = simulation.journal()
        engine = journal.columns["engine"]
        assert (engine[1::2] == 1).all()
        if again:
            assert (journal.status == FINISHED).all()
            assert (engine == 1).all()
            assert journal.recomputed_tokens[0] > 0  # it had run, and its memory was gone
        else:
            assert journal.status.tolist() == [FAILED, FINISHED] * 4
            assert (journal.finish_ns[::2] == 60_000).all()
    assert (ends[True].finish_ns[1::2] > ends[False].finish_ns[1::2]).any()  # they have company now


@EACH
def test_a_restarted_engine_has_forgotten_its_cache(system):
    """The same prompt a third time: found before the restart, not after it."""
    same = [
        replace(plain(0, at, prompt=40), output=[(900 + i, 0, 10)]) for i, at in enumerate((0, 1_000_000, 3_000_000))
    ]
    router = RouterSettings("round-robin")
    quiet = fleet_run(same, Fleet(members(system), router)).journal()
    restart = (Incident(2_000_000, 0, "restart", 10),)
    lossy = fleet_run(same, Fleet(members(system), router, incidents=restart)).journal()
    assert quiet.cached_tokens[1] == quiet.cached_tokens[2] > 0
    assert lossy.cached_tokens.tolist() == [0, quiet.cached_tokens[1], 0]


def test_drained_added_and_slow():
    asks = [plain(i, 50_000 * i) for i in range(12)]
    router = RouterSettings("round-robin")
    drain = fleet_run(asks, Fleet(members(VLLM, VLLM), router, incidents=(Incident(275_000, 0, "drain"),))).journal()
    assert drain.columns["engine"].tolist() == [0, 1, 0, 1, 0, 1] + [1] * 6
    add = fleet_run(asks, Fleet(members(VLLM, VLLM), router, incidents=(Incident(275_000, 1, "add"),))).journal()
    assert add.columns["engine"][:6].tolist() == [0] * 6
    assert set(add.columns["engine"][6:].tolist()) == {0, 1}
    slow = (Incident(275_000, 1, "slow", factor=3.0),)
    slowed = fleet_run(asks, Fleet(members(VLLM, VLLM), router, incidents=slow)).journal()
    took = slowed.finish_ns - slowed.arrival_ns
    assert took[9] > 2 * took[3]
    assert took[8] == took[2]


def test_nobody_is_left():
    """While no engine takes requests they fail; once it is back, they do not."""
    asks = [plain(i, 10_000 * i, output=5) for i in range(9)]
    restart = (Incident(35_000, 0, "restart", 30_000),)
    journal = fleet_run(asks, Fleet(members(VLLM), RouterSettings("round-robin"), incidents=restart)).journal()
    down = (journal.arrival_ns >= 35_000) & (journal.arrival_ns < 65_000)
    assert (journal.status[down] == FAILED).all()
    assert (journal.finish_ns[down] == journal.arrival_ns[down]).all()
    assert (journal.status[journal.arrival_ns >= 65_000] == FINISHED).all()


@pytest.mark.parametrize(
    "change", [{"batching": "static"}, {"backup_ns_per_block": 5}, {"tiers": TierRules(host_blocks=8)}]
)
def test_who_cannot_restart(change):
    with pytest.raises(UsageError, match="cannot restart"):
        Fleet(members(replace(VLLM, **change)), RouterSettings(), incidents=(Incident(0, 0, "restart"),)).check()
