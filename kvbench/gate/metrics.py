"""Which way a metric is better, and which ones a table shows."""

from __future__ import annotations

from ..metrics.latency import LATENCIES

LOWER, HIGHER, NEITHER = -1, 1, 0

_BETTER = {
    "finished": HIGHER,
    "duration": LOWER,
    "request_throughput": HIGHER,
    "output_throughput": HIGHER,
    "total_token_throughput": HIGHER,
    "goodput": HIGHER,
    "slo_share": HIGHER,
    "hit_rate": HIGHER,
    "cached_tokens": HIGHER,
    "recomputed_tokens": LOWER,
    "preemptions": LOWER,
    "tail_waste_mean": LOWER,
    "tail_waste_share": LOWER,
    "metadata": LOWER,
    "host_time": LOWER,
    "host_time_exposed": LOWER,
    "device_time": LOWER,
}
"""Metrics that are no latency and have a better side. The others (blocks, steps, evictions, copies) are ways to get
there: a change of them is told, and is neither good nor bad."""

NEED_NOT_BE = (
    *(f"{name}.{statistic}" for name in ("tpot", "itl") for statistic in ("mean", "p50", "p90", "p99")),
    "goodput",
    "slo_share",
    "hit_rate_infinite",
    "hit_rate_optimum",
    "device_idle",
    "load_cv",
    "engine_queue_p99_max",
    "engine_hit_rate_min",
    "hot_prefix_replicas",
    "predicted_error",
    "against_belief",
    *(f"kv_{name}_share" for name in ("tokens", "reserved", "internal", "external")),
)
"""What a whole run may lack: gaps where every answer is one token, goodput where nothing was promised, bounds and idle
time where a phase is left out, shares of memory where nothing was used. The others every measurement has."""

MAIN = (
    *(f"{name}.{statistic}" for name in LATENCIES for statistic in ("mean", "p50", "p99")),
    "request_throughput",
    "output_throughput",
    "goodput",
    "slo_share",
    "hit_rate",
    "preemptions",
    "recomputed_tokens",
)
"""What a comparison shows unless it is asked for all."""


def direction(metric: str) -> int:
    """LOWER, HIGHER or NEITHER is better."""
    name = metric.partition(".")[0]
    return LOWER if name in LATENCIES else _BETTER.get(name, NEITHER)


def is_latency(metric: str) -> bool:
    return metric.partition(".")[0] in LATENCIES
