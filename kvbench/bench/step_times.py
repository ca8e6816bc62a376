"""The step times of a system: what its configuration says about them, found and made into cost tables."""

from __future__ import annotations

from dataclasses import fields, replace

from ..core.config import Config
from ..costs.exchange import Exchange, Network, exchange_of
from ..costs.graph_keys import GraphSettings, SyncSettings
from ..costs.graphs import Graphs, captured_graphs, chosen_graphs
from ..costs.roofline import kernels_of_step
from ..costs.sources import find_step_times
from ..costs.step_times import Costs, StepTimes, Wanted, costs_of
from ..costs.tables import NO_EXPERTS
from .system import System, engine_limits, own_graphs


def step_costs(system: System) -> Costs:
    """Cost tables of a system, padded to its engine's graphs. UsageError: a file that does not fit it."""
    sync = SyncSettings(**system.config.section("sync"))
    settings = replace(system.costs, step_overhead_us=system.costs.step_overhead_us + sync.block_tables_us)
    times = found_times(system)
    waited = replace(times, launch_ns=times.launch_ns + sync.exposed_us * 1e3)
    experts = exchange_of_system(system).times if prices_experts(system, times) else NO_EXPERTS
    return costs_of(waited, settings, graphs_of(system), experts)


def prices_experts(system: System, times: StepTimes) -> bool:
    """Routed experts are priced step by step, by their loads: they are spread, and the step times leave them out."""
    return system.deployment.ep > 1 and times.origin.kind == "roofline"


def exchange_of_system(system: System) -> Exchange:
    """What spread experts cost a device. UsageError: its devices do not fill nodes."""
    values = system.config.section("experts")
    return exchange_of(system.deployment, system.costs, Network(*(values[f.name] for f in fields(Network))))


def found_times(system: System) -> StepTimes:
    """The step times themselves. UsageError: as above."""
    return find_step_times(system.deployment, system.costs, _wanted(system.config))


def graphs_of(system: System) -> Graphs:
    """What the captured graphs of its engine pad steps to, and what their launches take at least."""
    config, d = system.config, system.deployment
    limits, own = engine_limits(config), own_graphs(config, d.device)
    default = captured_graphs("vllm", limits.max_num_seqs, limits.max_batched_tokens, d.device.memory_bytes, d.tp)
    settings = GraphSettings(**config.section("graph"))
    return chosen_graphs(settings, own, default, d.model.num_layers, kernels_of_step(d))


def _wanted(config: Config) -> Wanted:
    engine = str(config["preset"]).rpartition("-")[0]
    return Wanted(config["device"], config["step_times"], engine, config["dp"], config["ep"])
