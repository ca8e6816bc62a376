"""A permutation between router and equal engines permutes the results: an engine's number decides nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet
from kvbench.cluster.incidents import Incident
from kvbench.cluster.simulation import Simulation
from kvbench.core.jit import PLAIN
from kvbench.routing.settings import POLICIES, RouterSettings

from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import request_table, workloads
from .test_fleet import OWN, members
from .test_incidents import check_books

pytestmark = pytest.mark.skipif(not PLAIN, reason="verbs are put between in Python")

SYSTEMS = {"vllm": VLLM, "sglang": SGLANG, "lagging": replace(SGLANG, overlap=True, fast=False)}
BY_ITSELF = [name for name in POLICIES if name not in ("oracle", "scorers")]
"""Policies that can do with what the router counts itself: nobody tells them an engine's number."""


def permuted_run(asks, fleet: Fleet, permutation: list[int]) -> Simulation:
    """What the router calls engine k is engine permutation[k]."""
    first = fleet.members[0]
    simulation = Simulation(request_table(asks), first.settings, first.tables, fleet)
    world, back = simulation.world, np.argsort(permutation).tolist()
    route, hear = world.route, world.hear

    def route_there(router, seqs, seq, now):
        k = route(router, seqs, seq, now)
        return permutation[k] if k >= 0 else k

    def hear_from_there(router, seqs, event, subject, engine, now):
        hear(router, seqs, event, subject, back[engine], now)

    world.route, world.hear = route_there, hear_from_there
    simulation.run()
    return simulation


@given(
    asks=workloads(),
    permutation=st.permutations(range(4)),
    name=st.sampled_from(list(SYSTEMS)),
    policy=st.sampled_from(BY_ITSELF),
    slow=st.integers(0, 3),
)
def test_permuting_equal_engines_permutes_the_results(asks, permutation, name, policy, slow):
    settings = SYSTEMS[name]
    router = RouterSettings(policy, belief="own", balance_abs=1.0, decide_us=0.3, seed=5)
    runs = []
    for order in ([0, 1, 2, 3], list(permutation)):
        incidents = (Incident(30_000, order[slow], "slow", factor=2.0),)
        fleet = Fleet(members(*[settings] * 4), router, incidents=incidents)
        runs.append(permuted_run(asks, fleet, order))
        check_books(runs[-1])
    plain, other = runs
    before, after = plain.journal(), other.journal()
    for column in OWN:
        assert np.array_equal(getattr(before, column), getattr(after, column)), column
    assert np.array_equal(before.parts_ns, after.parts_ns)
    engine = before.columns["engine"]
    assert np.array_equal(np.where(engine < 0, engine, np.array(permutation)[engine]), after.columns["engine"])
    assert np.array_equal(before.columns["predicted_cached_tokens"], after.columns["predicted_cached_tokens"])
    counted = other.counters_by_engine()
    for k, counters in enumerate(plain.counters_by_engine()):
        assert counters == counted[permutation[k]]
