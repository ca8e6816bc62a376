"""Prefill and decode engines of a configuration: each side as a system of its own, and the links between the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..core.config import Config, nest
from ..core.errors import UsageError
from ..core.units import NS_PER_S, NS_PER_US
from ..engine.settings import EngineSettings
from ..pairs.settings import PairRules, PairSettings, check_pairs, faults_of, protocol_of, transfer_of
from ..routing.settings import RouterSettings
from ..scheduler.rules import PREFILL_FIRST
from .keys import key_tree

if TYPE_CHECKING:
    from ..cluster.fleet import Fleet
    from ..cluster.simulation import Simulation
    from ..core.journal import Journal
    from ..report.record import RunRecord
    from .system import System

SIDES = ("prefill", "decode")
OWN_KEYS = ("device", "step_times", "tp", "dtype")
OWN_TABLES = ("cache.", "scheduler.", "costs.", "graph.")
"""What a side may have of its own: what describes an engine. KV and its blocks are those of both."""


@dataclass(frozen=True)
class Side:
    """engines of one configuration."""

    engines: int
    config: Config


def is_paired(config: Config) -> bool:
    """Whether some engines prefill and the others decode."""
    return all(_count(config[f"pd.{side}"]) > 0 for side in SIDES)


def _count(value: Any) -> int:
    count = value.get("engines", 1) if isinstance(value, Mapping) else value
    return int(count)


def settings_of(config: Config) -> PairSettings:
    values = config.section("pd")
    values |= {side: _count(values[side]) for side in SIDES} | {"fault": tuple(values["fault"])}
    return PairSettings(**values)


def check_pair_keys(config: Config) -> None:
    """UsageError: what prefill and decode engines cannot do, or keys without effect."""
    changed = [f.name for f in fields(PairSettings) if config[f"pd.{f.name}"] not in (f.default, [])]
    where = {name: config.where[f"pd.{name}"] for name in changed}
    check_pairs(settings_of(config), config["scheduler.discipline"], where)
    if not is_paired(config):
        return
    faults_of(settings_of(config))
    if config["links.kv.gb_per_s"] == 0:
        raise UsageError(
            f"{config.where['links.kv.gb_per_s']}: links.kv.gb_per_s = 0 never moves any KV; give the link's bandwidth"
        )
    wrong = {
        "clock": "measured",
        "batching": "static",
        "cache.copy_on_write": True,
        "cache.backup": True,
    }
    for name, value in wrong.items():
        if config[name] == value:
            raise UsageError(
                f"{config.where[name]}: {name} = {value} does not go with pd.prefill and pd.decode engines"
            )
    if config["fleet.event"]:
        raise UsageError(
            f"{config.where['fleet.event']}: [[fleet.event]] does not reach pd.prefill and pd.decode engines; "
            "[[pd.fault]] says what happens to them"
        )
    for name in ("fleet.replicas", "dp"):
        if config[name] > 1:
            raise UsageError(f"{config.where[name]}: {name} > 1 stands beside pd.prefill and pd.decode; set it to 1")
    if config["cache.allocation"] != "paged" or config["fleet.group"]:
        raise UsageError("pd.prefill and pd.decode need cache.allocation = paged and no [[fleet.group]]")
    if config["overlap"] and not config.where["overlap"].startswith(("preset ", "by ")):
        raise UsageError(f"{config.where['overlap']}: prefill and decode engines step by step; set overlap = false")


def side_of(config: Config, side: str) -> Side:
    """One side. UsageError: a key that no side may have of its own."""
    table = config[f"pd.{side}"]
    own = dict(_flat(table)) if isinstance(table, Mapping) else {}
    own.pop("engines", None)
    where = f"[pd.{side}]"
    layer = key_tree().layer(nest(own), where)
    for key in layer.values:
        if key not in OWN_KEYS and not key.startswith(OWN_TABLES):
            raise UsageError(
                f"{where}: {key} is one for both sides; a side may have {', '.join(OWN_KEYS)} and "
                f"{', '.join(t + '*' for t in OWN_TABLES)} of its own"
            )
    off: dict[str, Any] = {"pd.prefill": 0, "pd.decode": 0, "overlap": False}
    if side == "decode" and config["scheduler.discipline"] == PREFILL_FIRST and "cache.kind" not in layer.values:
        off |= {"cache.kind": "none", "cache.eviction": ""}  # as the engine does unless it is told otherwise
    off |= {f"pd.{f.name}": f.default for f in fields(PairSettings) if f.metadata and f.name not in SIDES}
    off["pd.fault"] = []
    return Side(_count(table), config.replaced(off, "by pd").replaced(layer.values, where))


def devices_of_sides(config: Config) -> list[int]:
    """Devices of all engines of each side."""
    sides = [side_of(config, name) for name in SIDES]
    return [side.engines * side.config["tp"] for side in sides]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def pair_fleet(system: System) -> Fleet | None:
    """The engines of both sides and their router, or None where all engines do both."""
    config = system.asked
    if not is_paired(config):
        return None
    from ..cluster.fleet import Fleet, Member
    from .step_times import step_costs
    from .system import build_system

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
    return Fleet(tuple(members), router, _rules(config, pair, systems["prefill"], systems["decode"]))


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
    return PairRules(
        num_prefill=pair.prefill,
        num_decode=pair.decode,
        protocol=protocol_of(pair, discipline),
        layers={"whole": 0, "chunk": 1, "layer": model.num_layers}[transfer],
        hands_out=pair.first_token == "prefill",
        lease_ns=round(pair.lease_s * NS_PER_S),
        heartbeat_ns=round(pair.heartbeat_s * NS_PER_S),
        bootstrap_ns=round(pair.bootstrap_timeout_s * NS_PER_S),
        arrival_ns=round(pair.transfer_timeout_s * NS_PER_S),
        block_bytes=whole,
        block_fragments=model.num_layers * (1 if model.mla else 2) * (max(tps) // min(tps)),
        setup_ns=config["links.kv.latency_us"] * NS_PER_US,
        fragment_ns=config["links.kv.fragment_us"] * NS_PER_US,
        ns_per_byte=of_rank / whole / config["links.kv.gb_per_s"],
        per=config["links.kv.per"],
        fair=config["links.kv.sharing"] == "fair",
        devices=tps,
        faults=faults_of(pair),
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
