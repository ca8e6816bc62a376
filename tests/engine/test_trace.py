"""The first requests of a real trace: every timestamp and counter as in the reference, on both paths.

2,000 of them where the code is compiled (see tests/test_jitted.py), fewer where it runs as plain Python.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.jit import PLAIN
from kvbench.core.requests import Requests
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline
from kvbench.costs.tables import CostTables
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import load_trace

from ..reference.engine import TimedEngine
from .compare import assert_equal, run_reference
from .workloads import TRACE, asks_of

pytestmark = pytest.mark.skipif(not TRACE.exists(), reason="the conversation trace is not beside the checkout")

NUM_REQUESTS = 150 if PLAIN else 2000
BLOCKS = 4000 if PLAIN else 30_000
"""So few that blocks are evicted and, among 2,000 requests, sequences are preempted."""

SYSTEMS = {
    "vllm-0.33": EngineSettings(
        SchedulerRules(
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            long_prefill_threshold_when_alone=False,
            self_preemption_ends_step=False,
        ),
        CacheRules("hash", BLOCKS, free_order="unhashed-first"),
    ),
    "sglang": EngineSettings(
        SchedulerRules(discipline=PREFILL_FIRST, chunked_prefill_size=8192, schedule_conservativeness=0.3),
        CacheRules("radix", BLOCKS, free_order="auto"),
    ),
}


@cache
def requests() -> Requests:
    """At twice the trace's own rate, so that requests contend."""
    return load_trace(TRACE, TraceOptions(num_prompts=NUM_REQUESTS, time_scale=0.5))[0]


@cache
def costs() -> CostTables:
    return roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b"))).tables


@cache
def reference(name: str) -> TimedEngine:
    return run_reference(asks_of(requests()), SYSTEMS[name], costs())


@pytest.mark.parametrize("fast", [False, True], ids=["step", "calendar"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_first_requests(name, fast):
    simulation = Simulation(requests(), replace(SYSTEMS[name], fast=fast), costs())
    simulation.run()
    assert_equal(simulation, reference(name))
    counters = simulation.counters()
    assert counters.path == ("calendar" if fast else "step")
    assert counters.evicted_blocks > 0
    assert PLAIN or counters.preemptions > 0
