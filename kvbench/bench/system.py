"""The system of a configuration: device, model, memory and the engine's rules, with nothing left open.

Plain Python: `kvbench config X` shows what open sizes come to without compiling anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.config import DEFAULTS, Config
from ..core.errors import UsageError
from ..core.units import NS_PER_US
from ..costs.classes import fitted
from ..costs.deployment import Deployment
from ..costs.devices import Device
from ..costs.graph_keys import GraphSettings
from ..costs.graphs import Graphs, captured_graphs, chosen_graphs, graph_bytes
from ..costs.keys import CostSettings
from ..costs.kv_format import KvFormat, check_format
from ..costs.memory import EngineLimits, MemoryBudget, memory_budget
from ..costs.models import Model
from ..costs.named import find_device, find_model
from ..engine.settings import EngineSettings, check_rules
from ..scheduler.presets import automatic
from ..scheduler.rules import PREFILL_FIRST, TOKEN_BUDGET, BeamRules, CacheRules, SchedulerRules
from ..workload.keys import FROM_SEED
from .fleet import check_fleet, closed_groups
from .pairs import check_pair_keys, is_paired
from .start import check_start
from .tiers import HOST_LINK_SHARE, closed_tiers, tier_rules

OF_DISCIPLINE: dict[str, dict[str, tuple[str, ...]]] = {
    TOKEN_BUDGET: {
        "scheduler.policy": ("fcfs", "priority"),
        "cache.free_order": ("auto", "tail", "unhashed-first"),
    },
    PREFILL_FIRST: {
        "scheduler.policy": (
            "fcfs",
            "lpm",
            "dfs-weight",
            "lof",
            "hrrn",
            "shortest-prefill-first",
            "random",
            "priority",
        ),
        "cache.free_order": ("auto", "append", "sorted-front"),
    },
}
"""Values that belong to one of the two schedulers."""


@dataclass(frozen=True)
class System:
    """What a run is made of, besides its requests.

    config   every key, nothing open
    asked    the same as it was asked for: engines of a fleet may close what is open in another way
    budget   of each device; `num_blocks` is what would fit, settings.cache.num_blocks what is used
    """

    config: Config
    asked: Config
    deployment: Deployment
    budget: MemoryBudget
    costs: CostSettings
    settings: EngineSettings


def build_system(config: Config, record_steps: bool = False) -> System:
    """Close every open key and make the engine's settings. UsageError: cannot run, does not fit."""
    check_fleet(config)
    check_pair_keys(config)
    asked = config
    config = _step_after_step(config)
    _check_runnable(config)
    if config["clock"] == "measured":
        return _measured_system(config, asked)
    device = find_device(config["device"])
    model = find_model(config["model"])
    _check_ranks(config, model)
    config = config.replaced(_closed(config, model), "by model")
    config = config.replaced(automatic(config.values, device.memory_bytes), "by device")
    check_start(config)
    config = config.replaced(_measured_host(config), config["step_times"] or config["device"])
    deployment = Deployment(
        device=device,
        model=model,
        dtype=config["dtype"],
        kv_dtype=config["kv_dtype"],
        tp=config["tp"],
        ep=config["ep"],
        redundant=config["eplb.redundant"],
        block_tokens=config["block_tokens"],
        max_model_len=config["max_model_len"],
        kv=_kv_format(config, model, device),
    )
    limits = replace(
        engine_limits(config),
        graph_bytes=_graph_bytes(config, device),
        moves_experts=config["eplb.mode"].startswith("dynamic"),
    )
    budget = memory_budget(deployment, limits)
    if config["cache.blocks"] == 0:
        config = config.replaced({"cache.blocks": budget.num_blocks}, "memory budget")
    costs = fitted(CostSettings(**config.section("costs")), device, config["dtype"])
    config = config.replaced(_fitted_keys(config, costs), "by device class")
    config = closed_tiers(config)
    settings = replace(_settings(config, costs, budget, record_steps), tiers=tier_rules(config, deployment, budget))
    if config["cache.backup"]:
        settings = replace(settings, backup_ns_per_block=_copy_ns(config, deployment, budget, costs))
    check_rules(settings)
    if config["fleet.group"]:
        config = config.replaced(
            {"fleet.group": closed_groups(asked, config, lambda c: build_system(c).config)}, config.where["fleet.group"]
        )
    return System(config, asked, deployment, budget, costs, settings)


def own_graphs(config: Config, device: Device) -> Graphs:
    """What the engine captures by its rule."""
    limits = engine_limits(config)
    rule, tokens = config["costs.graphs"], limits.max_batched_tokens
    return captured_graphs(rule, limits.max_num_seqs, tokens, device.memory_bytes, config["tp"])


def _graph_bytes(config: Config, device: Device) -> int:
    """Memory of the graphs beyond the engine's own."""
    settings, own = GraphSettings(**config.section("graph")), own_graphs(config, device)
    default = captured_graphs("vllm", 256, 512, device.memory_bytes, config["tp"])
    return graph_bytes(settings, chosen_graphs(settings, own, default, 1, 1), own)


def _kv_format(config: Config, model: Model, device: Device) -> KvFormat:
    """UsageError: it does not go with the type, the model or the device."""
    kv = KvFormat(**config.section("kv"))
    where = next(
        (config.where[f"kv.{f.name}"] for f in fields(KvFormat) if config.where[f"kv.{f.name}"] != DEFAULTS), ""
    )
    units = device.flops_int8 if config["kv_dtype"] == "int8" else device.flops_fp8
    check_format(kv, config["kv_dtype"], model, bool(units), where)
    return kv


def _measured_system(config: Config, asked: Config) -> System:
    """The same for a model that runs on this machine."""
    from .measured import (  # here: it needs NumPy, and `kvbench config` answers without
        catalogue_model,
        check_config,
        cpu_budget,
        measured_settings,
        measured_tiers,
        model_config,
        model_name,
        this_machine,
    )

    check_config(config)
    device, shape = this_machine(), model_config(config)
    model = catalogue_model(model_name(config), shape)
    if config["max_model_len"] == 0:
        config = config.replaced({"max_model_len": model.max_positions}, "by model")
    config = config.replaced(automatic(config.values, device.memory_bytes), "by device")
    check_start(config)
    budget = cpu_budget(config, shape)
    config = config.replaced({"cache.blocks": budget.num_blocks, "kv_dtype": "bf16"}, "memory budget")
    deployment = Deployment(device, model, block_tokens=config["block_tokens"], max_model_len=config["max_model_len"])
    costs = fitted(CostSettings(**config.section("costs")), device, "bf16")
    config = closed_tiers(config)
    tiers = measured_tiers(config, tier_rules(config, deployment, budget), budget)
    settings = replace(measured_settings(_settings(config, costs, budget, record_steps=True)), tiers=tiers)
    if config["cache.backup"]:
        settings = replace(settings, backup_ns_per_block=_copy_ns(config, deployment, budget, costs))
    check_rules(settings)
    return System(config, asked, deployment, budget, costs, settings)


def _copy_ns(config: Config, deployment: Deployment, budget: MemoryBudget, costs: CostSettings) -> int:
    """Nanoseconds of one block over the link to the host."""
    where, bandwidth = config.where["cache.backup"], deployment.device.host_link * HOST_LINK_SHARE
    if config["cache.kind"] == "none":
        raise UsageError(
            f"{where}: cache.backup copies what a prefix cache can find again; set cache.kind = hash or radix"
        )
    if bandwidth == 0:
        raise UsageError(f"{where}: cache.backup needs a link to the host; {deployment.device.name} has none on record")
    return max(round(budget.block_bytes / bandwidth * 1e9), 1)


def _check_tlru(config: Config) -> None:
    where = config.where["cache.eviction"]
    if config["cache.kind"] != "radix":
        raise UsageError(f"{where}: cache.eviction = tlru looks at whole conversations; it needs cache.kind = radix")
    if config["cache.tlru_threshold"] <= config["cache.tlru_next_prompt_estimate"]:
        raise UsageError(
            f"{where}: cache.eviction = tlru drops nothing before the rest unless cache.tlru_threshold is above "
            "cache.tlru_next_prompt_estimate; set the tokens that a turn may compute within its TTFT"
        )


def _step_after_step(config: Config) -> Config:
    """A preset's overlap gives way to rules that know none; where somebody asked for it, that is an error."""
    if is_paired(config):
        return config.replaced({"overlap": False}, "by pd")
    serial = config["batching"] == "static" or config["cache.copy_on_write"] or config["cache.allocation"] != "paged"
    if serial and config.where["overlap"].startswith("preset "):
        return config.replaced({"overlap": False}, "by batching" if config["batching"] == "static" else "by cache")
    return config


def parallelism(config: Config) -> str:
    """ "tp 1", "tp 1, dp 16, ep 16"."""
    ranks = [("tp", config["tp"]), *((name, config[name]) for name in ("dp", "ep") if config[name] > 1)]
    return ", ".join(f"{name} {n}" for name, n in ranks)


def _check_ranks(config: Config, model: Model) -> None:
    """What steps together, and what its experts are spread over."""
    dp, ep, devices = config["dp"], config["ep"], config["dp"] * config["tp"]
    if dp > 1 and (config["clock"] == "measured" or config["batching"] == "static"):
        name = "clock" if config["clock"] == "measured" else "batching"
        raise UsageError(
            f"{config.where['dp']}: dp = {dp} ranks step together on the modelled clock, continuously batched; "
            f"{name} = {config[name]} runs one"
        )
    if ep == 1 and (config["eplb.mode"] != "off" or config["eplb.redundant"]):
        name = "eplb.mode" if config["eplb.mode"] != "off" else "eplb.redundant"
        raise UsageError(
            f"{config.where[name]}: {name} = {config[name]} places experts, which ep = 1 spreads over nothing; "
            f"set ep = {devices}" + ("" if devices > 1 else " and dp")
        )
    if ep > 1 and model.moe is None:
        raise UsageError(f"{config.where['ep']}: ep = {ep}: {model.name} has no experts; set ep = 1")
    if ep not in (1, devices):
        raise UsageError(
            f"{config.where['ep']}: ep = {ep}: experts are spread over all devices of an instance, "
            f"tp x dp = {devices}, or over none (1)"
        )


def _check_runnable(config: Config) -> None:
    if config["overlap"] and config["batching"] == "static":
        raise UsageError(
            f"{config.where['overlap']}: overlap plans the next step of a continuous batch; "
            "static batching has none: set overlap = false or batching = continuous"
        )
    discipline = config["scheduler.discipline"]
    for name, allowed in OF_DISCIPLINE[discipline].items():
        if config[name] not in allowed:
            raise UsageError(
                f"{config.where[name]}: {name} = {config[name]} is not a rule of scheduler.discipline = "
                f"{discipline}; choose {', '.join(allowed)}"
            )
    if config["scheduler.step_target_ms"] > 0 or config["scheduler.equal_chunks"]:
        _check_by_time(config)
    if config["cache.eviction"] == "tlru":
        _check_tlru(config)
    if config["cache.kind"] == "none" and config["cache.eviction"] not in ("", "lru"):
        raise UsageError(
            f"{config.where['cache.eviction']}: cache.eviction = {config['cache.eviction']} needs "
            "cache.kind = radix or hash; none keeps nothing that could be evicted"
        )


def _check_by_time(config: Config) -> None:
    """A budget in time asks the cost tables of one engine."""
    name = "scheduler.step_target_ms" if config["scheduler.step_target_ms"] > 0 else "scheduler.equal_chunks"
    if config["scheduler.discipline"] != TOKEN_BUDGET:
        raise UsageError(f"{config.where[name]}: {name} is a rule of scheduler.discipline = {TOKEN_BUDGET}")
    if config["clock"] == "measured":
        raise UsageError(f"{config.where[name]}: {name} asks the modelled step times; leave clock = measured out")
    if config["dp"] > 1 or config["ep"] > 1 or config["pd.prefill"] or config["pd.decode"]:
        raise UsageError(f"{config.where[name]}: {name} is a rule of engines that step alone: without dp, ep and [pd]")


def _measured_host(config: Config) -> dict[str, Any]:
    """Host times that a file of step times has measured, where nobody else has set them."""
    from ..costs.sources import host_times  # here: it needs NumPy, and most systems have no such file

    given = {f"costs.{name}": us for name, us in host_times(config["device"], config["step_times"]).items()}
    preset = f"preset {config['preset']}"
    return {key: us for key, us in given.items() if config.where[key] in (DEFAULTS, preset)}


def _fitted_keys(config: Config, costs: CostSettings) -> dict[str, Any]:
    """What keys came to that were open for the device's class to say."""
    section = config.section("costs")
    return {f"costs.{name}": getattr(costs, name) for name, value in section.items() if getattr(costs, name) != value}


def _closed(config: Config, model: Model) -> dict[str, Any]:
    """What open keys come to: those that depend on the model, and the rule of the preset's engine for its ranks."""
    closed: dict[str, Any] = {}
    if config["dp_deal"] == "auto":
        is_vllm = config["scheduler.discipline"] == TOKEN_BUDGET
        closed["dp_deal"] = "least-waiting" if is_vllm else "round-robin"
    if config["max_model_len"] == 0:
        closed["max_model_len"] = model.max_positions
    elif config["max_model_len"] > model.max_positions:
        raise UsageError(
            f"{config.where['max_model_len']}: max_model_len = {config['max_model_len']} is beyond the "
            f"{model.max_positions} positions of {model.name}"
        )
    if config["kv_dtype"] == "auto":
        closed["kv_dtype"] = "fp16" if config["dtype"] == "fp16" else "bf16"
    return closed


def engine_limits(config: Config) -> EngineLimits:
    """What the reserve depends on: the widest step and the most sequences."""
    rules = config.section("scheduler")
    if rules["discipline"] == TOKEN_BUDGET:
        tokens, sequences = rules["max_num_batched_tokens"], rules["max_num_seqs"]
    else:
        tokens = rules["chunked_prefill_size"] if rules["enable_chunked_prefill"] else rules["max_prefill_tokens"]
        sequences = rules["max_running_requests"]
    return EngineLimits(config["cache.memory_utilization"], tokens, sequences)


def _settings(config: Config, costs: CostSettings, budget: MemoryBudget, record_steps: bool) -> EngineSettings:
    return EngineSettings(
        scheduler=_scheduler_rules(config.section("scheduler")),
        cache=replace(
            _cache_rules(config.section("cache")),
            num_blocks=config["cache.blocks"],
            state=_state_at_start(config),
            block_bytes=budget.block_bytes,
        ),
        block_tokens=config["block_tokens"],
        max_model_len=config["max_model_len"],
        beam=BeamRules(
            config["beam.width"],
            config["beam.skew"],
            config["seed"] if config["seeds.beam"] == FROM_SEED else config["seeds.beam"],
        ),
        batching=config["batching"],
        overlap=config["overlap"],
        tokenize_ns_per_request=round(costs.tokenize_us_per_request * NS_PER_US),
        tokenize_ns_per_token=round(costs.tokenize_us_per_token * NS_PER_US),
        serial_tokenizer=costs.serial_tokenizer,
        detokenize_ns=round(costs.detokenize_us_per_token * NS_PER_US),
        output_ns_per_token=round(costs.output_us_per_token * NS_PER_US),
        concurrency=config["arrivals.concurrency"],
        closed_loop=_is_closed_loop(config),
        record_steps=record_steps,
        fast=config["path"] == "auto",
        seed=config["seed"],
        check=config["check"],
        faults=planted_faults(config),
    )


def _state_at_start(config: Config) -> str:
    """A part that warms the cache up runs in front of the others, so the cache is cold before it."""
    warms_up = any(phase.get("warm_up") for phase in config.phases)
    return "cold" if warms_up and config["cache.state"] == "warm" else str(config["cache.state"])


def planted_faults(config: Config) -> tuple[str, ...]:
    """Names of the faults that are switched on."""
    return tuple(name for name, on in config.section("faults").items() if on)


def _scheduler_rules(values: Mapping[str, Any]) -> SchedulerRules:
    rules = {f.name: values[f.name] for f in fields(SchedulerRules)}
    if rules["discipline"] == PREFILL_FIRST and not rules["enable_chunked_prefill"]:
        rules["chunked_prefill_size"] = 0  # to the engine 0 is off; to a user it is "by device memory"
    return SchedulerRules(**rules)


def _cache_rules(values: Mapping[str, Any]) -> CacheRules:
    return CacheRules(**{f.name: values[f.name] for f in fields(CacheRules) if f.name in values})


def _is_closed_loop(config: Config) -> bool:
    if config["arrivals.process"] == "closed" and config["arrivals.concurrency"] == 0:
        raise UsageError("arrivals.process = closed needs arrivals.concurrency of at least 1")
    return config["arrivals.process"] == "closed" or any(
        phase.get("arrivals.process") == "closed" for phase in config.phases
    )
