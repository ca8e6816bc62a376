"""Overlap in whole runs: what it hides, what it costs, and where it does not pay."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import Result, run
from kvbench.core.errors import UsageError


def both(scenario: str, *texts: str) -> tuple[Result, Result]:
    """The same without overlap and with it."""
    changes = [("here", text) for text in ("num_prompts=60", *texts)]
    results = [run(configure(scenario, None, [*changes, ("here", f"overlap={on}")])) for on in ("false", "true")]
    return results[0], results[1]


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_a_large_model_hides_the_host(preset):
    off, on = (result.record.summary for result in both("chat", f"preset={preset}"))
    assert off["host_time_exposed"] == off["host_time"]
    assert on["host_time_exposed"] < 0.1 * on["host_time"]
    assert on.latencies["itl"].mean < off.latencies["itl"].mean
    assert on.latencies["e2el"].mean < off.latencies["e2el"].mean


def test_a_tiny_model_pays_for_it():
    off, on = (result.record.summary for result in both("tiny-model", "preset=sglang"))
    assert on.latencies["ttft"].mean > off.latencies["ttft"].mean
    assert on.latencies["e2el"].mean > off.latencies["e2el"].mean


def test_an_end_that_is_not_foreseen_costs_a_forward():
    """vLLM foresees ends by max_tokens and no other; SGLang none."""
    results = {
        (preset, factor): both("chat", f"preset={preset}", f"lengths.max_tokens={factor}")
        for preset in ("vllm", "sglang")
        for factor in ("output", "2x")
    }
    extra = {key: on.counters.decode_tokens - off.counters.decode_tokens for key, (off, on) in results.items()}
    assert extra[("vllm", "output")] == 0
    assert extra[("vllm", "2x")] == 60
    assert 50 < extra[("sglang", "output")] <= 60  # none where a prefill batch is planned next


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_the_parts_of_the_time_add_up(overlap):
    result = run(configure("chat", None, [("here", "num_prompts=60"), ("here", f"overlap={overlap}")]))
    c = result.counters
    assert c.busy_ns == c.device_ns + c.exposed_host_ns
    assert 0 <= c.exposed_host_ns <= c.host_ns


def test_static_batching_has_no_next_step_to_plan():
    with pytest.raises(UsageError, match="overlap plans the next step of a continuous batch"):
        both("chat", "batching=static")
