"""The step times of a system: what its configuration says about them, found and made into cost tables."""

from __future__ import annotations

from ..core.config import Config
from ..costs.graphs import captured_graphs
from ..costs.sources import find_step_times
from ..costs.step_times import Costs, StepTimes, Wanted, costs_of
from ..costs.tables import Graphs
from .system import System, engine_limits


def step_costs(system: System) -> Costs:
    """Cost tables of a system, padded to its engine's graphs. UsageError: a file that does not fit it."""
    return costs_of(found_times(system), system.costs, graphs_of(system))


def found_times(system: System) -> StepTimes:
    """The step times themselves. UsageError: as above."""
    return find_step_times(system.deployment, system.costs, _wanted(system.config))


def graphs_of(system: System) -> Graphs:
    """What the captured graphs of its engine pad steps to."""
    limits = engine_limits(system.config)
    return captured_graphs(
        system.costs.graphs,
        limits.max_num_seqs,
        limits.max_batched_tokens,
        system.deployment.device.memory_bytes,
        system.deployment.tp,
    )


def _wanted(config: Config) -> Wanted:
    engine = str(config["preset"]).rpartition("-")[0]
    return Wanted(config["device"], config["step_times"], engine, config["dp"], config["ep"])
