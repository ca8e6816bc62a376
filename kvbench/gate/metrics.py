"""Which way a metric is better, and which ones a table shows."""

from __future__ import annotations

from ..metrics.catalogue import LOWER, METRICS, NEITHER
from ..metrics.latency import LATENCIES

NEED_NOT_BE = (
    *(f"{name}.{statistic}" for name in ("tpot", "itl") for statistic in ("mean", "p50", "p90", "p99")),
    *(name for name, metric in METRICS.items() if metric.may_lack),
)
"""What a whole run may lack."""

MAIN = (
    *(f"{name}.{statistic}" for name in LATENCIES for statistic in ("mean", "p50", "p99")),
    *(name for name, metric in METRICS.items() if metric.shown),
)
"""What a comparison shows unless it is asked for all."""


def direction(metric: str) -> int:
    """LOWER, HIGHER or NEITHER is better."""
    name = metric.partition(".")[0]
    if name in LATENCIES:
        return LOWER
    return METRICS[name].better if name in METRICS else NEITHER


def is_latency(metric: str) -> bool:
    return metric.partition(".")[0] in LATENCIES
