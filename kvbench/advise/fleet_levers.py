"""Levers of several engines, ranks and tiers."""

from __future__ import annotations

from ..bench.system import System
from ..core.config import Config
from ..costs.models import divides
from .evidence import Evidence
from .option import Option, one

ROUTERS = ("cache-aware", "kv-aware", "least-loaded", "power-of-two")


def router(system: System, e: Evidence) -> list[Option]:
    """Another policy of the router."""
    config = system.config
    if e["engines"] < 2:
        return []
    policies = [name for name in ROUTERS if name != config["router.policy"]]
    return [one("router", "router.policy", name) for name in policies]


def host_tier(system: System, e: Evidence) -> list[Option]:
    """What leaves the device stays in host memory: larger than the device, behind a link."""
    config = system.config
    fits = config["cache.kind"] != "none" and config["cache.allocation"] == "paged" and not config["cache.backup"]
    if not fits or config["tiers.host.ratio"] or config["tiers.host.blocks"] or config["tiers.host.bytes"]:
        return []
    sizes = (2, 8) if e.needless else ()
    return [Option("host tier", (f"tiers.host.ratio={size}",), "host memory and its link") for size in sizes]


def storage_tier(system: System, e: Evidence) -> list[Option]:
    """What leaves the host stays in a store that all engines reach: behind a slower link, and at first empty."""
    config = system.config
    if config["tiers.storage.blocks"] or config["tiers.storage.bytes"] or not e.needless:
        return []
    blocks, cost = int(20 * max(e["blocks"], 1)), "a store and its link"
    if config["tiers.host.ratio"] or config["tiers.host.blocks"] or config["tiers.host.bytes"]:
        return [Option("storage tier", (f"tiers.storage.blocks={blocks}",), cost)]
    return [
        Option("storage tier", (*host.changes, f"tiers.storage.blocks={blocks}"), f"{host.cost}, {cost}")
        for host in host_tier(system, e)[:1]
    ]


def no_host_tier(system: System, e: Evidence) -> list[Option]:
    """Compute again rather than wait; or fetch only what is long."""
    if not system.config["tiers.host.ratio"]:
        return []
    return [
        one("fetch long prefixes only", "tiers.host.min_load_tokens", 2048),
        one("no host tier", "tiers.host.ratio", 0),
    ]


def separation(system: System, e: Evidence) -> list[Option]:
    """Prefill on engines of its own, on as many devices as now where there are two or more, else on twice as many."""
    config, cost = system.config, "transfers of KV"
    engines, tp = config["fleet.replicas"], config["tp"]
    if _is_separated(config) or config["fleet.group"] or config["dp"] > 1 or config["cache.allocation"] != "paged":
        return []
    if engines > 1:
        splits = dict.fromkeys((engines // 2, 1, engines - 1))
        return [_split(prefill, engines - prefill, cost, ("fleet.replicas=1",)) for prefill in splits]
    if tp % 2 == 0 and divides(system.deployment.model, tp // 2):
        return [_split(1, 1, cost, (f"tp={tp // 2}",))]
    return [_split(1, 1, f"twice the devices and {cost}", (), 2.0)]


def no_separation(system: System, e: Evidence) -> list[Option]:
    """As many engines that do both."""
    config = system.config
    if not _is_separated(config):
        return []
    engines = sum(pair if isinstance(pair := config[f"pd.{side}"], int) else 0 for side in ("prefill", "decode"))
    return [Option("no separation", ("pd.prefill=0", "pd.decode=0", f"fleet.replicas={engines}"))] if engines else []


def _split(prefill: int, decode: int, cost: str, more: tuple[str, ...], devices: float = 1.0) -> Option:
    return Option("prefill apart", (*more, f"pd.prefill={prefill}", f"pd.decode={decode}"), cost, devices)


def _is_separated(config: Config) -> bool:
    return bool(config["pd.prefill"]) and bool(config["pd.decode"])


def expert_balance(system: System, e: Evidence) -> list[Option]:
    """Experts are placed by their load, hot ones twice."""
    config = system.config
    if config["ep"] < 2 or config["eplb.mode"] != "off":
        return []
    spare = f"eplb.redundant={config['ep']}"
    return [
        Option("EPLB", ("eplb.mode=static",), "moves of weights"),
        Option("EPLB", ("eplb.mode=static", spare), "memory of spare experts"),
        Option("EPLB", ("eplb.mode=dynamic-async", spare), "memory of spare experts, moves beside steps"),
    ]


def streams(system: System, e: Evidence) -> list[Option]:
    """A shared expert beside the routed ones; the exchange of half a step beside compute of the other."""
    config, moe, found = system.config, system.deployment.model.moe, []
    if moe is None or config["step_times"]:
        return []
    if moe.shared_width and config["streams.shared_expert"] == "off":
        found.append(Option("shared expert's stream", ("streams.shared_expert=on",), "synchronisation in each layer"))
    if config["ep"] > 1 and config["streams.two_batch"] == "off":
        found.append(Option("two-batch overlap", ("streams.two_batch=on",), "weights are read twice"))
    return found


def more_engines(system: System, e: Evidence) -> list[Option]:
    """Twice the engines, behind a router that knows prefixes."""
    config = system.config
    if config["fleet.group"] or config["dp"] > 1:
        return []
    changes = [f"fleet.replicas={2 * config['fleet.replicas']}"]
    if config["fleet.replicas"] == 1:
        changes.append("router.policy=cache-aware")
    return [Option("more engines", tuple(changes), "twice the devices", 2.0)]
