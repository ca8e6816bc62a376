"""What `trace info` and `trace fit` say, on traces small enough to be counted by hand."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kvbench.bench.trace_fit import fit_trace, hit_rate
from kvbench.bench.trace_info import trace_info
from kvbench.workload.build import build_workload
from kvbench.workload.fit import distance, length, shared_tokens
from kvbench.workload.lengths import whole_numbers
from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import load_trace

from ..workload.examples import EXAMPLES
from ..workload.files import CONVERSATION, jsonl, row

COMPILED = os.environ.get("KVBENCH_TEST_JIT") == "1"


def small(tmp_path):
    """Three prompts: two share a block of 512; the third is the first again, at its own partial block too."""
    rows = [row(0, 1_100, 5, hash_ids=[0, 1, 2]), row(1_000, 1_024, 7, hash_ids=[0, 3]),
            row(4_000, 1_100, 0, hash_ids=[0, 1, 2]), "{"]  # fmt: skip
    return load_trace(jsonl(tmp_path, *rows), TraceOptions(skip_bad_rows=True))


def test_counted_by_hand(tmp_path):
    found = trace_info(*small(tmp_path), sizes=(256,))
    assert (found["format"], found["requests"], found["bad_rows"]) == ("mooncake", 3, 1)
    assert found["prompt_tokens"] == {
        "mean": 3_224 / 3,
        "p50": 1_100,
        "p90": 1_100,
        "p99": 1_100,
        "min": 1_024,
        "max": 1_100,
    }
    assert found["output_tokens"]["zero"] == 1
    assert (found["duration_s"], found["rate_rps"], found["largest_gap_s"]) == (4.0, 0.75, 3.0)
    assert found["gap_cv"] == 0.5  # gaps of 1 and 3 s
    per_second = np.array([1, 1, 0, 0, 1])
    assert found["variance_to_mean_per_s"] == pytest.approx(per_second.var() / per_second.mean())
    assert (found["blocks"], found["distinct_blocks"], found["one_time_share"]) == (8, 4, 0.25)
    assert found["ids_name_prefixes"]
    # ages of 0, 1, 2: 1 and 3, 4, 4 s
    assert found["reuse_age_s"]["p50"] == 3.5

    def same(blocks: int, size: int) -> dict[str, float]:
        """Answers are found by nobody here."""
        tokens = blocks * size / 3_224
        return {"block_tokens": size, "blocks": blocks / (3 * (1024 // size)), "tokens": tokens, "prompts": tokens}

    by_size = {rates["block_tokens"]: rates for rates in found["hit_rates"]}
    assert by_size[512] == {**same(3, 512), "ids": 4 / 8}
    assert by_size[256] == {**same(6, 256), "ids": None}


def test_ids_that_name_contents_are_told(tmp_path):
    rows = [row(0, 1_024, hash_ids=[0, 5]), row(1, 1_024, hash_ids=[1, 5])]
    found = trace_info(*load_trace(jsonl(tmp_path, *rows)), sizes=(512,))
    assert found["ids_name_prefixes"] is False
    assert found["hit_rates"][0]["blocks"] == 0


def test_lengths_alone_hit_nothing(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(EXAMPLES["lengths"])
    found = trace_info(*load_trace(path), sizes=(16,))
    assert (found["one_time_share"], found["reuse_age_s"]["p50"], found["rate_rps"]) == (1.0, None, None)
    assert found["hit_rates"] == [{"block_tokens": 16, "blocks": 0.0, "tokens": 0.0, "prompts": 0.0, "ids": None}]


def test_sessions_and_think_times(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(EXAMPLES["weka"])
    found = trace_info(*load_trace(path), sizes=(16,))
    assert (found["sessions"], found["turns"]["max"], found["think_s"]["p50"]) == (2, 3, 4.0)
    # the head of the session comes again after 10 s, that of the subagent after 2 s, when answers take no time
    assert found["reuse_age_s"]["mean"] == pytest.approx((10 + 10 + 2 + 2) / 4)


@pytest.mark.skipif(not CONVERSATION.exists() or not COMPILED, reason="needs the trace and compiled code (test_jitted)")
def test_the_conversation_trace():
    found = trace_info(*load_trace(CONVERSATION))
    rates = {r["block_tokens"]: r for r in found["hit_rates"]}[512]
    assert [round(rates[name], 4) for name in ("ids", "blocks", "tokens")] == [0.3664, 0.3819, 0.3734]
    assert [round(found["reuse_age_s"][p]) for p in ("p50", "p90", "p99")] == [114, 519, 1_578]
    assert round(100 * found["one_time_share"], 1) == 75.8
    assert [round(found["output_tokens"][p]) for p in ("p50", "p90", "p99")] == [350, 597, 1_119]
    assert [round(found["prompt_tokens"][p]) for p in ("p50", "p90", "p99")] == [6_909, 27_367, 85_400]


def test_distance():
    one = np.arange(100)
    assert distance(one, one) == 0
    assert distance(one, one + 50) == 0.5
    assert distance(one, one + 1_000) == 1.0
    assert distance(one, one[:0]) == 1.0


@pytest.mark.parametrize("kind", ["lognormal", "empirical", "fixed"])
def test_a_distribution_is_found_again(kind):
    u = (np.arange(2_000) + 0.5) / 2_000
    spec = {
        "lognormal": {"distribution": "lognormal", "median": 700, "sigma": 0.9},
        "empirical": {"distribution": "empirical", "values": [5, 900, 901, 4_000], "weights": [4, 2, 1, 3]},
        "fixed": 77,
    }[kind]
    values = whole_numbers(spec, u, "x")
    found = length(values)
    assert (found["distribution"] if isinstance(found, dict) else "fixed") == kind
    assert distance(whole_numbers(found, u, "y"), values) < 0.03


def workload(**tables):
    return build_workload({"num_prompts": 150, **tables})[0]


def test_a_fit_finds_a_workload_again():
    made = workload(
        arrivals={"rate": 8.0, "burstiness": 0.5},
        lengths={"prompt": {"distribution": "uniform", "min": 30, "max": 90}, "output": 20},
        sharing={"groups": 6, "prefix": 64, "zipf": 1.0},
    )
    fit = fit_trace(made)
    apart = {name: values[2] for name, values in fit.distances.items()}
    assert apart["prompt tokens"] < 0.15
    assert apart["output tokens"] == 0
    assert apart["gaps of arrivals"] < 0.2
    assert abs(apart["hit rate"]) < 0.1
    assert fit.tables["arrivals"]["rate"] == pytest.approx(8.0, rel=0.3)
    again = build_workload({**fit.tables, "seed": 0})[0]
    assert fit.distances["hit rate"][1] == hit_rate(again, fit.block_tokens)


def test_a_fit_of_sessions():
    made = workload(
        sessions={"turns": 5, "think_s": 2.0}, lengths={"prompt": 100, "output": 30}, arrivals={"rate": 4.0}
    )
    fit = fit_trace(made)
    assert fit.tables["sessions"] == {"turns": 5, "think_s": 2.0}
    assert fit.tables["lengths"] == {"prompt": 100, "output": 30}
    assert abs(fit.distances["hit rate"][2]) < 0.02


def test_shared_tokens_are_those_of_another_prompt():
    made = workload(sharing={"groups": 2, "prefix": 40}, lengths={"prompt": 50, "output": 3})
    assert set(shared_tokens(made, 16).tolist()) == {32}
