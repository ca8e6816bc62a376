"""What a server told of itself, whichever it is: from its metrics by their real names, or a benchmark's result file.

vLLM's names: `vllm/v1/metrics/loggers.py`; SGLang's: `python/sglang/srt/metrics/collector.py`. Where versions differ,
the newer name comes first. Of a benchmark: `vllm bench serve --save-result`, `sglang.bench_serving --output-file`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.config import read_text
from ..core.errors import UsageError
from .prometheus import Distribution, Samples, by_label, histogram, of_samples, parse, since, total

_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vLLM": {
        "requests": ("vllm:request_success_total",),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "queue": ("vllm:request_queue_time_seconds",),
        "prefill": ("vllm:request_prefill_time_seconds",),
        "waiting": ("vllm:num_requests_waiting",),
        "running": ("vllm:num_requests_running",),
        "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": ("vllm:num_preemptions_total",),
        "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits"),
        "asked": (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:prefix_cache_queries",
        ),
    },
    "SGLang": {
        "requests": ("sglang:num_requests_total",),
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue": ("sglang:queue_time_seconds",),
        "prefill": (),
        "waiting": ("sglang:num_queue_reqs",),
        "running": ("sglang:num_running_reqs",),
        "usage": ("sglang:token_usage",),
        "preemptions": ("sglang:num_retracted_requests_total", "sglang:num_retractions_sum"),
        "hits": ("sglang:cached_tokens_total",),
        "asked": ("sglang:prompt_tokens_total",),
    },
}
_PREFIX = {"vLLM": "vllm:", "SGLang": "sglang:"}
_SHARES = {"vLLM": ("vllm:request_success_total", "engine"), "SGLang": ("sglang:num_requests_total", "dp_rank")}


@dataclass(frozen=True)
class ServerView:
    """Times in s; None: the file does not say.

    source     "metrics of vLLM", "result of vllm bench serve"
    requests   that ended
    waiting, running, usage   when the metrics were read: requests, and the share of KV in use
    hits, asked   tokens of prompts found in the cache, and looked up
    per_engine    requests by engine, where there are several
    eager      share of forward passes without a captured graph
    balance    mean of the ranks' tokens over the largest, of experts
    transfer   s that a KV transfer took last
    beyond     share of TTFT beyond what prompts of that length take when they come through fastest (a result file)
    """

    source: str
    engine: str
    requests: float | None = None
    ttft: Distribution | None = None
    itl: Distribution | None = None
    queue: Distribution | None = None
    prefill: Distribution | None = None
    waiting: float | None = None
    running: float | None = None
    usage: float | None = None
    preemptions: float | None = None
    hits: float | None = None
    asked: float | None = None
    per_engine: Mapping[str, float] = field(default_factory=dict)
    eager: float | None = None
    balance: float | None = None
    transfer: float | None = None
    beyond: float | None = None


def read_view(paths: Sequence[Path]) -> ServerView:
    """One file, or metrics read twice: then of the time in between.

    raises  UsageError: neither metrics of a known engine nor a result of its benchmark; two that do not go together
    """
    texts = [read_text(path) for path in paths]
    if len(paths) > 2:
        raise UsageError("--from-server takes one file, or metrics of one server read twice")
    if any(text.lstrip().startswith(("{", "[")) for text in texts):
        if len(paths) > 1:
            raise UsageError("--from-server takes one result file; only metrics may be read twice")
        return _of_result(paths[0], texts[0])
    read = [parse(text, str(path)) for path, text in zip(paths, texts, strict=True)]
    engines = [_engine(samples, path) for path, samples in zip(paths, read, strict=True)]
    if len(set(engines)) > 1:
        raise UsageError(f"--from-server: {paths[0]} is of {engines[0]}, {paths[1]} of {engines[1]}")
    return _of_metrics(read[0] if len(read) == 1 else since(read[1], read[0]), engines[0], len(read))


def _engine(samples: Samples, path: Path) -> str:
    for engine, prefix in _PREFIX.items():
        if any(name.startswith(prefix) for name in samples):
            return engine
    named = next((name for name in samples if not name.startswith(("python_", "process_"))), "nothing")
    raise UsageError(
        f"{path}: metrics of another server ({named}); advise reads those of vLLM (vllm:...) and SGLang (sglang:...)"
    )


def _of_metrics(samples: Samples, engine: str, times: int) -> ServerView:
    names = _NAMES[engine]

    def one(key: str) -> float | None:
        return total(samples, *names[key])

    def spread(key: str) -> Distribution | None:
        return histogram(samples, *names[key])

    usages = [value for name in names["usage"] for value in samples.get(name, {}).values()]
    name, label = _SHARES[engine]
    passes = by_label(samples, "sglang:cuda_graph_passes_total", "mode")
    balance, counted = total(samples, "sglang:eplb_balancedness_sum"), total(samples, "sglang:eplb_balancedness_count")
    transfer = total(samples, "sglang:kv_transfer_latency_ms")
    graphs = sum(passes.values())
    return ServerView(
        source=f"metrics of {engine}" + (", the time between two readings" if times > 1 else ", since its start"),
        engine=engine,
        requests=one("requests"),
        ttft=spread("ttft"),
        itl=spread("itl"),
        queue=spread("queue"),
        prefill=spread("prefill"),
        waiting=one("waiting"),
        running=one("running"),
        preemptions=one("preemptions"),
        hits=one("hits"),
        asked=one("asked"),
        usage=max(usages, default=None),
        per_engine=by_label(samples, name, label),
        eager=sum(n for mode, n in passes.items() if "none" in mode.lower()) / graphs if graphs else None,
        balance=balance / counted if balance is not None and counted else None,
        transfer=transfer / 1e3 if transfer else None,
    )


def _of_result(path: Path, text: str) -> ServerView:
    """The last run of the file."""
    try:
        whole = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            whole = json.loads(lines[-1])
        except ValueError as error:
            raise UsageError(f"{path}: not JSON: {error}") from None
    row = whole[-1] if isinstance(whole, list) and whole else whole
    if not isinstance(row, dict) or not {"ttfts", "mean_ttft_ms"} & set(row):
        raise UsageError(
            f"{path}: no result of vllm bench serve or sglang.bench_serving: it has neither ttfts nor mean_ttft_ms"
        )
    tool = "sglang.bench_serving" if "sglang" in str(row.get("backend")) else "vllm bench serve"
    ttfts = [float(x) for x in row.get("ttfts") or ()]
    gaps = [float(gap) for own in row.get("itls") or () for gap in own]
    return ServerView(
        source=f"result of {tool}",
        engine=tool,
        requests=float(row.get("completed") or len(ttfts)),
        ttft=of_samples(ttfts) or _summed(row, "ttft"),
        itl=of_samples(gaps) or _summed(row, "itl"),
        beyond=_beyond(ttfts, row.get("input_lens") or ()),
    )


def _summed(row: Mapping[str, Any], name: str) -> Distribution | None:
    """From median and p99 alone: three buckets."""
    try:
        mean, median, p99 = (float(row[f"{s}_{name}_ms"]) / 1e3 for s in ("mean", "median", "p99"))
    except (KeyError, TypeError, ValueError):
        return None
    return Distribution(
        100.0, 100 * mean, (median * (1 - 1e-9), median, p99 * (1 - 1e-9), p99, float("inf")), (49, 51, 98, 99, 100)
    )


def _beyond(ttfts: Sequence[float], lengths: Sequence[Any]) -> float | None:
    """Of TTFT: what prompts took longer than by token the fastest tenth did; None: the file lacks one of the lists."""
    pairs = [(t, float(n)) for t, n in zip(ttfts, lengths, strict=False) if t > 0 and float(n) > 0]
    if len(pairs) < 10 or len(ttfts) != len(lengths):
        return None
    rates = sorted(t / n for t, n in pairs)
    fastest = rates[len(rates) // 10]
    return sum(max(t - n * fastest, 0.0) for t, n in pairs) / sum(t for t, _ in pairs)
