"""A replay finds what a run of requests far apart finds: to the token, whatever preset, cache and policy."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.bench.configure import configure
from kvbench.bench.system import build_system
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.core.requests import NONE, Requests
from kvbench.engine.settings import EngineSettings
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.offline.warm import prepared
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.scheduler.presets import PRESETS
from kvbench.workload.build import build_workload
from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import load_trace

from ..engine import systems
from ..engine.compare import small_tables
from ..engine.workloads import TRACE, request_table

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


def finished_run(requests: Requests, system: EngineSettings) -> Simulation:
    apart = replace(system, concurrency=0, closed_loop=False, serial_tokenizer=False)  # samples come at one time
    apart = replace(apart, tokenize_ns_per_token=0, tokenize_ns_per_request=0, output_ns_per_token=0)
    simulation = prepared(Simulation(requests, apart, small_tables()))
    simulation.run()
    return simulation


def run_hits(simulation: Simulation) -> dict[str, Any]:
    counters = simulation.counters()
    return {
        "hit_tokens": counters.matched_tokens,
        "prompt_tokens": counters.admitted_prompt_tokens,
        "evicted_blocks": counters.evicted_blocks,
    }


def replay_hits(requests: Requests, system: EngineSettings) -> dict[str, Any]:
    return replay_cache(Offline(requests, system.block_tokens), system, small_tables())


def same(requests: Requests, system: EngineSettings) -> None:
    """Hits, prompts and evictions of a replay are those of a run, and within their bounds."""
    ran = run_hits(finished_run(requests, system))
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
        requests, system = far_apart(request_table(asks), order), replace(system, cache=rules, overlap=overlap)
        same(requests, system)

    check()


# ---------------------------------------------------------------- generated sessions and traces

SESSIONS = {
    "num_prompts": 60,
    "lengths": {"prompt": {"distribution": "uniform", "min": 5, "max": 90}, "output": 40},
    "sharing": {"groups": 3, "prefix": 70},
    "sessions": {"turns": {"distribution": "uniform", "min": 1, "max": 5}, "think_s": 1.0},
}


def system_of(preset: str, *changes: str) -> EngineSettings:
    """As `kvbench run` makes it."""
    given = [("a test", change) for change in (f"preset={preset}", *changes)]
    return build_system(configure("chat", changes=given).config).settings


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("block_tokens", [1, 16, 48])
@pytest.mark.parametrize("preset", PRESETS)
def test_generated_sessions(preset, block_tokens, samples):
    requests, _ = build_workload(SESSIONS | {"seed": block_tokens})
    requests = far_apart(replace(requests, samples=np.full(len(requests), samples)), [3, 1, 2, 40, 7])
    blocks = 3_000 // block_tokens
    system = system_of(preset, f"block_tokens={block_tokens}", f"cache.blocks={blocks}")
    same(requests, system)
    assert replay_hits(requests, system)["hit_tokens"] > 0


TRACES = TRACE.parents[1]
FILES = (
    "azure/AzureLLMInferenceTrace_code.csv",
    "burstgpt/burstgpt_1_head400.csv",
    "inference-perf/examples/otel/test_traces/advanced",
    "inference-perf/examples/trace-replay/trace.csv",
    "llmservingsim/workload_me2_01_mixed.jsonl",
    "lmcache-agent-trace/taubench/253f1bdf4cfa489d2b5801d3b46fc498.jsonl",
    "mooncake/conversation_trace.jsonl",
    "servegen/reason/deepseek-r1",
    "tracelab/replay/examples/multi_session_large.csv",
    "weka-cc/traces/trace_0021.json",
)


def window(path: str, num_prompts: int, longest_output: int) -> Requests:
    """The first requests of a trace, with short answers."""
    options = TraceOptions(num_prompts=num_prompts, chars_per_token=4.0, duration_s=60.0 if "servegen" in path else 0.0)
    requests, _ = load_trace(TRACES / path, options)
    short = np.minimum(requests.output_tokens, longest_output)
    return replace(requests, output_tokens=short, max_tokens=np.maximum(short, 1))


@pytest.mark.skipif(not TRACES.exists(), reason="needs the traces that lie beside the checkout")
@pytest.mark.parametrize("path", FILES)
def test_a_window_of_every_trace(path):
    requests = far_apart(window(path, 10, 20), [1])
    for preset in ("vllm", "sglang"):
        same(requests, system_of(preset, "block_tokens=64"))


@pytest.mark.skipif(not TRACE.exists() or PLAIN or "KVBENCH_LONG" not in os.environ, reason="KVBENCH_LONG=1, compiled")
@pytest.mark.parametrize("path", FILES)
def test_every_whole_trace(path):
    requests = far_apart(window(path, 0, 1 << 20), [1])
    for preset, block_tokens, blocks in product(("vllm", "sglang"), (16, 512), (3_000, 40_000)):
        same(requests, system_of(preset, f"block_tokens={block_tokens}", f"cache.blocks={blocks}"))
