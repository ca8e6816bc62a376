"""Several engines: without coupling they are as many runs, and a router in front of one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet, Member
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.core.journal import FAILED, FINISHED, NEVER
from kvbench.routing.settings import POLICIES, RouterSettings

from ..engine.compare import small_tables
from ..engine.test_clients import plain
from ..engine.test_runs import EACH, SGLANG, VLLM, mixed_asks
from ..engine.workloads import Ask, request_table, workloads

OWN = ("status", "arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "finish_ns", "cached_tokens")
OWN += ("output_tokens", "recomputed_tokens", "preemptions")


def fleet_run(asks: list[Ask], fleet: Fleet) -> Simulation:
    first = fleet.members[0]
    simulation = Simulation(request_table(asks), first.settings, first.tables, fleet)
    simulation.run()
    return simulation


def alone(asks: list[Ask], settings) -> Simulation:
    simulation = Simulation(request_table(asks), settings, small_tables())
    simulation.run()
    return simulation


def members(*settings) -> tuple[Member, ...]:
    return tuple(Member(s, small_tables()) for s in settings)


def is_free(ask: Ask) -> bool:
    return ask.after is None and ask.joins is None


def one_by_one(asks: list[Ask]) -> list[Ask]:
    """Asks that go by turns whatever happens: no sessions, one sample, nobody gives up on the way."""
    free = [replace(ask, samples=1, cancel_ns=None) for ask in asks if is_free(ask)]
    return sorted(free, key=lambda ask: ask.arrival_ns)


def refused_or_routed(asks: list[Ask], settings) -> list[Ask]:
    """What a client refuses never reaches the router and takes no turn."""
    journal = alone(asks, settings).journal()
    return [ask for ask, sent in zip(asks, journal.queued_ns != journal.finish_ns, strict=True) if sent]


@given(asks=workloads(), n=st.integers(1, 3), name=st.sampled_from(["vllm", "sglang", "lagging"]))
def test_round_robin_over_n_engines_is_n_runs(asks, n, name):
    settings = {"vllm": VLLM, "sglang": SGLANG, "lagging": replace(VLLM, overlap=True, fast=False)}[name]
    settings = replace(settings, check=True)
    asks = refused_or_routed(one_by_one(asks), settings) if asks else asks
    if not asks:
        return
    simulation = fleet_run(asks, Fleet(members(*[settings] * n), RouterSettings("round-robin")))
    journal = simulation.journal()
    for k in range(n):
        if not asks[k::n]:
            continue
        own = alone(asks[k::n], settings)
        rows = np.flatnonzero(journal.columns["engine"] == k)
        for name_ in OWN:
            assert np.array_equal(getattr(journal, name_)[rows], getattr(own.journal(), name_)), name_
        assert simulation.counters_by_engine()[k].evicted_blocks == own.counters().evicted_blocks


@EACH
@pytest.mark.parametrize("policy", POLICIES)
def test_a_router_in_front_of_one_engine_changes_nothing(system, policy):
    plain = alone(mixed_asks(), system)
    routed = fleet_run(mixed_asks(), Fleet(members(system), RouterSettings(policy)))
    for name in OWN:
        assert np.array_equal(getattr(plain.journal(), name), getattr(routed.journal(), name)), name
    assert plain.counters() == routed.counters()


@EACH
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", ["own", "reported"])
def test_everything_happens_once(system, policy, load):
    """Unequal engines; every sequence ends on the engine that it was given to, and parts of its time add up."""
    small = replace(system, cache=replace(system.cache, num_blocks=system.cache.num_blocks // 2 * 2 + 6))
    router = RouterSettings(policy, load=load, decide_us=0.7, hash_us_per_token=0.01, refresh_ms=0.005)
    system = replace(system, check=True)
    simulation = fleet_run(mixed_asks(), Fleet(members(system, replace(small, check=True), system), router))
    journal, counters = simulation.journal(), simulation.counters()
    done = journal.finish_ns != NEVER
    assert done.all()
    assert np.array_equal(journal.parts_ns.sum(axis=1), journal.finish_ns - journal.arrival_ns)
    by_engine = simulation.counters_by_engine()
    assert counters.decode_tokens == sum(c.decode_tokens for c in by_engine)
    got = np.bincount(journal.columns["engine"][journal.columns["engine"] >= 0], minlength=3)
    assert np.array_equal(got, [int((simulation.engine.seqs.engine == k).sum()) for k in range(3)])
    assert [e.slots.holders for e in simulation.engines] == [0, 0, 0]
    assert [(e.coming, e.coming_tokens) for e in simulation.engines] == [(0, 0)] * 3
    router_load = simulation.world.router.load
    assert not router_load[:, :3].any(), "the router still believes that something is under way"


@EACH
def test_a_decision_takes_its_time(system):
    """Everybody arrives later by what the router takes, and it is a part of the time of its own."""
    fast, slow = (
        fleet_run(mixed_asks(), Fleet(members(system), RouterSettings("round-robin", decide_us=us))).journal()
        for us in (0.0, 40.0)
    )
    assert fast.part_names[-1] == "route"
    ran = slow.scheduled_ns != NEVER
    assert set(slow.parts_ns[ran, -1].tolist()) == {40_000}
    assert not fast.parts_ns[:, -1].any()
    first = int(np.argmin(np.where(ran, slow.arrival_ns, np.iinfo(np.int64).max)))
    assert slow.queued_ns[first] - fast.queued_ns[first] == 40_000


def test_what_a_fleet_cannot_be():
    with pytest.raises(UsageError, match="share block_tokens"):
        Fleet(members(VLLM, replace(VLLM, block_tokens=8)), RouterSettings()).check()
    with pytest.raises(UsageError, match="need a router"):
        Fleet(members(VLLM, VLLM)).check()
    warm = replace(VLLM, cache=replace(VLLM.cache, state="warm"))
    with pytest.raises(UsageError, match=r"cache\.state of a fleet is cold"):
        Fleet(members(warm, warm), RouterSettings()).check()


@EACH
def test_an_engine_refuses_what_is_too_long_for_it(system):
    """One of two engines can hold the prompts: what the router sends to the other one fails, and nothing hangs."""
    bt = system.block_tokens
    small = replace(system, cache=replace(system.cache, num_blocks=system.cache.num_blocks // 4))
    prompt = system.cache.num_blocks // 2 * bt
    asks = [plain(i, 5_000 * i, prompt=prompt, output=5) for i in range(6)]
    journal = fleet_run(asks, Fleet(members(system, small), RouterSettings("round-robin"))).journal()
    assert journal.status.tolist() == [FINISHED, FAILED] * 3
    assert (journal.finish_ns[1::2] == journal.arrival_ns[1::2]).all()
