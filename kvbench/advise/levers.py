"""What can be done about a symptom: changes of keys, each with what it costs beside time.

A lever gives its options for one system and what its run showed, the nearest change first; none where it does not fit.
Nothing here says that a lever helps: the trials do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..bench.step_times import graphs_of
from ..bench.system import System, engine_limits
from ..costs.models import KV_BYTES, divides
from ..scheduler.rules import TOKEN_BUDGET
from .evidence import Evidence
from .fleet_levers import (
    expert_balance,
    host_tier,
    more_engines,
    no_host_tier,
    no_separation,
    router,
    separation,
    storage_tier,
    streams,
)
from .option import MARGIN, QUALITY, Option, one

Lever = Callable[[System, Evidence], list[Option]]


def smaller_chunks(system: System, e: Evidence) -> list[Option]:
    """Fewer prompt tokens beside the decodes of a step; a long prompt takes more steps."""
    config, most = system.config, engine_limits(system.config).max_batched_tokens
    if not config["scheduler.enable_chunked_prefill"]:
        return [Option("chunked prefill", ("scheduler.enable_chunked_prefill=true",))]
    sizes = [size for size in (2048, 1024, 512, 256) if size < most]
    if _is_vllm(system):
        places = config["scheduler.max_num_seqs"]
        return [one("smaller chunks", "scheduler.max_num_batched_tokens", s) for s in sizes if s >= places]
    return [
        *(one("smaller chunks", "scheduler.chunked_prefill_size", s) for s in sizes),
        *(
            []
            if config["scheduler.enable_mixed_chunk"]
            else [one("mixed steps", "scheduler.enable_mixed_chunk", "true")]
        ),
    ]


def shorter_prompt_parts(system: System, e: Evidence) -> list[Option]:
    """One prompt may not take the whole step, so short ones pass it."""
    if not _is_vllm(system) or system.config["scheduler.long_prefill_token_threshold"]:
        return []
    most = engine_limits(system.config).max_batched_tokens
    sizes = [size for size in (2048, 512) if size < most]
    return [one("a share for long prompts", "scheduler.long_prefill_token_threshold", size) for size in sizes]


def step_target(system: System, e: Evidence) -> list[Option]:
    """Prompt tokens of a step as its time allows, instead of a number of them."""
    config = system.config
    alone = config["pd.prefill"] == config["pd.decode"] == 0 and config["dp"] == config["ep"] == 1
    paged = config["cache.allocation"] == "paged" and not config["cache.copy_on_write"]
    fits = alone and paged and _is_vllm(system) and config["scheduler.enable_chunked_prefill"]
    if not fits or config["scheduler.step_target_ms"] or not e.decode_ms:
        return []
    return [one("step target", "scheduler.step_target_ms", round(times * e.decode_ms, 2)) for times in (3, 6)]


def larger_chunks(system: System, e: Evidence) -> list[Option]:
    """Weights are read for more tokens at once; decodes beside them wait longer."""
    key = "scheduler.max_num_batched_tokens" if _is_vllm(system) else "scheduler.chunked_prefill_size"
    now = system.config[key]
    return [one("larger chunks", key, size) for size in (8192, 16384) if 0 < now < size][:1]


def prefix_cache(system: System, e: Evidence) -> list[Option]:
    """Where there is none, the engine's own; the other one where prefixes end within blocks."""
    config, own = system.config, "hash" if _is_vllm(system) else "radix"
    if config["cache.allocation"] != "paged" or config["cache.copy_on_write"]:
        return []
    kinds = [own] if config["cache.kind"] == "none" else []
    return [one("prefix cache", "cache.kind", kind) for kind in kinds]


def eviction(system: System, e: Evidence) -> list[Option]:
    """Who leaves the cache first."""
    config = system.config
    if config["cache.kind"] == "none":
        return []
    policies = [name for name in ("slru", "s3fifo", "lfu", "cost-aware") if name != config["cache.eviction"]]
    return [one("eviction", "cache.eviction", name) for name in policies]


def prefix_order(system: System, e: Evidence) -> list[Option]:
    """Waiting requests whose prefix is cached go first."""
    if _is_vllm(system) or system.config["cache.kind"] != "radix" or system.config["scheduler.policy"] != "fcfs":
        return []
    return [Option("longest prefix first", ("scheduler.policy=lpm",), "fairness: others wait longer")]


def smaller_blocks(system: System, e: Evidence) -> list[Option]:
    """Less of the last block of each sequence is wasted, and prefixes match to a finer grain."""
    now = system.config["block_tokens"]
    sizes = [size for size in (16, 8) if size < now and e["tail_waste_share"] >= 0.05]
    return [Option("smaller blocks", (f"block_tokens={s}", *_blocks(system, now / s)), "longer tables") for s in sizes]


def more_memory(system: System, e: Evidence) -> list[Option]:
    """A larger share of the device for KV."""
    config = system.config
    if config.where["cache.blocks"] != "memory budget":
        fits = system.budget.num_blocks
        sizes = [n for n in (2 * config["cache.blocks"], fits) if config["cache.blocks"] < n <= fits]
        return [Option("more blocks", (f"cache.blocks={n}",), "device memory") for n in dict.fromkeys(sizes)]
    now = config["cache.memory_utilization"]
    return [
        Option("more memory for KV", (f"cache.memory_utilization={share}",), MARGIN) for share in (0.95,) if share > now
    ]


def kv_type(system: System, e: Evidence) -> list[Option]:
    """Half the bytes for each token: twice the tokens, and half the reading."""
    if KV_BYTES[system.config["kv_dtype"]] < 2:
        return []
    return [Option("KV in 8 bits", ("kv_dtype=fp8", *_blocks(system, 2)), QUALITY)]


def headroom(system: System, e: Evidence) -> list[Option]:
    """Admit fewer, so that those who run need not lose their memory."""
    config = system.config
    if _is_vllm(system):
        shares = [share for share in (0.02, 0.1) if share > config["scheduler.watermark"]]
        return [one("headroom", "scheduler.watermark", share) for share in shares]
    now = config["scheduler.schedule_conservativeness"]
    return [one("headroom", "scheduler.schedule_conservativeness", value) for value in (1.3,) if value > now]


def fewer_places(system: System, e: Evidence) -> list[Option]:
    """Those who run are not thrown out again; more wait instead."""
    key, now = _places(system)
    places = [int(e.running * share) for share in (0.75, 0.5)] if e.preempted else []
    return [one("fewer at once", key, n) for n in places if 1 <= n < now]


def more_places(system: System, e: Evidence) -> list[Option]:
    """More sequences in a step."""
    if system.config["batching"] == "static":
        return [one("continuous batching", "batching", "continuous")]
    key, now = _places(system)
    return [one("more at once", key, now * times) for times in (2, 4, 8)]


def overlap(system: System, e: Evidence) -> list[Option]:
    """Plan the next step while this one runs."""
    config = system.config
    fits = not (
        config["batching"] == "static" or config["cache.copy_on_write"] or config["cache.allocation"] != "paged"
    )
    return [Option("overlap", ("overlap=true",), "results a step late")] if fits and not config["overlap"] else []


def graphs(system: System, e: Evidence) -> list[Option]:
    """Steps are launched as captured graphs, whole ones of decodes and pieces of others, as large as steps are."""
    config, now = system.config, graphs_of(system)
    cost, found = "memory of the graphs", []
    if config["graph.mode"] not in ("auto", "full-and-piecewise") or not now.sizes:
        found.append(Option("captured graphs", ("graph.mode=full-and-piecewise",), cost))
    if now.sizes and config["graph.capture_sizes"] and now.sizes[-1] < e.running:
        found.append(Option("larger graphs", ("graph.capture_sizes=",), cost))
    return found


def more_ranks(system: System, e: Evidence) -> list[Option]:
    """Twice the devices work on each step."""
    config, device, tp = system.config, system.deployment.device, 2 * system.config["tp"]
    fits = divides(system.deployment.model, tp) and bool(device.scale_up or device.host_link)
    is_open = config.where["cache.blocks"] == "memory budget" and not config["step_times"] and config["ep"] == 1
    if not fits or not is_open:
        return []
    return [Option("tensor parallelism", (f"tp={tp}",), "twice the devices", 2.0)]


OF_SYMPTOM: dict[str, tuple[Lever, ...]] = {
    "prefill-stalls": (smaller_chunks, shorter_prompt_parts, step_target, prefix_cache, separation),
    "prefixes-again": (
        prefix_cache,
        router,
        eviction,
        more_memory,
        kv_type,
        host_tier,
        storage_tier,
        prefix_order,
        smaller_blocks,
    ),
    "memory-limits": (more_memory, kv_type, headroom, smaller_blocks, fewer_places, prefix_cache),
    "places-limit": (more_places,),
    "idle-device": (overlap, graphs, streams),
    "kv-bandwidth": (kv_type,),
    "too-much-load": (larger_chunks,),
    "routing-imbalance": (router,),
    "ranks-wait": (expert_balance, streams),
    "exchange-exposed": (streams,),
    "transfers-exposed": (no_host_tier, no_separation),
}
"""Symptom -> levers, the likeliest first."""

LAST: tuple[Lever, ...] = (more_ranks, more_engines)
"""Against every symptom, and paid for."""


def options_for(symptoms: Iterable[str], system: System, e: Evidence) -> list[Option]:
    """What fits these symptoms and this system, the levers of the worst symptom first; each once."""
    levers = [lever for name in symptoms for lever in OF_SYMPTOM[name]]
    found = [option for lever in dict.fromkeys([*levers, *LAST]) for option in lever(system, e)]
    return list({option.changes: option for option in found}.values())


def _is_vllm(system: System) -> bool:
    return system.config["scheduler.discipline"] == TOKEN_BUDGET


def _blocks(system: System, times: float) -> tuple[str, ...]:
    """So many times the blocks, where their number is not left to the memory budget: the bytes stay."""
    if system.config.where["cache.blocks"] == "memory budget":
        return ()
    return (f"cache.blocks={int(times * system.config['cache.blocks'])}",)


def _places(system: System) -> tuple[str, int]:
    key = "scheduler.max_num_seqs" if _is_vllm(system) else "scheduler.max_running_requests"
    return key, system.config[key]
