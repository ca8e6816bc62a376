"""Experts of a run that are spread over devices: what its configuration says of them, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import count, repeat

import numpy as np

from ..cluster.expert_simulation import ExpertSimulation
from ..cluster.lockstep_simulation import LockstepSimulation, one_instance
from ..core.config import Config
from ..core.errors import UsageError
from ..core.requests import I64, Requests
from ..costs.step_times import Costs
from ..experts.keys import BY_REQUEST, BY_STEP, EplbSettings, LoadSettings
from ..experts.layout import Layout
from ..experts.mixture import Mixture, Ranks
from ..experts.popularity import Routing
from ..report.experts import ExpertReport, LayerBalance, MoveRow, RankRow, StepRow, StreamRow
from ..scheduler.rules import TOKEN_BUDGET
from ..workload.keys import FROM_SEED
from .fleet_engines import fleet_of
from .step_times import exchange_of_system, streams_of
from .system import System

_MOST_DOMAINS = 64
"""Popularities of their own that tenants or phases have; further ones share them."""


def rank_simulation(system: System, requests: Requests, costs: Costs) -> LockstepSimulation:
    """Ranks that step together, of one instance or of several behind a router; with experts of their own where the step
    times leave these out."""
    config, domains = system.config, _domains(system.config, requests)
    if domains is not None:  # whose tokens are counted by the rows of a plan, and the calendar has none
        system = replace(system, settings=replace(system.settings, fast=False))
    settings = system.settings
    fleet = fleet_of(system, requests) or one_instance(settings, costs.tables, config["dp"])
    deal, balance = config["dp_deal"], config["dp_balance"]
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
        return LockstepSimulation(requests, fleet, deal, balance=balance)
    if config["eplb.mode"] != "off" and any(incident.kind == "restart" for incident in fleet.incidents):
        raise UsageError(
            f"{config.where['eplb.mode']}: eplb.mode = {config['eplb.mode']}: an instance that restarts would keep the "
            "places of its experts here; set eplb.mode = off, or leave the restart out"
        )
    num = 1 if domains is None else int(domains.max()) + 1
    mixtures = [mixture_of(system, instance, num) for instance in range(len(fleet.instances))]
    return ExpertSimulation(requests, fleet, deal, mixtures, balance, domains)


def _domains(config: Config, requests: Requests) -> I64 | None:
    """(requests,) whose popularity of experts the tokens of each have; None where that does not depend on requests."""
    drift = config["experts.drift"]
    if drift not in BY_REQUEST:
        return None
    names, of_requests = {
        "tenant": (requests.tenants, requests.tenant),
        "phase": (requests.phases, requests.phase),
    }[drift]
    if len(names) < 2:
        raise UsageError(
            f"{config.where['experts.drift']}: experts.drift = {drift}: all requests are of one {drift}; "
            + ("set sharing.tenants" if drift == "tenant" else "give the workload phases")
        )
    return np.asarray(of_requests % _MOST_DOMAINS, np.int64)


def mixture_of(system: System, instance: int = 0, domains: int = 1) -> Mixture:
    """The experts of an instance at t = 0; each draws numbers of its own. domains: of requests, see _domains."""
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
        instance + (config["seed"] if config["experts.seed"] == FROM_SEED else config["experts.seed"]),
        streams_of(system),
        domains,
    )


def _load_settings(config: Config) -> LoadSettings:
    values = config.section("experts")
    return LoadSettings(**{f.name: values[f.name] for f in fields(LoadSettings)})


def _eplb_settings(config: Config) -> EplbSettings:
    values = config.section("eplb")
    return EplbSettings(**{f.name: values[f.name] for f in fields(EplbSettings)})


# ---------------------------------------------------------------- what came of it


def expert_report(simulation: LockstepSimulation) -> ExpertReport:
    """Of a run of several ranks, with or without experts of their own; of a fleet, of all its instances."""
    totals, fleet = simulation.barrier(), simulation.fleet
    of_ranks = zip(
        (sum(int(life.num_steps) for life in lives) for lives in simulation.lives()),
        totals.busy_ns.tolist(),
        totals.wait_ns.tolist(),
        totals.dummy_ns.tolist(),
        totals.dummy_steps.tolist(),
        strict=True,
    )
    ranks = tuple(RankRow(k % fleet.ranks, *row, k // fleet.ranks) for k, row in enumerate(of_ranks))
    num, all_steps = len(fleet.instances), int(totals.steps[:: fleet.ranks].sum())
    all_ns = int(totals.step_ns[:: fleet.ranks].sum())
    if not isinstance(simulation, ExpertSimulation):
        return ExpertReport(all_steps, all_ns, ranks, instances=num)
    mixtures = simulation.mixtures
    steps = tuple(row for i in range(num) for row in _step_rows(simulation, i))
    loads = [loads for i, m in enumerate(mixtures) for loads in m.records.loads[: len(simulation.step_lengths(i))]]
    return ExpertReport(
        all_steps,
        all_ns,
        ranks,
        settings=_settings_line(mixtures[0]),
        experts_ns=sum(m.experts_ns for m in mixtures),
        exchange_ns=sum(m.exchange_ns for m in mixtures),
        chosen=sum(m.chosen for m in mixtures),
        active=sum(m.active for m in mixtures) / max(all_steps * mixtures[0].routing.layers, 1),
        steps_of=steps,
        moves=tuple(row for i, m in enumerate(mixtures) for row in _move_rows(m, i)),
        layers=tuple(_layer_rows(mixtures)),
        device_loads=np.array(loads, np.int64).reshape(len(steps), -1 if steps else 0),
        streams=tuple(_stream_rows(mixtures)),
        notes=tuple(dict.fromkeys(note for m in mixtures for note in m.balancer.notes())),
        instances=num,
    )


def _step_rows(simulation: ExpertSimulation, i: int) -> list[StepRow]:
    r = simulation.mixtures[i].records
    lengths = simulation.step_lengths(i).tolist()
    columns = (r.begin_ns, lengths, r.pause_ns, r.has_prefill, r.mean, r.most, r.decision, r.saved_ns)
    return [StepRow(*row) for row in zip(count(), *columns, repeat(i), strict=False)]


def _move_rows(mixture: Mixture, i: int) -> list[MoveRow]:
    return [
        MoveRow(h.step, h.at_ns, h.before, h.after, h.moves, h.num_bytes, h.pause_ns, h.ready_ns, h.layers, h.kept, i)
        for h in mixture.balancer.history
    ]


def _stream_rows(mixtures: Sequence[Mixture]) -> list[StreamRow]:
    """What two streams have saved, in all instances."""
    gains: dict[tuple[bool, str, str], tuple[int, float]] = {}
    for kind, (steps, ns) in (item for m in mixtures for item in m.gains.items()):
        before = gains.get(kind, (0, 0.0))
        gains[kind] = before[0] + steps, before[1] + ns
    return [StreamRow(*kind, *found) for kind, found in sorted(gains.items())]


def _settings_line(mixture: Mixture) -> str:
    layout, eplb, load = mixture.layout, mixture.balancer.settings, mixture.popularity.settings
    kind = {"zipf": f"zipf {load.exponent:g}", "recorded": f"recorded {load.domain}"}.get(load.load, load.load)
    drift = ""
    if load.drift in BY_STEP:
        drift = f", {load.drift} every {load.drift_steps:,} steps"
    elif load.drift in BY_REQUEST:
        drift = f", {mixture.domains} {load.drift}s with their own"
    placed = "" if eplb.mode == "off" else f" by {eplb.policy}"
    return (
        f"{layout.experts} in {layout.slots} slots on {layout.ranks} devices; load {kind}{drift}; "
        f"EPLB {eplb.mode}{placed}"
    )


def _layer_rows(mixtures: Sequence[Mixture]) -> list[LayerBalance]:
    rows, by_layer = [], np.sum([m.by_layer for m in mixtures], axis=0)
    for phase, name in enumerate(("decode", "with prefill")):
        for layer in range(mixtures[0].routing.layers):
            before, after = by_layer[phase, 0, layer], by_layer[phase, 1, layer]
            rows.append(LayerBalance(layer, name, *(_share(*pair) for pair in (before, after))))
    return rows


def _share(mean: float, most: float) -> float:
    """NaN: no such step."""
    return mean / most if most > 0 else float("nan")
