"""From what a user names to a configuration: defaults < preset < scenario or file < flags.

A target is a scenario's name, a TOML file, or the run.json of an earlier run. A run.json holds the
configuration twice: resolved (run again as it is, it gives the same bytes) and what the user had set (used
when something is changed, so that sizes chosen for one device do not follow the run to another).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.config import DEFAULTS, Config, Layer, nest, read_toml
from ..core.errors import UsageError
from ..scheduler.presets import ALIASES, find_preset
from ..workload.protocols import PROTOCOLS
from .keys import key_tree
from .scenarios import scenario_names, scenario_path

DRAWN = ("client.", "arrivals.", "lengths.", "sharing.", "sessions.", "documents.", "namespace.", "agents.", "flush")
"""What a trace has instead of."""

REPLACED_BY_TRACE = (*DRAWN, "trace.", "num_prompts", "exclude")
"""What `--trace` takes from the target: everything that the trace itself says."""

HOLDS_FOR_TRACE = ("arrivals.concurrency", "lengths.max_tokens")
"""Keys of those tables that a replay heeds all the same; so does arrivals.process = closed."""

RATE_OPTION = "--request-rate"
"""Means the rate of the arrivals, whether they are drawn or come from a trace."""


@dataclass(frozen=True)
class Configured:
    """A configuration that may still hold open sizes (0, "auto"), and where it came from.

    name          of the run: scenario, file or trace, without folder and suffix
    given         nested tables of what the user set, above defaults and preset
    fingerprint   of the workload of the run.json that is run again; "" else
    """

    config: Config
    name: str
    given: dict[str, Any]
    fingerprint: str = ""


def is_path(target: str) -> bool:
    """A target is a path if it ends in .toml or .json, or holds a slash and is no scenario's name."""
    return target.endswith((".toml", ".json")) or ("/" in target and target not in scenario_names())


def configure(target: str | None, trace: str | None = None, changes: Sequence[tuple[str, str]] = ()) -> Configured:
    """Read a target and lay changes over it. Without target and trace: the defaults of every key.

    changes   (where, "key=value") in order: ("--set", "arrivals.rate=4"), ("--model", "model=qwen3-8b")
    raises    UsageError: unknown target, key or value
    """
    flags = [key_tree().assignments([text], where, Path.cwd()) for where, text in changes]
    if trace is not None:
        flags.insert(0, key_tree().layer({"trace": {"path": trace}}, "--trace", Path.cwd()))
    if target is not None and target.endswith(".json"):
        return _from_run(Path(target), flags, trace)
    base = [] if target is None else [_read(target)]
    name = _run_name(target, trace)
    return _configured(base, flags, name, trace is not None)


def _run_name(target: str | None, trace: str | None) -> str:
    if trace is not None:
        return Path(trace.removesuffix(".gz")).stem
    if target is None:
        return "defaults"
    return Path(target).stem if is_path(target) else target


def _read(target: str) -> Layer:
    if target.endswith((".jsonl", ".csv", ".gz")):
        raise UsageError(f"{target} looks like a trace; give it as --trace {target}")
    path = Path(target) if is_path(target) else scenario_path(target)
    tree = read_toml(path)
    layer = key_tree().layer(tree, target if is_path(target) else f"scenario {target}", path.resolve().parent)
    return _with_paths(layer, path.resolve().parent)


def _from_run(path: Path, flags: list[Layer], trace: str | None) -> Configured:
    from ..report.run_json import read_run  # here: it needs NumPy, and names and keys are checked without

    document = read_run(path)
    name = str(document.get("run", path.parent.name))
    if flags:
        given = key_tree().layer(document["given"], f"{path} (given)")
        return _configured([given], flags, _run_name(None, trace) if trace else name, trace is not None)
    layer = key_tree().layer(document["config"], f"{path} (config)")
    configured = _configured([layer], [], name, has_trace=False, check_use=False)
    return Configured(configured.config, name, document["given"], str(document.get("fingerprint", "")))


def _configured(
    base: list[Layer], flags: list[Layer], name: str, has_trace: bool, check_use: bool = True
) -> Configured:
    if has_trace:
        base = [_without_workload(layer) for layer in base]
    folder = Path.cwd()
    layers = base + [_with_paths(layer, folder) for layer in flags]
    layers.insert(0, _preset_layer(layers))
    layers = _with_client(layers, len(base) + 1)
    if _trace_path(layers):
        layers = [_rate_of_trace(layer) for layer in layers]
    config = key_tree().resolve(layers)
    if check_use:
        _check_use(config, layers[0].where)
    preset = find_preset(config["preset"], config.where["preset"])
    implied = {DEFAULTS, layers[0].where, *(f"client {name}" for name in PROTOCOLS)}
    own = {n: v for n, v in config.values.items() if config.where[n] not in implied}
    config = config.replaced({"preset": preset.name}, config.where["preset"])
    return Configured(config, name, nest(own, config.phases))


def _preset_layer(layers: Sequence[Layer]) -> Layer:
    """The preset that the highest layer names, as a layer of its own."""
    name, where = str(key_tree().by_name["preset"].default), DEFAULTS
    for layer in layers:
        if "preset" in layer.values:
            name, where = layer.values["preset"], layer.where
    preset = find_preset(name, where)
    return Layer(f"preset {ALIASES.get(name, name)}", dict(preset.values))


def _with_client(layers: list[Layer], flags: int) -> list[Layer]:
    """The layers with those of the client protocol that one of them names, right below it, or below all flags.

    Without a rate the client keeps its slots filled, or sends everything at once.
    """
    named = next((i for i in reversed(range(len(layers))) if "client.protocol" in layers[i].values), -1)
    if named < 0 or not (name := layers[named].values["client.protocol"]):
        return layers
    values = dict(PROTOCOLS[name].values)
    at = min(named, flags)
    above = [*layers[at:], Layer("", values)]
    if not any(key in layer.values for layer in above for key in ("arrivals.rate", "arrivals.process")):
        slots = [x.values["arrivals.concurrency"] for x in reversed(layers) if "arrivals.concurrency" in x.values]
        slots.append(values.get("arrivals.concurrency", 0))
        values |= {"arrivals.process": "closed" if slots[0] else "all-at-once", "arrivals.rate": float("inf")}
    return [*layers[:at], Layer(f"client {name}", values), *layers[at:]]


def _trace_path(layers: Sequence[Layer]) -> str:
    return next((str(x.values["trace.path"]) for x in reversed(layers) if "trace.path" in x.values), "")


def _rate_of_trace(layer: Layer) -> Layer:
    if layer.where != RATE_OPTION:
        return layer
    return Layer(layer.where, {"trace.rate": layer.values["arrivals.rate"]})


def _check_use(config: Config, preset: str) -> None:
    """A key that somebody set and that nothing would read is an error, not a surprise."""
    for name, where in config.where.items():
        if where in (DEFAULTS, preset):
            continue
        if name.startswith("trace.") and name != "trace.path" and not config["trace.path"]:
            raise UsageError(f"{where}: {name} needs a trace (trace.path or --trace FILE)")
        drawn = name.startswith(DRAWN)
        heeded = name in HOLDS_FOR_TRACE or (name, config[name]) == ("arrivals.process", "closed")
        if drawn and not heeded and config["trace.path"]:
            raise UsageError(
                f"{where}: {name} has no effect on a trace; trace.rate, trace.time_scale, num_prompts, "
                f"{', '.join(HOLDS_FOR_TRACE)} have"
            )


def _without_workload(layer: Layer) -> Layer:
    kept = {n: v for n, v in layer.values.items() if not n.startswith(REPLACED_BY_TRACE)}
    return Layer(layer.where, kept)


def _with_paths(layer: Layer, folder: Path) -> Layer:
    """A model or device that is a path is relative to the file that names it; absolute, it can be run again."""
    named = {key: str(layer.values.get(key, "")) for key in ("model", "device")}
    files = {key: name for key, name in named.items() if is_path(name) or name.endswith(".npz")}
    paths = {key: str((folder / name).resolve()) for key, name in files.items()}
    return Layer(layer.where, {**layer.values, **paths}, layer.phases) if paths else layer
