"""A replay finds what a run of requests far apart finds: to the token, whatever preset, cache and policy."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE, Requests
from kvbench.engine.settings import EngineSettings
from kvbench.engine.simulation import Simulation
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.offline.warm import prepared
from kvbench.prefix.eviction.policies import POLICIES

from ..engine import systems
from ..engine.compare import small_tables
from ..engine.workloads import request_table

HOUR = 3600 * 10**9
NUM_CASES = 3000 if "KVBENCH_LONG" in os.environ else 60
SEARCH = settings(max_examples=NUM_CASES, suppress_health_check=list(HealthCheck), deadline=None)

SYSTEMS = {
    "vllm-0.19": systems.vllm("0.19", False),
    "vllm-0.33": systems.vllm("0.33", False),
    "sglang": systems.sglang(False),
}


def far_apart(requests: Requests, order: list[int]) -> Requests:
    """One request an hour. order: a number for each; a later turn comes behind the turn before it, by that number."""
    n = len(requests)
    when = np.zeros(n, np.int64)
    free = np.flatnonzero(requests.after == NONE)
    when[free] = np.arange(free.size) * 1000
    for i in np.flatnonzero(requests.after != NONE).tolist():
        when[i] = when[requests.after[i]] + 1 + order[i % len(order)]
    when = np.argsort(np.lexsort((np.arange(n), when))) * HOUR
    think = np.where(requests.after == NONE, 0, when - when[requests.after])
    arrival = np.where(requests.after == NONE, when, 0)
    return replace(requests, arrival_ns=arrival, think_ns=think, cancel_ns=np.full(n, NONE), joins=None)


def run_hits(requests: Requests, system: EngineSettings) -> dict[str, Any]:
    apart = replace(system, concurrency=0, closed_loop=False)
    simulation = prepared(Simulation(requests, apart, small_tables()))
    simulation.run()
    counters = simulation.counters()
    return {
        "hit_tokens": counters.matched_tokens,
        "prompt_tokens": counters.admitted_prompt_tokens,
        "evicted_blocks": counters.evicted_blocks,
    }


def replay_hits(requests: Requests, system: EngineSettings) -> dict[str, Any]:
    return replay_cache(Offline(requests, system.block_tokens), system, small_tables())


def same(requests: Requests, system: EngineSettings) -> None:
    ran = run_hits(requests, system)
    if ran["prompt_tokens"] == 0:
        with pytest.raises(UsageError, match="no request could run"):
            replay_hits(requests, system)
        return
    replayed = replay_hits(requests, system)
    assert {name: replayed[name] for name in ran} == ran
    assert 0 <= replayed["hit_rate_tokens"] <= replayed["hit_rate_tokens_optimum"]
    assert replayed["hit_rate_tokens_optimum"] <= replayed["hit_rate_tokens_infinite"] <= 1


@pytest.mark.parametrize("name", SYSTEMS)
def test_hits_are_those_of_a_run(name):
    @SEARCH
    @given(
        SYSTEMS[name],
        st.lists(st.integers(0, 5000), min_size=1, max_size=8),
        st.sampled_from(["", *POLICIES]),
        st.booleans(),
        st.sampled_from(["cold", "cold", "warm", "prefilled"]),
    )
    def check(case: systems.Case, order: list[int], policy: str, overlap: bool, state: str) -> None:
        asks, system = case
        if system.cache.kind == "none":
            system = replace(system, cache=replace(system.cache, kind="hash", free_order="auto"))
        rules = replace(system.cache, eviction=policy, state=state)
        same(far_apart(request_table(asks), order), replace(system, cache=rules, overlap=overlap))

    check()
