"""What it costs that a router does not know everything: the same requests under the oracle."""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import UsageError
from ..metrics.fleet import Regret
from ..metrics.latency import Summary
from .configure import Configured
from .fleet import is_fleet, without_ignorance
from .run import Progress, Result, run

FIGURES = ("ttft.p50", "ttft.p99", "e2el.p99", "hit_rate", "load_cv")


def check_regret(configured: Configured) -> None:
    """UsageError: there is no router to compare."""
    if not is_fleet(configured.config) or configured.config["pd.prefill"] > 0:
        raise UsageError("--regret compares a router with the oracle; set fleet.replicas (--replicas N)")


def regret_of(configured: Configured, result: Result, progress: Progress | None = None) -> list[Regret]:
    """Run the oracle on the same requests."""
    oracle = replace(configured, config=without_ignorance(configured.config))
    best = run(oracle, progress).record.summary
    own = result.record.summary
    return [Regret(figure, _figure(own, figure), _figure(best, figure)) for figure in FIGURES]


def _figure(summary: Summary, name: str) -> float | None:
    latency, _, percentile = name.partition(".")
    if percentile:
        found: float | None = getattr(summary.latencies[latency], percentile)
        return found
    return summary[name]
