"""A workload through a cache without a clock: `--cache-only`."""

from __future__ import annotations

import json
from typing import Any

from ..core.config import Config
from ..core.errors import UsageError
from ..core.requests import Requests
from ..costs.tables import CostTables
from ..offline.fleet import replay_fleet
from ..offline.replay import replay_cache
from ..offline.shared import Offline
from ..workload.build import build_workload
from .configure import Configured
from .fleet_engines import fleet_of
from .pairs import is_paired
from .step_times import step_costs
from .system import System, build_system

_PRICELESS = ("blocks", "eviction", "state")
"""Keys of [cache] that no step time depends on."""


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


def replay_system(offline: Offline, system: System, known: dict[str, CostTables] | None = None) -> dict[str, Any]:
    """The same of a workload that is there already: through one cache, or those of a fleet.

    known   cost tables of systems that differ in their cache alone; they are found and added here
    """
    fleet = fleet_of(system, offline.given)
    if fleet is not None:
        return replay_fleet(offline, fleet)
    known = {} if known is None else known
    tree = system.config.tree()
    cache = {key: value for key, value in tree.get("cache", {}).items() if key not in _PRICELESS}
    name = json.dumps(tree | {"cache": cache}, sort_keys=True, default=str)
    if name not in known:
        known[name] = step_costs(system).tables
    return replay_cache(offline, system.settings, known[name])


def offline_view(requests: Requests, config: Config) -> Offline:
    """The workload as the configuration wants it counted."""
    return Offline(requests, config["block_tokens"], config["offline.answers"], config["offline.warm_up"])
