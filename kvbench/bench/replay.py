"""A workload through a cache without a clock: `--cache-only`."""

from __future__ import annotations

from typing import Any

from ..offline.curve import Offline
from ..offline.replay import replay_cache
from ..workload.build import build_workload
from .configure import Configured
from .step_times import step_costs
from .system import build_system


def replay(configured: Configured) -> dict[str, Any]:
    """Hit rates, each with its bounds, and counts of the workload, in order of arrival. UsageError as `run`."""
    system = build_system(configured.config)
    requests, _ = build_workload(system.config.tree())
    requests.check()
    offline = Offline(requests, system.settings.block_tokens)
    found = replay_cache(requests, system.settings, step_costs(system).tables, offline.keys)
    (bounds,) = offline.bounds([system.settings.cache.num_blocks])
    return beside(found, bounds)


def beside(found: dict[str, Any], bounds: dict[str, float]) -> dict[str, Any]:
    """Every rate followed by its bounds."""
    merged: dict[str, Any] = {}
    for name, value in found.items():
        merged[name] = value
        merged |= {bound: bounds[bound] for bound in (f"{name}_infinite", f"{name}_optimum") if bound in bounds}
    return merged
