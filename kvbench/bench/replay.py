"""A workload through a cache without a clock: `--cache-only`."""

from __future__ import annotations

from typing import Any

from ..core.config import Config
from ..core.errors import UsageError
from ..core.requests import Requests
from ..offline.fleet import replay_fleet
from ..offline.replay import replay_cache
from ..offline.shared import Offline
from ..workload.build import build_workload
from .configure import Configured
from .fleet_engines import fleet_of
from .pairs import is_paired
from .step_times import step_costs
from .system import System, build_system


def replay(configured: Configured) -> dict[str, Any]:
    """Hit rates, each with its bounds, and counts of the workload, in order of arrival. UsageError as `run`."""
    system = build_system(configured.config)
    if is_paired(system.asked):
        raise UsageError("--cache-only leads requests through one cache; set pd.prefill and pd.decode to 0")
    if (ranks := system.asked["dp"]) > 1:
        raise UsageError(
            f"{system.asked.where['dp']}: --cache-only knows no ranks, and dp = {ranks} have a cache each; "
            f"set dp = 1 and fleet.replicas = {ranks}"
        )
    requests, _ = build_workload(system.config.tree())
    requests.check()
    return replay_system(offline_view(requests, system.config), system)


def replay_system(offline: Offline, system: System) -> dict[str, Any]:
    """The same of a workload that is there already: through one cache, or those of a fleet."""
    fleet = fleet_of(system, offline.given)
    if fleet is not None:
        return replay_fleet(offline, fleet)
    return replay_cache(offline, system.settings, step_costs(system).tables)


def offline_view(requests: Requests, config: Config) -> Offline:
    """The workload as the configuration wants it counted."""
    return Offline(requests, config["block_tokens"], config["offline.answers"], config["offline.warm_up"])
