"""What lies in the cache at t = 0, and KV that comes with a request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.requests import Requests
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline
from kvbench.engine.settings import EngineSettings
from kvbench.offline.visited import shared_prefix_tokens
from kvbench.offline.warm import prepared
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.workload.build import build_workload

VLLM = EngineSettings(SchedulerRules(), CacheRules("hash", 4000), check=True)
SGLANG = EngineSettings(
    SchedulerRules(discipline=PREFILL_FIRST), CacheRules("radix", 4000, free_order="append"), check=True
)
SYSTEMS = pytest.mark.parametrize("system", [VLLM, SGLANG], ids=["vllm", "sglang"])
PREFIX = 64


@pytest.fixture(scope="module")
def costs():
    return roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b"))).tables


@pytest.fixture(scope="module")
def requests() -> Requests:
    found, _ = build_workload(
        {
            "num_prompts": 12,
            "arrivals": {"process": "poisson", "rate": 5.0},
            "lengths": {"prompt": 150, "output": 20},
            "sharing": {"groups": 1, "prefix": PREFIX},
        }
    )
    return found


def run(requests: Requests, system: EngineSettings, costs, state: str = "cold") -> Simulation:
    simulation = prepared(Simulation(requests, replace(system, cache=replace(system.cache, state=state)), costs))
    assert simulation.run()
    return simulation


@SYSTEMS
def test_a_cold_cache_gives_the_first_visitor_nothing(requests, costs, system):
    assert run(requests, system, costs).journal().cached_tokens[0] == 0


@SYSTEMS
def test_prefilled_holds_the_shared_prefix_and_nothing_else(requests, costs, system):
    assert set(shared_prefix_tokens(requests)) == {PREFIX}
    assert set(run(requests, system, costs, "prefilled").journal().cached_tokens) == {PREFIX}


@SYSTEMS
def test_warm_has_seen_every_prompt_and_counts_none_of_it(requests, costs, system):
    cold, warm = run(requests, system, costs), run(requests, system, costs, "warm")
    journal = warm.journal()
    whole = (requests.prompt_tokens - 1) // 16 * 16  # the last token is computed, come what may
    assert np.array_equal(journal.cached_tokens, whole)
    assert warm.counters().evicted_blocks == 0
    assert warm.counters().inserted_blocks <= cold.counters().inserted_blocks
    assert (journal.first_token_ns - journal.arrival_ns).sum() < (
        cold.journal().first_token_ns - cold.journal().arrival_ns
    ).sum()


@SYSTEMS
def test_a_cache_that_is_too_small_to_be_warm_still_runs(requests, costs, system):
    small = replace(system, cache=replace(system.cache, num_blocks=40))
    assert set(run(requests, small, costs, "warm").journal().status) == {0}


@SYSTEMS
def test_kv_that_comes_with_a_request_is_installed_and_is_no_hit(requests, costs, system):
    present = replace(requests, present_tokens=requests.prompt_tokens - 1)
    brought, computed = run(present, system, costs), run(requests, system, costs)
    assert brought.counters().prefill_tokens < computed.counters().prefill_tokens / 4
    assert np.array_equal(brought.journal().output_tokens, computed.journal().output_tokens)
    assert brought.journal().cached_tokens[0] == 0
    assert brought.journal().recomputed_tokens.sum() == 0


@SYSTEMS
def test_kv_that_came_is_lost_with_the_memory(costs, system):
    many, _ = build_workload(
        {"num_prompts": 6, "arrivals": {"process": "all-at-once"}, "lengths": {"prompt": 100, "output": 150}}
    )
    # SGLang reserves for outputs: make it believe in short ones, so that it has to retract.
    rules = replace(system.scheduler, schedule_conservativeness=0.05)
    tight = replace(system, scheduler=rules, cache=replace(system.cache, num_blocks=40))
    simulation = run(replace(many, present_tokens=many.prompt_tokens - 1), tight, costs)
    assert simulation.counters().preemptions > 0
    assert simulation.journal().recomputed_tokens.sum() > 0
    assert set(simulation.journal().status) == {0}
