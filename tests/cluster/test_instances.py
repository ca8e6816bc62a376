"""Fleets of instances: the router chooses an instance, its own rule a rank; without coupling they are as many runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet, Member
from kvbench.cluster.incidents import Incident
from kvbench.cluster.instances import DEALS
from kvbench.cluster.lockstep_simulation import LockstepSimulation, one_instance
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.routing.settings import POLICIES, RouterSettings

from ..engine.compare import small_tables
from ..engine.test_runs import SGLANG, VLLM, mixed_asks
from ..engine.workloads import request_table, workloads
from .test_fleet import OWN, one_by_one, refused_or_routed
from .test_incidents import INCIDENTS, check_books

SYSTEMS = {"vllm": VLLM, "sglang": SGLANG, "lagging": replace(VLLM, overlap=True, fast=False)}

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling it for every policy takes minutes")


def fleet_of(system, instances: int, ranks: int, router: RouterSettings, **rest) -> Fleet:
    return Fleet((Member(system, small_tables()),) * (instances * ranks), router, ranks=ranks, **rest)


def run(asks, fleet: Fleet, deal: str = "round-robin") -> LockstepSimulation:
    simulation = LockstepSimulation(request_table(asks), fleet, deal)
    simulation.run()
    return simulation


def check_barriers(simulation: LockstepSimulation) -> None:
    totals = simulation.barrier()
    assert np.array_equal(totals.wait_ns, totals.step_ns - totals.busy_ns)
    assert (totals.wait_ns >= 0).all()


@given(
    asks=workloads(),
    n=st.integers(1, 3),
    ranks=st.integers(1, 3),
    deal=st.sampled_from(DEALS),
    name=st.sampled_from(list(SYSTEMS)),
)
def test_round_robin_over_n_instances_is_n_runs(asks, n, ranks, deal, name):
    system = replace(SYSTEMS[name], check=True)
    asks = refused_or_routed(one_by_one(asks), system) if asks else asks
    if not asks:
        return
    simulation = run(asks, fleet_of(system, n, ranks, RouterSettings("round-robin")), deal)
    journal, totals = simulation.journal(), simulation.barrier()
    for i in range(n):
        if not asks[i::n]:
            continue
        own = run(asks[i::n], one_instance(system, small_tables(), ranks), deal)
        rows = np.flatnonzero(journal.columns["engine"] == i)
        for column in OWN:
            assert np.array_equal(getattr(journal, column)[rows], getattr(own.journal(), column)), column
        assert np.array_equal(journal.columns["rank"][rows], own.journal().columns["rank"])
        mine = slice(i * ranks, (i + 1) * ranks)
        for column in ("wait_ns", "busy_ns", "dummy_steps", "step_ns", "steps"):
            assert np.array_equal(getattr(totals, column)[mine], getattr(own.barrier(), column)), column
        alone, among = own.counters(), simulation.counters_by_engine()[i]
        assert (alone.evicted_blocks, alone.matched_tokens) == (among.evicted_blocks, among.matched_tokens)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_router_in_front_of_one_instance_changes_nothing(name, policy):
    plain = run(mixed_asks(), one_instance(SYSTEMS[name], small_tables(), 3), "least-waiting")
    routed = run(mixed_asks(), fleet_of(SYSTEMS[name], 1, 3, RouterSettings(policy)), "least-waiting")
    one, other = plain.journal(), routed.journal()
    for column in OWN:
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    assert np.array_equal(one.columns["rank"], other.columns["rank"])
    assert plain.counters() == routed.counters()


@given(
    asks=workloads(),
    incidents=INCIDENTS,
    name=st.sampled_from(list(SYSTEMS)),
    deal=st.sampled_from(DEALS),
    policy=st.sampled_from(list(POLICIES)),
    load=st.sampled_from(["own", "reported"]),
    belief=st.sampled_from(["own", "events", "truth"]),
    again=st.booleans(),
)
def test_whatever_happens(asks, incidents, name, deal, policy, load, belief, again):
    """Instances restart with all their ranks, in the middle of steps too."""
    system = replace(SYSTEMS[name], check=True)
    router = RouterSettings(policy, belief="auto" if policy == "oracle" else belief, load=load, decide_us=0.3)
    fleet = fleet_of(system, 3, 2, router, incidents=tuple(incidents), sends_again=again)
    simulation = run(asks, fleet, deal)
    check_books(simulation)
    check_barriers(simulation)
    engine, rank = (simulation.journal().columns[column] for column in ("engine", "rank"))
    assert set(engine[engine >= 0]) <= {0, 1, 2}
    assert set(rank[rank >= 0]) <= {0, 1}


def test_a_restart_empties_all_ranks_of_an_instance():
    again = run(
        mixed_asks(),
        fleet_of(VLLM, 2, 2, RouterSettings("round-robin"), incidents=(Incident(40_000, 1, "restart", 10_000),)),
    )
    assert [engine.number for engine, _ in again._retired] == [2, 3]
    check_books(again)


@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware", "scorers", "longest-prefix", "predicted-ttft"])
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_events_without_delay_are_the_truth_of_an_instance(name, policy):
    """What any of its ranks has, the instance has; a rank that drops a block takes it from no other."""
    small = replace(SYSTEMS[name], cache=replace(SYSTEMS[name].cache, num_blocks=40))
    views = [
        run(mixed_asks(), fleet_of(small, 2, 2, RouterSettings(policy, belief=belief, seed=3), sends_again=True))
        for belief in ("events", "truth")
    ]
    told, true = (view.journal().columns for view in views)
    assert np.array_equal(told["engine"], true["engine"])
    assert np.array_equal(told["predicted_cached_tokens"], true["predicted_cached_tokens"])
    assert (told["predicted_cached_tokens"] > 0).any()


def test_what_a_router_is_told_of_an_instance_is_the_sum_of_its_ranks():
    simulation = LockstepSimulation(
        request_table(mixed_asks()),
        fleet_of(VLLM, 2, 3, RouterSettings("least-loaded", load="reported")),
        "round-robin",
    )
    most = 0
    while not simulation.advance(max_steps=1):
        reported = simulation.world.router.load[:, 7]
        assert set(reported.tolist()) <= {0, 3 * VLLM.cache.num_blocks}
        most = max(most, int(simulation.world.router.load[:, 3].max()))
    assert most > 0


def test_several_instances_need_a_router():
    with pytest.raises(UsageError, match="need a router"):
        Fleet((Member(VLLM, small_tables()),) * 4, ranks=2).check()
