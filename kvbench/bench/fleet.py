"""The fleet of a configuration: what its keys say, checked, and the configuration of each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.config import Config, nest
from ..core.errors import UsageError
from ..routing.settings import RouterSettings, belief_of
from .keys import key_tree
from .pairs import devices_of_sides, is_paired
from .tiers import has_tiers

GROUP_KEYS = ("device", "step_times", "tp", "dtype", "kv_dtype", "overlap")
GROUP_TABLES = ("cache.", "scheduler.", "costs.", "graph.", "kv.")
"""What a group may have of its own: what describes an engine. The rest is the workload's, or one for all."""


@dataclass(frozen=True)
class Group:
    """`replicas` engines of one configuration. name: of the user, or what it overrides."""

    name: str
    replicas: int
    config: Config


def is_fleet(config: Config) -> bool:
    """More than one engine, or somebody has asked for a router."""
    asked = config["fleet.replicas"] > 1 or bool(config["fleet.group"]) or bool(config["fleet.event"])
    return asked or config["router.policy"] != RouterSettings.policy


def groups_of(config: Config) -> list[Group]:
    """The engines of a fleet, in the order of their numbers. UsageError: a table that says what no group may."""
    tables = config["fleet.group"]
    if not tables:
        return [Group("", config["fleet.replicas"], config)]
    if config["fleet.replicas"] > 1:
        raise UsageError(
            f"{config.where['fleet.replicas']}: fleet.replicas stands beside [[fleet.group]], whose tables have "
            "replicas of their own; remove it"
        )
    return [_group(config, table, f"[[fleet.group]] {i}") for i, table in enumerate(tables, 1)]


def _group(config: Config, table: Mapping[str, Any], where: str) -> Group:
    own = dict(table)
    replicas, name = own.pop("replicas", 1), own.pop("name", "")
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise UsageError(f"{where}: replicas is a number of engines, at least 1; got {replicas!r}")
    layer = key_tree().layer(nest(own), where)
    for key in layer.values:
        if key not in GROUP_KEYS and not key.startswith(GROUP_TABLES):
            raise UsageError(
                f"{where}: {key} is one for the whole fleet; a group may have {', '.join(GROUP_KEYS)} and "
                f"{', '.join(t + '*' for t in GROUP_TABLES)} of its own"
            )
    title = str(name) or ", ".join(f"{key}={value}" for key, value in layer.values.items()) or where
    return Group(title, replicas, config.replaced(layer.values, where))


def devices_of(config: Config) -> int:
    """Devices that a closed configuration occupies, so that unequal designs compare per device."""
    if is_paired(config):
        return sum(devices_of_sides(config))
    return sum(group.replicas * group.config["tp"] * group.config["dp"] for group in groups_of(config))


def check_fleet(config: Config) -> None:
    """UsageError: what a fleet cannot be part of."""
    if not is_fleet(config):
        idle = next((name for name in set_by_hand(config) if name != "policy"), None)
        if idle is not None:
            raise UsageError(
                f"{config.where[f'router.{idle}']}: router.{idle} has no effect on one engine; set fleet.replicas"
            )
        return
    if config["clock"] == "measured" and not is_paired(config):
        raise UsageError("a fleet runs on the modelled clock; set clock = modelled or fleet.replicas = 1")
    if has_tiers(config) and config["tiers.host.write"] == "write_back" and _hears_events(config):
        raise UsageError(
            "a cache tells of evictions once: its router hears of them (router.belief = events), or write_back does; "
            "set router.belief = own, or tiers.host.write = write_through"
        )
    if config["cache.copy_on_write"] and config["beam.width"] > 0:
        raise UsageError("beams run on one engine; set fleet.replicas = 1")


def _hears_events(config: Config) -> bool:
    router = RouterSettings(policy=config["router.policy"], belief=config["router.belief"])
    return belief_of(router) == "events"


def set_by_hand(config: Config) -> list[str]:
    """Fields of the router that are not what they are by default."""
    return [name for name, value in vars(RouterSettings()).items() if config[f"router.{name}"] != value]


def without_fleet(config: Config) -> Config:
    """The configuration of one engine by itself."""
    alone = {"fleet.replicas": 1, "fleet.group": [], "fleet.event": []}
    unrouted = {f"router.{name}": value for name, value in vars(RouterSettings()).items()}
    return config.replaced(alone | unrouted, "by fleet")


def closed_groups(config: Config, closed: Config, close: Callable[[Config], Config]) -> list[dict[str, Any]]:
    """The tables of [[fleet.group]] with nothing left open, as run.json holds them.

    config, closed   of the whole, as asked for and with every open key closed
    close            closes those of one engine
    """
    tables = []
    for group in groups_of(config) if config["fleet.group"] else ():
        own = close(without_fleet(group.config))
        names = [n for n in own.values if n in GROUP_KEYS or n.startswith(GROUP_TABLES)]
        table = nest({name: own[name] for name in names if own[name] != closed[name]})
        tables.append({"name": group.name, "replicas": group.replicas, **table})
    return tables


def without_ignorance(config: Config) -> Config:
    """The same fleet under the oracle, whose decisions take as long."""
    kept = ("decide_us", "hash_us_per_token", "seed")
    values = {f"router.{name}": value for name, value in vars(RouterSettings()).items() if name not in kept}
    return config.replaced({**values, "router.policy": "oracle"}, "--regret")
