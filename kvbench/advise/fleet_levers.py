"""Levers of several engines, ranks and tiers."""

from __future__ import annotations

from ..bench.system import System
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


def no_host_tier(system: System, e: Evidence) -> list[Option]:
    """Compute again rather than wait; or fetch only what is long."""
    if not system.config["tiers.host.ratio"]:
        return []
    return [
        one("fetch long prefixes only", "tiers.host.min_load_tokens", 2048),
        one("no host tier", "tiers.host.ratio", 0),
    ]


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


def more_engines(system: System, e: Evidence) -> list[Option]:
    """Twice the engines, behind a router that knows prefixes."""
    config = system.config
    if config["fleet.group"] or config["dp"] > 1:
        return []
    changes = [f"fleet.replicas={2 * config['fleet.replicas']}"]
    if config["fleet.replicas"] == 1:
        changes.append("router.policy=cache-aware")
    return [Option("more engines", tuple(changes), "twice the devices", 2.0)]
