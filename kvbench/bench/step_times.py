"""The step times of a system: what its configuration says about them, found and made into cost tables."""

from __future__ import annotations

from dataclasses import fields, replace

from ..core.config import Config
from ..core.errors import UsageError
from ..costs.exchange import Exchange, Network, exchange_of
from ..costs.graph_keys import GraphSettings, SyncSettings
from ..costs.graphs import Graphs, captured_graphs, chosen_graphs
from ..costs.roofline import kernels_of_step, make_rank
from ..costs.sources import find_step_times
from ..costs.step_times import Costs, StepTimes, Wanted, costs_of
from ..costs.stream_keys import StreamSettings
from ..costs.streams import Streams, streamed
from ..costs.tables import NO_EXPERTS
from .system import System, engine_limits, own_graphs


def step_costs(system: System) -> Costs:
    """Cost tables of a system, padded to its engine's graphs. UsageError: a file that does not fit it."""
    sync = SyncSettings(**system.config.section("sync"))
    settings = replace(system.costs, step_overhead_us=system.costs.step_overhead_us + sync.block_tables_us)
    times = found_times(system)
    waited = replace(times, launch_ns=times.launch_ns + sync.exposed_us * 1e3)
    experts = exchange_of_system(system).times if prices_experts(system, times) else NO_EXPERTS
    if (streams := streams_of(system)) is not None and experts == NO_EXPERTS:
        _check_streams(system, times)
        waited = replace(waited, linear=streamed(waited.linear, streams))
    return costs_of(waited, settings, graphs_of(system), experts, _wanted(system.config).engine)


def prices_experts(system: System, times: StepTimes) -> bool:
    """Routed experts are priced step by step, by their loads: they are spread, and the step times leave them out."""
    return system.deployment.ep > 1 and times.origin.kind == "roofline"


def streams_of(system: System) -> Streams | None:
    """The streams of a rank; None: none is used."""
    settings, model = StreamSettings(**system.config.section("streams")), system.deployment.model
    if settings.shared_expert == settings.two_batch == "off" or model.moe is None:
        return None
    rank = make_rank(system.deployment, system.costs)
    return Streams(rank, settings, model.num_layers - model.moe.dense_layers, system.costs.launch_us)


def _check_streams(system: System, times: StepTimes) -> None:
    where = system.config.where
    if times.origin.kind != "roofline":
        raise UsageError(
            f"{where['streams.shared_expert']}: streams are priced by what work wants of a device; "
            f"{times.origin.source} has measured steps: leave out that file, or set streams.shared_expert = off"
        )
    if system.config["streams.two_batch"] == "on":
        raise UsageError(
            f"{where['streams.two_batch']}: streams.two_batch = on puts compute beside an exchange between devices; "
            "ep = 1 has none"
        )


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
