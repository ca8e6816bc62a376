"""The workload of a resolved configuration: a replayed trace or generated phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.config import PHASE, Config, KeyTree
from ..core.errors import UsageError
from ..core.requests import Requests
from .client import WARM_UP, measured_part, warm_up_part, warmed_up_first
from .draws import Seeds
from .generate import Phase, generate
from .keys import FROM_SEED, PHASE_KEYS, WORKLOAD_KEYS
from .options import TraceOptions
from .protocols import CLIENT_KEYS
from .sharing import PREFIX_FACTOR, PRIVATE
from .steer import Steering, steered
from .trace import TraceInfo, load_trace

_TREE = KeyTree(WORKLOAD_KEYS, PHASE_KEYS)
_TABLES = {key.name.partition(".")[0] for key in WORKLOAD_KEYS} | {PHASE}


BLOCK_TOKENS = 16
"""Blocks by which sharing.hit_rate is reached where the configuration says none."""

Workload = tuple[Requests, TraceInfo | None]
"""What is asked for, and where a trace came from."""


def workload_part(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """All of nested tables that a workload depends on: equal parts are equal workloads."""
    part = {name: value for name, value in cfg.items() if name in _TABLES or name == "seed"}
    if any(phase.get("warm_up") for phase in cfg.get(PHASE, ())):
        part["cache"] = {"state": cfg.get("cache", {}).get("state", "cold")}
    if cfg.get("sharing", {}).get("hit_rate"):
        part["block_tokens"] = cfg.get("block_tokens", BLOCK_TOKENS)
    return part


def build_workload(cfg: Mapping[str, Any]) -> Workload:
    """Requests of nested tables (those of WORKLOAD_KEYS, `phase` and `seed`; the others are left alone).

    A key that is missing has its default. The second value tells where a trace came from.
    UsageError: a wrong key or value, a wrong trace, phases or a closed loop that cannot be.
    """
    mine = workload_part(cfg)
    seed = int(mine.pop("seed", 0))
    is_warm = mine.pop("cache", {}).get("state") == "warm"
    block_tokens = int(mine.pop("block_tokens", BLOCK_TOKENS))
    config = _TREE.resolve([_TREE.layer(mine, "workload")])
    seeds = _seeds(config, seed)
    if config["trace.path"]:
        if config.phases:
            raise UsageError("[[phase]] divides generated requests; remove the phases or trace.path")
        return load_trace(config["trace.path"], _trace_options(config, seeds))
    phases = _phases(config, is_warm)
    _check_loop(phases, config["arrivals.concurrency"])
    if config["sharing.hit_rate"]:
        requests = _steered(phases, seeds, config, block_tokens)
    else:
        requests = generate(phases, seeds, config["flush"])
    if phases[0].name == WARM_UP and not config.phases:
        requests = warmed_up_first(requests, config["client.warm_up_prompt"] == "first")
    return requests, None


def _steered(phases: list[Phase], seeds: Seeds, config: Config, block_tokens: int) -> Requests:
    if not any(phase.values["sharing.groups"] for phase in phases):
        raise UsageError("sharing.hit_rate steers shared prefixes; set sharing.groups, how many there are")

    def build(steering: Steering) -> Requests:
        told = {PREFIX_FACTOR: steering.factor, PRIVATE: steering.private}
        scaled = [replace(phase, values={**phase.values, **told}) for phase in phases]
        return generate(scaled, seeds, config["flush"])

    return steered(build, config["sharing.hit_rate"], block_tokens)


def _seeds(config: Config, seed: int) -> Seeds:
    given = {name: config[f"seeds.{name}"] for name in ("arrivals", "lengths", "sharing")}
    return Seeds(**{name: seed if value == FROM_SEED else value for name, value in given.items()})


def _trace_options(config: Config, seeds: Seeds) -> TraceOptions:
    given = config.section("trace")
    del given["path"]
    return TraceOptions(
        **given,
        num_prompts=config["num_prompts"],
        max_tokens=config["lengths.max_tokens"],
        arrival_seed=seeds.arrivals,
        length_seed=seeds.lengths,
    )


def _phases(config: Config, is_warm: bool) -> list[Phase]:
    """The phases that run; without [[phase]] the whole workload is one. Those left out keep their number."""
    if not config.phases:
        main = Phase("main", 0, measured_part(config.values))
        warm_up = warm_up_part(main.values)
        return [main] if warm_up is None else [Phase(WARM_UP, 1, warm_up), main]
    _check_no_client(config)
    phases = []
    for index, overrides in enumerate(config.phases, 1):
        name = overrides.get("name") or f"phase-{index}"
        phases.append(Phase(name, index - 1, {**config.values, **overrides}))
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise UsageError(f"two phases have the same name: {', '.join(names)}; give each [[phase]] its own")
    return [phase for phase in phases if is_warm or not phase.values.get("warm_up")]


def _check_no_client(config: Config) -> None:
    for key in CLIENT_KEYS:
        if config[key.name] != key.default:
            raise UsageError(f"{key.name} and [[phase]] exclude each other: a part with exclude = true warms up")


def _check_loop(phases: list[Phase], concurrency: int) -> None:
    if all(phase.is_excluded for phase in phases):
        raise UsageError("exclude and warm_up leave nothing in the results; take them out of one part")
    if any(phase.values["arrivals.process"] == "users" for phase in phases):
        if len(phases) > 1:
            raise UsageError("arrivals.process = users goes on for the whole run; remove the other phases")
        if phases[0].values["arrivals.users"] == 0:
            raise UsageError("arrivals.process = users needs arrivals.users of at least 1")
    closed = [phase.values["arrivals.process"] == "closed" for phase in phases]
    if any(closed) and not all(closed):
        raise UsageError("arrivals.process is closed in some phases only; make it closed in all or none")
    if any(closed) and concurrency == 0:
        raise UsageError("arrivals.process = closed needs arrivals.concurrency of at least 1")
