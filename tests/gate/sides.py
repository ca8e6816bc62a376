"""Runs with values of a test's choosing, as summary.csv holds them."""

from __future__ import annotations

from typing import Any

from kvbench.gate.runs import Run, runs_of
from kvbench.gate.verdict import MODELLED
from kvbench.metrics.latency import Summary
from kvbench.metrics.percentiles import Distribution
from tests.runs import record


def summary(**values: Any) -> Summary:
    """ttft in ms (its mean and every percentile), and scalars by name."""
    base = record().summary
    ttft = values.pop("ttft", 10.0)
    bounds = {} if ttft is None else {"p50_low": ttft * 0.9, "p50_high": ttft * 1.1}
    latencies = base.latencies | {"ttft": Distribution(ttft, ttft, ttft, ttft, None, None, 500, **bounds)}
    scalars = base.scalars | {name: (value, base.scalars[name][1]) for name, value in values.items()}
    return Summary(latencies, scalars, base.statuses)


def runs(seeds: int = 1, clock: str = MODELLED, values: dict[str, Any] | None = None, **identity: Any) -> list[Run]:
    """One run for each seed. values: name -> value, or a list of one for each seed."""
    found = []
    for seed in range(seeds):
        own = {name: v[seed] if isinstance(v, list) else v for name, v in (values or {}).items()}
        changed = {"seed": seed, "fingerprint": f"workload {seed}", "clock": clock} | identity
        found += runs_of([record(summary=summary(**own), **changed)])
    return found
