"""The rules of the tiers of a configuration, with nothing left open."""

from __future__ import annotations

from ..core.config import DEFAULTS, Config
from ..core.errors import UsageError
from ..core.units import NS_PER_MS, NS_PER_S
from ..costs.deployment import Deployment
from ..costs.kv_format import token_bytes
from ..costs.memory import MemoryBudget
from ..costs.models import KV_BYTES, kv_heads_per_rank
from ..scheduler.presets import find_preset
from ..tiers.rules import PAGES, PRESET_RULES, HostLink, LinkRules, StoreRules, TierRules, fragments_of

HOST_LINK_SHARE = 0.8
"""Of the host link's bandwidth that large copies reach."""

LEAST_GB_S = 0.001

_SIZES = ("tiers.host.ratio", "tiers.host.blocks", "tiers.host.bytes")


def has_tiers(config: Config) -> bool:
    """Whether a tier is given."""
    return any(config[name] for name in _SIZES)


def closed_tiers(config: Config) -> Config:
    """The configuration with what `auto` comes to."""
    if not has_tiers(config):
        return config
    name = config["tiers.preset"]
    if name == "auto":
        name = "sglang" if find_preset(config["preset"], config.where["preset"]).name.startswith("sglang") else "vllm"
    rules, found = PRESET_RULES[name], {"tiers.preset": name}
    for key in ("write", "load"):
        if config[f"tiers.host.{key}"] == "auto":
            found[f"tiers.host.{key}"] = rules[key]
    for key in ("outputs", "closed"):
        if config[f"tiers.host.{key}"] == "auto":
            found[f"tiers.host.{key}"] = "yes" if rules[key] else "no"
    if config["tiers.host.write"] == "write_back":  # what leaves the device first is what continues a prefix
        if config["tiers.host.closed"] == "yes":
            raise UsageError(
                f"{config.where['tiers.host.closed']}: write_back copies blocks before those that they continue; "
                "leave tiers.host.closed out"
            )
        found["tiers.host.closed"] = "no"
    if config["tiers.host.min_load_tokens"] < 0:
        found["tiers.host.min_load_tokens"] = rules["min_load_tokens"]
    return config.replaced(found, f"by tiers.preset {name}")


def tier_rules(config: Config, deployment: Deployment, budget: MemoryBudget) -> TierRules:
    """UsageError: they do not go together, or there is no link."""
    if not has_tiers(config):
        for name in ("tiers.host.kv_dtype", "tiers.storage.kv_dtype"):
            if config[name] != "auto":
                raise UsageError(f"{config.where[name]}: {name} has no effect without a tier; set tiers.host.ratio")
        for name in ("tiers.storage.blocks", "tiers.storage.bytes"):
            if config[name]:
                raise UsageError(
                    f"{config.where[name]}: storage lies behind a host; set tiers.host.ratio, blocks or bytes, too"
                )
        where = config.where["tiers.host.write"]
        if config["tiers.host.write"] == "write_back":
            raise UsageError(f"{where}: write_back has no host to write to; set tiers.host.ratio, blocks or bytes, too")
        return TierRules()
    for name in ("links.host.convert", "links.storage.convert"):
        if 0 < config[name] < LEAST_GB_S:
            raise UsageError(f"{config.where[name]}: {name} = {config[name]:g} GB/s; {LEAST_GB_S} is the least, or 0")
    block_bytes = _block_bytes(config, deployment, budget)
    blocks = _host_blocks(config, budget, block_bytes["host"])
    model, layout = deployment.model, config["tiers.host.layout"]
    heads = kv_heads_per_rank(model, deployment.tp)
    is_selective = config["tiers.host.write"] == "write_through_selective"
    writes_back = config["tiers.host.write"] == "write_back"
    return TierRules(
        host_blocks=blocks,
        eviction=config["tiers.host.eviction"],
        state=_state(config, "tiers.host.state"),
        closed=config["tiers.host.closed"] == "yes",
        writes_back=writes_back,
        min_offers=config["tiers.host.min_offers"] if is_selective else 1,
        outputs=config["tiers.host.outputs"] == "yes",
        load=config["tiers.host.load"],
        min_load_tokens=config["tiers.host.min_load_tokens"],
        layers=model.num_layers,
        block_bytes=block_bytes["host"],
        block_fragments=1
        if _is_converted(config)
        else fragments_of(layout, config["block_tokens"], model.num_layers, heads, model.mla is not None),
        slowdown=config["tiers.slowdown"],
        host_link=_host_link(config, deployment),
        store=_store(config, deployment, block_bytes["storage"]),
    )


def _block_bytes(config: Config, deployment: Deployment, budget: MemoryBudget) -> dict[str, int]:
    """Tier -> bytes of a device's block in the tier's type. UsageError: a type is wider than that of the tier above."""
    above, found = config["kv_dtype"], {}
    for name in ("host", "storage"):
        key = f"tiers.{name}.kv_dtype"
        own = above if config[key] == "auto" else config[key]
        if KV_BYTES[own] > KV_BYTES[above]:
            raise UsageError(f"{config.where[key]}: {key} = {own} is wider than {above}, that of the tier above")
        narrow = token_bytes(deployment.model, own, deployment.tp) * config["block_tokens"]
        found[name] = int(budget.block_bytes) if own == config["kv_dtype"] else narrow
        above = own
    return found


def _store(config: Config, deployment: Deployment, bytes_of_rank: int) -> StoreRules:
    """Storage keeps one copy of what every device of the engine has: their shares, or a latent once."""
    s = config.section("tiers.storage")
    ranks = 1 if deployment.model.mla is not None else deployment.tp
    block_bytes = bytes_of_rank * ranks
    if s["blocks"] and s["bytes"]:
        raise UsageError(
            f"{config.where['tiers.storage.bytes']}: tiers.storage.blocks and tiers.storage.bytes both say how large "
            "storage is; leave one out"
        )
    blocks = s["blocks"] or s["bytes"] // block_bytes
    if s["bytes"] and blocks == 0:
        where = config.where["tiers.storage.bytes"]
        raise UsageError(f"{where}: tiers.storage.bytes = {s['bytes']:,} is less than a block ({block_bytes:,} bytes)")
    tokens = config["block_tokens"]
    if s["min_prefetch_tokens"] % tokens and config.where["tiers.storage.min_prefetch_tokens"] != DEFAULTS:
        raise UsageError(
            f"{config.where['tiers.storage.min_prefetch_tokens']}: tiers.storage.min_prefetch_tokens = "
            f"{s['min_prefetch_tokens']} is no multiple of block_tokens = {tokens}"
        )
    link = config.section("links.storage")
    is_gathered = config["tiers.host.layout"] == "layer_first" and link["convert"] > 0
    byte_ns = 1 / link["convert"] if is_gathered else 0.0  # a page of storage is one piece
    down, up = (
        LinkRules(link["setup_us"] * 1e3, link["batch_us"] * 1e3, 1 / link[name] + byte_ns) for name in ("down", "up")
    )
    return StoreRules(
        blocks=blocks,
        eviction=s["eviction"],
        state=_state(config, "tiers.storage.state") if blocks else "cold",
        block_bytes=block_bytes,
        batch_blocks=s["batch_blocks"],
        min_prefetch_tokens=s["min_prefetch_tokens"],
        stop=s["stop"],
        timeout_ns=round(s["timeout_ms"] * NS_PER_MS),
        timeout_token_ns=s["timeout_ms_per_ktoken"] * NS_PER_MS / 1024,
        down=down,
        up=up,
        outage_ns=_outage(link["out_at_s"], link["out_for_s"]),
    )


def tier_notes(config: Config) -> tuple[str, ...]:
    """What a reader must know of a tier that does not begin empty."""
    if not has_tiers(config):
        return ()
    names = [name for name in _tiers_of(config) if config[f"tiers.{name}.state"] != "cold"]
    types = {config[f"tiers.{name}.kv_dtype"] for name in ("host", "storage")} - {"auto", config["kv_dtype"]}
    return tuple(
        f"tiers hold KV as {name}: a hit from there is not what was computed; kvbench kernels --experiment kv-type "
        "measures by how much"
        for name in sorted(types)
    ) + tuple(
        f"tiers.{name}.state = {config[f'tiers.{name}.state']}: what lies there at t = 0 was never computed in this "
        "run, so its hits stand for a second visit"
        for name in names
    )


def state_at_start(config: Config) -> str:
    """The state of the device's cache at t = 0, and of the tiers behind it where that is another one than cold."""
    told = [
        f"{name} {state}" for name in _tiers_of(config) if (state := _state(config, f"tiers.{name}.state")) != "cold"
    ]
    return str(config["cache.state"]) + (f" ({'; '.join(told)})" if told else "")


def _tiers_of(config: Config) -> tuple[str, ...]:
    if not has_tiers(config):
        return ()
    has_storage = config["tiers.storage.blocks"] or config["tiers.storage.bytes"]
    return ("host", "storage") if has_storage else ("host",)


def _outage(at_s: float, for_s: float) -> tuple[int, ...]:
    return () if at_s < 0 else (round(at_s * NS_PER_S), round((at_s + for_s) * NS_PER_S))


def _state(config: Config, key: str) -> str:
    """A part that warms caches up runs in front of the others: before it nothing lies anywhere that it would bring."""
    warms_up = any(phase.get("warm_up") for phase in config.phases)
    return "cold" if warms_up and config[key] == "warm" else str(config[key])


def _host_blocks(config: Config, budget: MemoryBudget, block_bytes: int) -> int:
    given = [name for name in _SIZES if config[name]]
    where = config.where[given[0]]
    if len(given) > 1:
        of_a_file = next((name for name in given if not config.where[name].startswith("--")), given[0])
        raise UsageError(
            f"{where}: {given[0]} and {given[1]} both say how large the host is; leave one out: --set {of_a_file}=0"
        )
    if config["cache.kind"] == "none":
        raise UsageError(f"{where}: a tier keeps what a prefix cache can find again; set cache.kind = hash or radix")
    if config["cache.backup"]:
        raise UsageError(
            f"{config.where['cache.backup']}: cache.backup copies what nobody loads again, and a tier copies too; "
            "leave cache.backup out"
        )
    if config["batching"] == "static" or config["cache.copy_on_write"] or config["cache.allocation"] != "paged":
        raise UsageError(f"{where}: a tier works with continuous batching over paged blocks, without copy on write")
    if given[0] == "tiers.host.ratio":
        blocks = int(config["cache.blocks"] * config["tiers.host.ratio"] * int(budget.block_bytes) / block_bytes)
    else:
        size = config[given[0]]
        blocks = size if given[0] == "tiers.host.blocks" else int(size // block_bytes)
    if blocks < 1:
        raise UsageError(f"{where}: {given[0]} = {config[given[0]]} is less than a block ({block_bytes:,} bytes)")
    return blocks


def _is_converted(config: Config) -> bool:
    """By a copy of its own, before it moves down or after it has come up."""
    return config["tiers.host.convert"] == "copy" and config["tiers.host.layout"] in PAGES


def _copy_byte_ns(config: Config, deployment: Deployment) -> float:
    """ns that converting a byte adds to its way: a copy reads and writes."""
    if not _is_converted(config):
        return 0.0
    return 1e9 / (config["links.host.convert"] * 1e9 or deployment.device.memory_bandwidth / 2)


def _host_link(config: Config, deployment: Deployment) -> HostLink:
    own = deployment.device.host_link * HOST_LINK_SHARE
    rules = []
    for direction in ("down", "up"):
        name = f"links.host.{direction}"
        if 0 < config[name] < LEAST_GB_S:
            raise UsageError(
                f"{config.where[name]}: {name} = {config[name]:g} GB/s; {LEAST_GB_S} is the least, 0 the device's own"
            )
        bandwidth = config[name] * 1e9 or own
        if bandwidth == 0:
            raise UsageError(
                f"a tier needs a link: {deployment.device.name} has none to the host on record; "
                f"set links.host.{direction} in GB/s"
            )
        setup, fragment = (config[f"links.host.{name}_us"] * 1e3 for name in ("setup", "fragment"))
        rules.append(LinkRules(setup, fragment, 1e9 / bandwidth + _copy_byte_ns(config, deployment)))
    return HostLink(rules[0], rules[1], config["links.host.sharing"] == "fair", config["links.host.duplex"] == "half")
