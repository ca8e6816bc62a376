"""Prefill and decode engines as systems of their own, the links between them, and what only their record shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.units import NEVER_NS, NS_PER_S, NS_PER_US
from ..engine.settings import EngineSettings
from ..pairs.settings import PairRules, PairSettings, faults_of, protocol_of, transfer_of
from ..routing.settings import RouterSettings
from .pairs import SIDES, is_paired, settings_of, side_of
from .step_times import step_costs
from .system import System, build_system

if TYPE_CHECKING:
    from ..cluster.fleet import Fleet
    from ..cluster.simulation import Simulation
    from ..core.journal import Journal
    from ..report.record import RunRecord


def pair_fleet(system: System) -> Fleet | None:
    """The engines of both sides and their router, or None where all engines do both."""
    config = system.asked
    if not is_paired(config):
        return None
    from ..cluster.fleet import Fleet, Member
    from ..cluster.incidents import read_incidents

    pair = settings_of(config)
    members: list[Member] = []
    systems = {}
    for name in SIDES:
        side = side_of(config, name)
        systems[name] = engine = build_system(side.config, system.settings.record_steps)
        settings = _with_role(engine.settings, name, pair)
        members += [Member(settings, step_costs(engine).tables, name)] * side.engines
    router = RouterSettings(**config.section("router"))
    if router.seed < 0:
        router = replace(router, seed=config["seed"])
    incidents = read_incidents(config["fleet.event"], len(members))
    rules = _rules(config, pair, systems["prefill"], systems["decode"])
    return Fleet(tuple(members), router, rules, incidents=incidents, sends_again=config["fleet.on_loss"] == "retry")


def _with_role(settings: EngineSettings, role: str, pair: PairSettings) -> EngineSettings:
    running = settings.scheduler.max_running_requests
    beside = pair.preallocated_requests
    if beside < 0:
        beside = 2 * running if running <= 32 else 0
    return replace(
        settings,
        role=role,
        fails_with_transfer=pair.failure == "fail",
        reserved_decode_tokens=pair.reserved_decode_tokens,
        preallocated_requests=beside,
    )


def _rules(config: Config, pair: PairSettings, prefill: System, decode: System) -> PairRules:
    discipline = config["scheduler.discipline"]
    transfer = transfer_of(pair, discipline)
    model = prefill.deployment.model
    tps = prefill.config["tp"], decode.config["tp"]
    of_rank = max(prefill.budget.block_bytes, decode.budget.block_bytes)
    whole = of_rank if model.mla else of_rank * min(tps)
    link = {
        "setup_ns": config["links.kv.latency_us"] * NS_PER_US,
        "fragment_ns": config["links.kv.fragment_us"] * NS_PER_US,
        "ns_per_byte": of_rank / whole / config["links.kv.gb_per_s"],
        "fair": config["links.kv.sharing"] == "fair",
    }
    if config["clock"] == "measured":  # what a copy takes is known when it has been made
        link = {"setup_ns": 0.0, "fragment_ns": 0.0, "ns_per_byte": 0.0, "fair": False}
    return PairRules(
        num_prefill=pair.prefill,
        num_decode=pair.decode,
        protocol=protocol_of(pair, discipline),
        layers={"whole": 0, "chunk": 1, "layer": model.num_layers}[transfer],
        hands_out=pair.first_token == "prefill",
        lease_ns=round(pair.lease_s * NS_PER_S),
        heartbeat_ns=round(pair.heartbeat_s * NS_PER_S),
        # the decode side answers at once here: an answer alone never takes too long
        bootstrap_ns=round(pair.bootstrap_timeout_s * NS_PER_S) if pair.bootstrap_until == "memory" else NEVER_NS // 2,
        arrival_ns=round(pair.transfer_timeout_s * NS_PER_S),
        block_bytes=whole,
        block_fragments=model.num_layers * (1 if model.mla else 2) * (max(tps) // min(tps)),
        per=config["links.kv.per"],
        devices=tps,
        tells_unread=pair.tells_unread,
        faults=faults_of(pair),
        **link,
    )


def with_pairs(record: RunRecord, simulation: Simulation, journal: Journal) -> RunRecord:
    """The record with what only prefill and decode engines show."""
    from ..metrics.pairs import pair_figures
    from ..report.pair_table import pair_scalars, pair_section

    rules = simulation.fleet.pairs
    assert rules is not None
    counters = simulation.counters_by_engine()
    by_side = {"prefill": counters[: rules.num_prefill], "decode": counters[rules.num_prefill :]}
    goodput = record.summary.scalars["goodput"][0]
    devices = dict(zip(SIDES, rules.devices, strict=True))
    promised = float(goodput) if goodput is not None else None
    figures = pair_figures(journal, simulation.pair_times(), by_side, devices, promised)
    summary = replace(record.summary, scalars=record.summary.scalars | pair_scalars(figures))
    transfer = {0: "whole", 1: "by chunks"}.get(rules.layers, "by layers")
    return replace(
        record, summary=summary, sections=(*record.sections, pair_section(figures, rules.protocol, transfer))
    )
