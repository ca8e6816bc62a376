"""Symptoms from a server's own figures: planted metrics of vLLM and SGLang, result files, and what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.advise.prometheus import histogram, of_samples, parse, since
from kvbench.advise.server_symptoms import RULES, findings
from kvbench.advise.server_view import read_view
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.report.server import CANNOT_TELL, NOT_SHOWN, SHOWN

MODEL = 'model_name="meta-llama/Llama-3.1-8B"'


def lines(name: str, bounds: list[float], samples: list[float], labels: str = MODEL) -> list[str]:
    """A histogram as a server writes it."""
    ends = [sum(x <= bound for x in samples) for bound in bounds]
    found = [f'{name}_bucket{{le="{b}",{labels}}} {n}.0' for b, n in zip(bounds, ends, strict=True)]
    found.append(f'{name}_bucket{{le="+Inf",{labels}}} {len(samples)}.0')
    return [
        f"# TYPE {name} histogram",
        *found,
        f"{name}_sum{{{labels}}} {sum(samples)}",
        f"{name}_count{{{labels}}} {len(samples)}.0",
    ]


TTFT = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0]
GAPS = [0.01, 0.025, 0.05, 0.1, 0.2, 0.5]


def vllm(queue: list[float], gaps: list[float], usage: float, waiting: int, preemptions: int) -> str:
    ttft = [0.08 + q for q in queue]
    engine = f'engine="0",{MODEL}'
    return "\n".join(
        [
            f'vllm:request_success_total{{finished_reason="stop",{engine}}} {len(queue)}.0',
            *lines("vllm:time_to_first_token_seconds", TTFT, ttft, engine),
            *lines("vllm:request_queue_time_seconds", TTFT, queue, engine),
            *lines("vllm:time_per_output_token_seconds", GAPS, gaps, engine),
            f"vllm:num_requests_waiting{{{engine}}} {waiting}.0",
            f"vllm:num_requests_running{{{engine}}} 64.0",
            f"vllm:kv_cache_usage_perc{{{engine}}} {usage}",
            f"vllm:num_preemptions_total{{{engine}}} {preemptions}.0",
            f"vllm:prefix_cache_hits_total{{{engine}}} 400.0",
            f"vllm:prefix_cache_queries_total{{{engine}}} 1000.0",
            "",
        ]
    )


CALM = vllm([0.001] * 100, [0.02] * 100, 0.3, 0, 0)
ILL = vllm([2.0] * 100, [0.02] * 95 + [0.4] * 5, 0.97, 12, 30)


def states(*paths: Path, places: int | None = None) -> dict[str, str]:
    return {f.name: f.state for f in findings(read_view(list(paths)), places)}


def written(folder: Path, text: str, name: str = "metrics.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_metrics_of_vllm_show_what_was_planted(tmp_path):
    ill = states(written(tmp_path, ILL))
    assert [n for n, s in ill.items() if s == SHOWN] == ["waiting", "memory-limits", "prefill-stalls"]
    calm = states(written(tmp_path, CALM))
    assert SHOWN not in calm.values()
    assert calm["waiting"] == calm["memory-limits"] == calm["prefill-stalls"] == NOT_SHOWN
    # never from these metrics
    assert ill["kv-bandwidth"] == ill["prefixes-again"] == ill["idle-device"] == CANNOT_TELL
    assert len(ill) == len(RULES)


def test_two_readings_are_the_time_in_between(tmp_path):
    first = written(tmp_path, vllm([2.0] * 100, [0.02] * 100, 0.3, 0, 30), "a")
    later = written(tmp_path, vllm([2.0] * 100 + [0.0] * 900, [0.02] * 900, 0.3, 0, 30), "b")
    assert states(later)["memory-limits"] == SHOWN
    assert states(first, later)["memory-limits"] == NOT_SHOWN
    assert states(first, later)["waiting"] == NOT_SHOWN
    view = read_view([first, later])
    assert view.requests == 900
    assert view.source.endswith("between two readings")


def test_metrics_of_sglang_by_their_names(tmp_path):
    text = "\n".join(
        [
            *lines("sglang:time_to_first_token_seconds", TTFT, [3.0] * 20),
            *lines("sglang:queue_time_seconds", TTFT, [2.5] * 20),
            *lines("sglang:inter_token_latency_seconds", GAPS, [0.02] * 20),
            *(f'sglang:num_requests_total{{dp_rank="{i}",{MODEL}}} {n}' for i, n in enumerate((90, 10))),
            f"sglang:num_queue_reqs{{{MODEL}}} 40",
            f"sglang:num_running_reqs{{{MODEL}}} 32",
            f"sglang:token_usage{{{MODEL}}} 0.5",
            f"sglang:num_retracted_requests_total{{{MODEL}}} 0",
            f'sglang:cuda_graph_passes_total{{mode="decode_none",{MODEL}}} 60',
            f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",{MODEL}}} 40',
            f"sglang:eplb_balancedness_sum{{{MODEL}}} 60",
            f"sglang:eplb_balancedness_count{{{MODEL}}} 100",
            f"sglang:kv_transfer_latency_ms{{{MODEL}}} 900",
        ]
    )
    path = written(tmp_path, text)
    shown = {n for n, s in states(path).items() if s == SHOWN}
    assert shown == {"waiting", "routing-imbalance", "idle-device", "ranks-wait", "transfers-exposed"}
    known = next(f for f in findings(read_view([path]), 32) if f.name == "waiting")
    assert "32 may run at once: that is the limit" in known.evidence
    unknown = next(f for f in findings(read_view([path]), None) if f.name == "waiting")
    assert "--from" in unknown.missing


@pytest.mark.parametrize("tool", ["vllm", "sglang-oai"])
def test_result_files_of_benchmarks(tmp_path, tool):
    random = np.random.default_rng(1)
    lengths = random.integers(500, 1500, 100).tolist()
    fast = [n * 1e-4 for n in lengths]
    row = {"backend": tool, "completed": 100, "input_lens": lengths, "ttfts": fast, "itls": [[0.02] * 50] * 100}
    calm = states(written(tmp_path, json.dumps(row)))
    assert calm["waiting"] == calm["prefill-stalls"] == NOT_SHOWN
    slow = row | {"ttfts": [t + i * 0.05 for i, t in enumerate(fast)], "itls": [[0.02] * 45 + [0.3] * 5] * 100}
    ill = states(written(tmp_path, json.dumps({"x": 1}) + "\n" + json.dumps(slow) + "\n"))
    assert ill["waiting"] == ill["prefill-stalls"] == SHOWN
    assert ill["memory-limits"] == CANNOT_TELL
    summary = {f"{s}_{n}_ms": v for n in ("ttft", "itl") for s, v in (("mean", 30), ("median", 20), ("p99", 400))}
    brief = states(written(tmp_path, json.dumps(summary)))
    assert brief["prefill-stalls"] == SHOWN
    assert brief["waiting"] == CANNOT_TELL


def test_buckets_that_allow_both_are_no_verdict(tmp_path):
    path = written(tmp_path, vllm([0.0] * 100, [0.02] * 95 + [0.045] * 5, 0.3, 0, 0))
    # p50 in 10 .. 25 ms, p99 in 25 .. 50 ms: between 1 and 5 times
    assert states(path)["prefill-stalls"] == CANNOT_TELL


def test_a_histogram_knows_between_what_its_quantiles_lie():
    text = "\n".join(lines("x", [1.0, 2.0, 4.0], [0.5, 1.5, 1.6, 3.0, 9.0]))
    found = histogram(parse(text, "t"), "nothing", "x")
    assert (found.count, found.sum, found.mean) == (5, 15.6, 3.12)
    assert [found.between(p) for p in (0.1, 0.5, 0.8, 0.99)] == [(0, 1), (1, 2), (2, 4), (4, float("inf"))]
    exact = of_samples([3.0, 1.0, 2.0])
    assert exact.between(0.5)[1] == 2.0
    assert of_samples([]) is None
    restarted = since(parse("a_total 3\nb 7", "t"), parse("a_total 10\nb 9", "t"))
    assert restarted == {"a_total": {(): 3.0}, "b": {(): 7.0}}


def test_wrong_files_are_one_line(tmp_path, capsys):
    for text in ("tgi_queue_size 3\n", "vllm:x{a=\n", '{"a": 1}', "[1, 2]", "{"):
        path = written(tmp_path, text)
        with pytest.raises(UsageError):
            read_view([path])
        assert call(["advise", "--from-server", str(path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    other = written(tmp_path, "sglang:token_usage 0.5\n", "other")
    assert call(["advise", "--from-server", str(written(tmp_path, CALM)), "--from-server", str(other)]) == 2
    assert "is of vLLM" in capsys.readouterr().err
    assert call(["advise", "chat", "--from-server", str(other)]) == 2
    assert call(["advise", "--from-server", str(tmp_path / "none")]) == 2


def test_the_command_tells_with_evidence(tmp_path, capsys):
    path = str(written(tmp_path, ILL))
    assert call(["advise", "--from-server", path]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "30 preemptions among 100 requests (30.0 %)" in out
    assert "Shown: requests wait before their prefill; KV memory limits how many run at once;" in out
    assert call(["advise", "--from-server", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {f["state"] for f in document["findings"]} == {SHOWN, CANNOT_TELL}
    assert call(["advise", "--from-server", path, "--from", "vllm serve llama-3.1-8b --max-num-seqs 64"]) == 0
    assert "64 may run at once: that is the limit" in capsys.readouterr().out
