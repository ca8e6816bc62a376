"""The step times of a system: what its configuration says about them, found and made into cost tables."""

from __future__ import annotations

from ..core.config import Config
from ..costs.graphs import captured_graphs
from ..costs.sources import find_step_times
from ..costs.step_times import Costs, Wanted, costs_of
from .system import System, engine_limits


def step_costs(system: System) -> Costs:
    """Cost tables of a system, padded to its engine's graphs. UsageError: a file that does not fit it."""
    config, deployment = system.config, system.deployment
    limits = engine_limits(config)
    graphs = captured_graphs(
        system.costs.graphs,
        limits.max_num_seqs,
        limits.max_batched_tokens,
        deployment.device.memory_bytes,
        deployment.tp,
    )
    return costs_of(find_step_times(deployment, system.costs, _wanted(config)), system.costs, graphs)


def _wanted(config: Config) -> Wanted:
    engine = str(config["preset"]).rpartition("-")[0]
    return Wanted(config["device"], config["step_times"], engine)
