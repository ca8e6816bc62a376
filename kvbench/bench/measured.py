"""The system of the measured clock: a model that this machine runs, its memory, and the engine's rules for it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import DEFAULTS, Config
from ..core.errors import UsageError
from ..core.requests import Requests
from ..costs.devices import GIB, Device
from ..costs.memory import MemoryBudget
from ..costs.models import Model
from ..costs.tables import CostTables
from ..report.record import MemoryLine
from ..workload.build import build_workload
from .keys import key_tree
from .machine import available_bytes, cpu_name

if TYPE_CHECKING:
    from ..cluster.fleet import Fleet
    from ..engine.settings import EngineSettings
    from ..measured.run import MeasuredRun
    from ..model.config import ModelConfig
    from ..model.forward import Model as CpuModel
    from ..model.paged import PagedModel
    from ..tiers.rules import TierRules

_LEAVE_BYTES = GIB // 2
"""Room for Python, activations and the packed copy of one matrix."""

NOMINAL = "nominal rates; steps are measured"


def model_config(config: Config) -> ModelConfig:
    """The model that runs: a built-in size, or a folder."""
    from ..model.config import from_folder, named

    name = model_name(config)
    return from_folder(name) if _is_folder(name) else named(name)


def model_name(config: Config) -> str:
    """measured.model, or `model` where that names one that can run here."""
    from ..model.config import SIZES

    given = config["model"]
    return given if given in SIZES or Path(given).is_dir() else config["measured.model"]


def _is_folder(name: str) -> bool:
    return os.sep in name or Path(name).is_dir()


def this_machine() -> Device:
    """The CPU as a device. Its rates only weigh eviction by cost and the link of cache.backup."""
    return Device("cpu", cpu_name(), available_bytes(), 2e10, 1e11, 0.0, 0.0, 0.0, 0.0, 1e10, "low", NOMINAL)


def catalogue_model(name: str, c: ModelConfig) -> Model:
    """The same model in the terms of the cost tables."""
    return Model(
        name=f"{Path(name).name} ({c.parameters / 1e6:.3g}M)",
        title=f"{c.architecture}, runs on this machine",
        num_layers=c.layers,
        hidden=c.hidden,
        num_heads=c.heads,
        num_kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        mlp_width=c.intermediate,
        vocab=c.vocab,
        max_positions=c.max_positions,
        tied_embeddings=c.tied_embeddings,
        qkv_bias=c.qkv_bias,
        qk_norm=c.qk_norm,
        sliding_window=c.window,
    )


def cpu_budget(config: Config, model: ModelConfig) -> MemoryBudget:
    """KV of `measured.kv_gib`, or of cache.blocks where that is given. UsageError: more than the machine has free."""
    from ..kernels.layout import KvShape

    if config["block_tokens"] > 256:
        raise UsageError(f"{config.where['block_tokens']}: the kernels take block_tokens of 1 to 256")
    one = KvShape(
        model.layers,
        1,
        model.kv_heads,
        config["block_tokens"],
        model.head_dim,
        config["measured.layout"],
        config["measured.kv_dtype"],
    ).nbytes
    weights, free = 4 * model.parameters, available_bytes()
    blocks = config["cache.blocks"] or int(config["measured.kv_gib"] * GIB) // one
    wanted = blocks * one + weights + _LEAVE_BYTES
    if wanted > free:
        raise UsageError(
            f"{blocks:,} blocks of KV need {blocks * one / GIB:.2f} GiB beside {weights / GIB:.2f} GiB of weights, "
            f"and {free / GIB:.2f} GiB are free here; lower cache.blocks or measured.kv_gib, or take a smaller model"
        )
    if blocks < 1:
        raise UsageError("measured.kv_gib holds not one block; raise it, or set cache.blocks")
    return MemoryBudget(free, weights, _LEAVE_BYTES, 0, blocks * one, one, blocks)


def check_config(config: Config) -> None:
    """UsageError on keys that the measured clock cannot heed."""
    if config["tp"] != 1:
        raise UsageError(f"{config.where['tp']}: tp = {config['tp']}: the measured clock runs one model on this CPU")
    if config["cache.state"] == "warm":
        raise UsageError(
            f"{config.where['cache.state']}: the measured clock has no KV of an earlier visit; use a first [[phase]] "
            "with exclude = true, which really runs, or cache.state = cold or prefilled"
        )


def measured_settings(settings: EngineSettings) -> EngineSettings:
    """Nothing is added to what is measured, and nobody hits a block that was never written."""
    cache = replace(settings.cache, unregister_unwritten="keep_unwritten" not in settings.faults)
    return replace(
        settings,
        cache=cache,
        tokenize_ns_per_request=0,
        tokenize_ns_per_token=0,
        detokenize_ns=0,
        output_ns_per_token=0,
        record_steps=True,
        fast=False,
    )


def measured_tiers(config: Config, rules: TierRules, budget: MemoryBudget) -> TierRules:
    """Links take what copies take here. UsageError: a state that nobody has computed, a link's key, too much memory."""
    from ..tiers.rules import HostLink, LinkRules

    if not rules.on:
        return rules
    for name in ("tiers.host.kv_dtype", "tiers.storage.kv_dtype"):
        if config[name] != "auto":
            raise UsageError(
                f"{config.where[name]}: on the measured clock tiers hold KV as measured.kv_dtype; leave it out"
            )
    for name in ("tiers.host.state", "tiers.storage.state"):
        if config[name] != "cold":
            raise UsageError(
                f"{config.where[name]}: the measured clock has no KV of an earlier visit; set {name} = cold and use a "
                "first [[phase]] with exclude = true, which really runs"
            )
    for name in config.values:
        modelled = name.startswith(("links.host.", "links.storage.")) and ".out_" not in name
        if modelled and config.where[name] != DEFAULTS:
            raise UsageError(
                f"{config.where[name]}: {name} is of a modelled link; on the measured clock a copy takes as long as it "
                "takes here: leave it out"
            )
    host, free = rules.host_blocks * budget.block_bytes, available_bytes()
    if host + budget.kv_bytes + budget.weights_bytes + _LEAVE_BYTES > free:
        raise UsageError(
            f"{rules.host_blocks:,} blocks of host memory need {host / GIB:.2f} GiB beside the device's KV, and "
            f"{free / GIB:.2f} GiB are free here; lower tiers.host.ratio, blocks or bytes"
        )
    free_link = LinkRules()
    store = replace(rules.store, down=free_link, up=free_link)
    return replace(rules, host_link=HostLink(), store=store, slowdown=0.0)


def load_model(config: Config) -> CpuModel:
    """The model with its weights, packed for this machine."""
    from ..kernels.threads import check_threads
    from ..model.forward import Model as CpuModel
    from ..model.weights import random_weights, read_weights

    check_threads(config["measured.threads"])
    shape, name = model_config(config), model_name(config)
    weights = read_weights(name, shape) if _is_folder(name) else random_weights(shape, config["seed"])
    return CpuModel(shape, weights, config["measured.numerics"], config["measured.threads"])


def measured_run(
    config: Config, settings: EngineSettings, requests: Requests, tables: CostTables, fleet: Fleet | None
) -> MeasuredRun:
    """Engines over a model whose kernels, like the engines' verbs, are compiled or loaded already."""
    from ..measured.run import MeasuredRun
    from ..offline.warm import prepared

    settings = settings if fleet is None else fleet.settings[0]
    devices, temperature = devices_of(config, settings, fleet, load_model(config)), config["measured.temperature"]
    devices[0].warm_up(temperature)
    short = _undisturbed(settings)
    prepared(MeasuredRun(_two_short_requests(settings), short, tables, devices, fleet=_quiet(fleet))).run()
    folder = Path(config["measured.storage_dir"]) if config["measured.storage_dir"] else None
    return prepared(MeasuredRun(requests, settings, tables, devices, temperature, folder=folder, fleet=fleet))


def _undisturbed(settings: EngineSettings) -> EngineSettings:
    return replace(settings, check=False, faults=(), concurrency=0, closed_loop=False)


def _quiet(fleet: Fleet | None) -> Fleet | None:
    """The same engines, to which nothing happens."""
    if fleet is None or fleet.pairs is None:
        return fleet
    members = tuple(replace(m, settings=_undisturbed(m.settings)) for m in fleet.members)
    return replace(fleet, members=members, incidents=(), pairs=replace(fleet.pairs, faults=()))


def devices_of(
    config: Config, settings: EngineSettings, fleet: Fleet | None, model: CpuModel
) -> tuple[PagedModel, ...]:
    """One for each engine: the model is the same, the memory its own."""
    of = (settings,) if fleet is None else fleet.settings
    return tuple(paged_model(config, one, model) for one in of)


def paged_model(config: Config, settings: EngineSettings, model: CpuModel) -> PagedModel:
    """The model with memory for its KV: one block more than the engine's, whose ids begin at 1."""
    from ..model.paged import PagedModel

    layout, kv_dtype = config["measured.layout"], config["measured.kv_dtype"]
    kv = model.kv_shape(settings.cache.num_blocks + 1, settings.block_tokens, layout, kv_dtype)
    return PagedModel(model, kv.allocate())


def _two_short_requests(settings: EngineSettings) -> Requests:
    """Prompts of one block and two tokens to say, as far as memory goes."""
    prompt = max(min(settings.block_tokens, settings.max_model_len - 2), 1)
    tree = {
        "num_prompts": 2,
        "lengths": {"prompt": prompt, "output": 2},
        "arrivals": {"rate": float("inf")},
    }
    return build_workload(key_tree().resolve([key_tree().layer(tree, "warm-up", Path.cwd())]).tree())[0]


def cpu_memory_lines(budget: MemoryBudget, config: Config) -> tuple[MemoryLine, ...]:
    """Memory of the run on this machine."""
    kv = f"{budget.num_blocks:,} blocks of {config['block_tokens']} tokens"
    return (
        MemoryLine("available", budget.usable_bytes, "when the run began"),
        MemoryLine("weights", budget.weights_bytes),
        MemoryLine("KV", budget.kv_bytes, kv),
    )


def measured_notes(config: Config, settings: EngineSettings) -> tuple[str, ...]:
    """What a reader must know of a run on this machine."""
    notes = [
        f"the model {model_name(config)} ran here with weights "
        + ("of that folder" if _is_folder(model_name(config)) else f"drawn from seed {config['seed']}")
        + "; times are those of this CPU, never of an accelerator",
    ]
    unused = [name for name in ("device", "model") if config.where[name] not in (DEFAULTS, "by device")]
    unused = [name for name in unused if name == "device" or config["model"] != model_name(config)]
    if unused:
        given = " and ".join(f"{name} = {config[name]}" for name in unused)
        notes.append(f"{given}: of the modelled clock, and not used here; measured.model names what runs")
    if settings.cache.kind == "hash" and not config["cache.unregister_unwritten"]:
        notes.append(
            "cache.unregister_unwritten = true on this clock: a preemption takes back blocks that were never written"
        )
    return tuple(notes)


def measured_lines(run: MeasuredRun, config: Config, block_bytes: int) -> tuple[tuple[str, str], ...]:
    """What is shown beside latencies: where device time went, the host's share, bytes, threads, load."""
    m = run.measures
    total = max(sum(m.kernel_ns.values()), 1)
    parts = ", ".join(f"{kind} {ns / total:.0%}" for kind, ns in m.kernel_ns.most_common() if ns * 200 > total)
    host = m.host_ns / max(m.host_ns + m.device_ns, 1)
    read = run.attended_bytes(block_bytes)
    seconds = m.kernel_ns["attention_decode"] / 1e9
    rows = [
        ("kernels", f"{m.device_ns / 1e9:.3f} s: {parts}"),
        ("host", f"{host:.1%} of host + device time plans, takes down and commits steps"),
        ("numerics", f"{config['measured.numerics']}; KV {config['measured.kv_dtype']}, {config['measured.layout']}"),
        ("threads", f"{config['measured.threads']}; load {m.load:.1f} on {os.cpu_count()} CPUs when it began"),
    ]
    if seconds:
        rows.insert(
            1, ("bandwidth", f"decode attention read {read / 1e9:.3g} GB of KV at {read / 1e9 / seconds:.3g} GB/s")
        )
    if m.copied_blocks:
        rows.insert(2, ("copies", f"{m.copied_blocks:,} blocks, {m.copied_blocks * block_bytes:,} bytes"))
    if moved := {kind: size for kind, size in run.moves.moved_bytes.items() if size}:
        told = ", ".join(f"{kind} {size / 1e6:,.1f} MB" for kind, size in moved.items())
        rows.append(("moved", f"{told}; a copy takes on its link what it took here"))
    if broken := run.moves.broken:
        rows.append(("broken pages", f"{len(broken):,}, which were misses; the first is {broken[0]}"))
    return tuple(rows)


def details(run: MeasuredRun) -> dict[str, Any]:
    """For run.json."""
    m = run.measures
    return {
        "kernel_s": {kind: round(ns / 1e9, 6) for kind, ns in sorted(m.kernel_ns.items())},
        "device_s": round(m.device_ns / 1e9, 6),
        "host_s": round(m.host_ns / 1e9, 6),
        "copied_blocks": m.copied_blocks,
        "moved_bytes": {kind: size for kind, size in run.moves.moved_bytes.items() if size},
        "broken_pages": run.moves.broken,
        "token_hashes": run.digests(),
        "load_at_start": m.load,
    }
