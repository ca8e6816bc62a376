"""A workload through a cache without a clock: `--cache-only`."""

from __future__ import annotations

from ..costs.roofline import roofline
from ..engine.replay import replay_cache
from ..workload.build import build_workload
from .configure import Configured
from .system import build_system


def replay(configured: Configured) -> dict[str, float | int]:
    """Hit rates and counts of the workload, in order of arrival. UsageError as `run`."""
    system = build_system(configured.config)
    requests, _ = build_workload(system.config.tree())
    requests.check()
    return replay_cache(requests, system.settings, roofline(system.deployment, system.costs).tables)
