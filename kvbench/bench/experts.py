"""Experts of a run that are spread over devices: what its configuration says of them, and what is told of it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ..cluster.expert_simulation import ExpertSimulation
from ..cluster.lockstep_simulation import LockstepSimulation
from ..core.config import Config
from ..core.errors import UsageError
from ..core.requests import Requests
from ..costs.step_times import Costs
from ..experts.keys import EplbSettings, LoadSettings
from ..experts.layout import Layout
from ..experts.mixture import Mixture, Ranks
from ..experts.popularity import Routing
from ..report.experts import ExpertReport, LayerBalance, MoveRow, RankRow, StepRow, StreamRow
from ..scheduler.rules import TOKEN_BUDGET
from ..workload.keys import FROM_SEED
from .fleet_engines import fleet_of
from .step_times import exchange_of_system, streams_of
from .system import System


def rank_simulation(system: System, requests: Requests, costs: Costs) -> LockstepSimulation:
    """Ranks that step together; with experts of their own where the step times leave these out."""
    config, settings = system.config, system.settings
    if fleet_of(system, requests) is not None:
        raise UsageError(
            f"{config.where['ep']}: ep = {config['ep']} is one instance of ranks that step together, "
            "and no router stands in front of several; leave out the fleet"
        )
    ranks, deal, balance = config["dp"], config["dp_deal"], config["dp_balance"]
    if balance and settings.scheduler.discipline != TOKEN_BUDGET:
        raise UsageError(
            f"{config.where['dp_balance']}: dp_balance is a rule of vllm-ascend; it needs scheduler.discipline = "
            f"{TOKEN_BUDGET}"
        )
    if costs.tables.expert_token_ns == 0.0:
        if config["eplb.mode"] != "off":
            raise UsageError(
                f"{config.where['eplb.mode']}: eplb.mode = {config['eplb.mode']}: {costs.source} has experts in its "
                "steps, whatever their loads; leave out that file, or set eplb.mode = off"
            )
        return LockstepSimulation(requests, settings, costs.tables, ranks, deal, balance=balance)
    return ExpertSimulation(requests, settings, costs.tables, ranks, deal, mixture_of(system), balance)


def mixture_of(system: System) -> Mixture:
    """The experts of the instance at t = 0."""
    exchange = exchange_of_system(system)
    config, moe, deployment = system.config, system.deployment.model.moe, system.deployment
    assert moe is not None
    layers = deployment.model.num_layers - moe.dense_layers
    routing = Routing(layers, moe.num_experts, moe.experts_per_token, moe.groups, moe.group_limit)
    slots = moe.num_experts + deployment.redundant
    layout = Layout(moe.num_experts, slots, deployment.ep, moe.groups, exchange.nodes)
    return Mixture(
        routing,
        layout,
        Ranks(config["dp"], config["tp"], config["experts.exchange"]),
        exchange,
        _load_settings(config),
        _eplb_settings(config),
        config["seed"] if config["experts.seed"] == FROM_SEED else config["experts.seed"],
        streams_of(system),
    )


def _load_settings(config: Config) -> LoadSettings:
    values = config.section("experts")
    return LoadSettings(**{f.name: values[f.name] for f in fields(LoadSettings)})


def _eplb_settings(config: Config) -> EplbSettings:
    values = config.section("eplb")
    return EplbSettings(**{f.name: values[f.name] for f in fields(EplbSettings)})


# ---------------------------------------------------------------- what came of it


def expert_report(simulation: LockstepSimulation) -> ExpertReport:
    """Of a run of several ranks, with or without experts of their own."""
    totals = simulation.barrier()
    columns = (totals.busy_ns, totals.wait_ns, totals.dummy_ns, totals.dummy_steps)
    ranks = [
        RankRow(k, int(e.num_steps), *(int(column[k]) for column in columns)) for k, e in enumerate(simulation.engines)
    ]
    if not isinstance(simulation, ExpertSimulation):
        return ExpertReport(totals.steps, totals.step_ns, tuple(ranks))
    mixture = simulation.mixture
    r = mixture.records
    steps = tuple(
        StepRow(i, r.begin_ns[i], ns, r.pause_ns[i], r.has_prefill[i], r.mean[i], r.most[i], r.decision[i])
        for i, ns in enumerate(simulation.step_lengths().tolist())
    )
    moves = tuple(
        MoveRow(h.step, h.at_ns, h.before, h.after, h.moves, h.num_bytes, h.pause_ns, h.ready_ns, h.layers, h.kept)
        for h in mixture.balancer.history
    )
    return ExpertReport(
        totals.steps,
        totals.step_ns,
        tuple(ranks),
        settings=_settings_line(mixture),
        experts_ns=mixture.experts_ns,
        exchange_ns=mixture.exchange_ns,
        chosen=mixture.chosen,
        active=mixture.active / max(totals.steps * mixture.routing.layers, 1),
        steps_of=steps,
        moves=moves,
        layers=tuple(_layer_rows(mixture)),
        device_loads=np.array(r.loads[: len(steps)], np.int64).reshape(len(steps), -1 if steps else 0),
        streams=tuple(StreamRow(*kind, *found) for kind, found in sorted(mixture.gains.items())),
        notes=mixture.balancer.notes(),
    )


def _settings_line(mixture: Mixture) -> str:
    layout, eplb, load = mixture.layout, mixture.balancer.settings, mixture.popularity.settings
    kind = {"zipf": f"zipf {load.exponent:g}", "recorded": f"recorded {load.domain}"}.get(load.load, load.load)
    drift = "" if load.drift == "none" else f", {load.drift} every {load.drift_steps:,} steps"
    placed = "" if eplb.mode == "off" else f" by {eplb.policy}"
    return (
        f"{layout.experts} in {layout.slots} slots on {layout.ranks} devices; load {kind}{drift}; "
        f"EPLB {eplb.mode}{placed}"
    )


def _layer_rows(mixture: Mixture) -> list[LayerBalance]:
    rows = []
    for phase, name in enumerate(("decode", "with prefill")):
        for layer in range(mixture.routing.layers):
            before, after = mixture.by_layer[phase, 0, layer], mixture.by_layer[phase, 1, layer]
            rows.append(LayerBalance(layer, name, *(_share(*pair) for pair in (before, after))))
    return rows


def _share(mean: float, most: float) -> float:
    """NaN: no such step."""
    return mean / most if most > 0 else float("nan")
