"""Prefill and decode engines of a configuration: what its keys say, checked, and the configuration of each side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..core.config import DEFAULTS, Config, nest
from ..core.errors import UsageError
from ..pairs.settings import LAYERWISE, PairSettings, check_pairs, faults_of, protocol_of
from ..scheduler.rules import PREFILL_FIRST
from .keys import key_tree
from .tiers import LEAST_GB_S

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
    where = {name: place for name, place in where.items() if not place.startswith("preset ")}  # ready for either
    check_pairs(settings_of(config), config["scheduler.discipline"], where)
    if not is_paired(config):
        return
    faults_of(settings_of(config))
    if config["clock"] == "measured":
        check_measured(config)
    bandwidth = config["links.kv.gb_per_s"]
    if bandwidth < LEAST_GB_S:
        what = "never moves any KV" if bandwidth == 0 else f"is below {LEAST_GB_S}, the least"
        raise UsageError(
            f"{config.where['links.kv.gb_per_s']}: links.kv.gb_per_s = {bandwidth:g} {what}; give the link's bandwidth"
        )
    wrong = {
        "batching": "static",
        "cache.copy_on_write": True,
        "cache.backup": True,
    }
    host = next((n for n in ("ratio", "blocks", "bytes") if config[f"tiers.host.{n}"]), "")
    if host:
        raise UsageError(
            f"{config.where[f'tiers.host.{host}']}: tiers.host.{host} does not go with pd.prefill and pd.decode engines"
        )
    for name, value in wrong.items():
        if config[name] == value:
            raise UsageError(
                f"{config.where[name]}: {name} = {value} does not go with pd.prefill and pd.decode engines"
            )
    for name in ("fleet.replicas", "dp"):
        if config[name] > 1:
            raise UsageError(f"{config.where[name]}: {name} > 1 stands beside pd.prefill and pd.decode; set it to 1")
    protocol = protocol_of(settings_of(config), config["scheduler.discipline"])
    if protocol == LAYERWISE and config["cache.kind"] == "radix":
        raise UsageError(
            f"{config.where['cache.kind']}: cache.kind = radix does not go with pd.protocol = push under "
            "scheduler.discipline = token-budget: what is sent is held block by block; set cache.kind = hash"
        )
    if config["cache.allocation"] != "paged" or config["fleet.group"]:
        raise UsageError("pd.prefill and pd.decode need cache.allocation = paged and no [[fleet.group]]")
    if config["overlap"] and not config.where["overlap"].startswith(("preset ", "by ")):
        raise UsageError(f"{config.where['overlap']}: prefill and decode engines step by step; set overlap = false")


def check_measured(config: Config) -> None:
    """UsageError: a modelled link's keys, which say nothing where KV is really copied."""
    for name in config.values:
        if name.startswith("links.kv.") and name != "links.kv.per" and config.where[name] != DEFAULTS:
            raise UsageError(
                f"{config.where[name]}: {name} is of a modelled link; on the measured clock a transfer takes as long "
                "as its copy takes here: leave it out"
            )


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
    off["pd.fault"] = off["fleet.event"] = []
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
