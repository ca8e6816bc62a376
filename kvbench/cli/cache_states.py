"""`kvbench run --cache-state both` and `tiers`: whole runs from different states of the cache beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..core.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from .options import configured
from .output import STDOUT, quiet_compiler, say, write_files
from .progress import ProgressBar

STATES = ("cold", "warm")


def run_both(parameters: dict[str, Any]) -> int:
    """Cold and warm, their table (or JSON), and with -o a folder for each."""
    from ..report.side_by_side import side_by_side, side_by_side_document

    def show(records: Mapping[str, Any], as_json: bool) -> Any:
        pair = records.values()
        return side_by_side_document(*pair) if as_json else side_by_side(*pair)

    return _run_all(parameters, {state: {"cache.state": state} for state in STATES}, show)


def run_tiers(parameters: dict[str, Any]) -> int:
    """Cold, storage warm, host warm, all warm: the same."""
    from ..report.tier_states import tier_states, tier_states_document

    config = configured(parameters, []).config
    if not any(config[f"tiers.host.{name}"] for name in ("ratio", "blocks", "bytes")):
        raise UsageError("--cache-state tiers compares where hits come from; give a host: --set tiers.host.ratio=2")
    has_storage = bool(config["tiers.storage.blocks"] or config["tiers.storage.bytes"])
    keys = {"device": "cache.state", "host": "tiers.host.state", "storage": "tiers.storage.state"}
    states = {"cold": dict.fromkeys(keys.values(), "cold")}
    warm = dict(states["cold"])
    for name, key in reversed(keys.items()):
        if name == "storage" and not has_storage:
            continue
        warm = warm | {key: "warm"}
        states[f"{name} warm"] = warm
    return _run_all(parameters, states, lambda r, as_json: tier_states_document(r) if as_json else tier_states(r))


def _run_all(parameters: dict[str, Any], states: Mapping[str, Mapping[str, str]], show: Any) -> int:
    asked = f"--cache-state {parameters['cache_state']}"
    if parameters["grids"] or parameters["cache_only"]:
        other = "--grid" if parameters["grids"] else "--cache-only"
        raise UsageError(f"{asked} is several whole runs; leave {other} out (or use --grid cache.state=cold,warm)")
    if parameters["output"] == STDOUT:
        raise UsageError(f"{asked} has several summaries; give a folder with -o DIR, or --json")
    changes = {name: [(asked, f"{key}={value}") for key, value in keys.items()] for name, keys in states.items()}
    configurations = {name: configured(parameters, change) for name, change in changes.items()}
    quiet_compiler(parameters["quiet"])
    from ..bench.run import run
    from ..report.files import make_folder, result_folder
    from ..report.run_json import to_text

    folders = []
    if parameters["output"] is not None:
        whole = result_folder(Path(parameters["output"]), parameters["force"])
        folders = [make_folder(whole / name.replace(" ", "-")) for name in states]
    steps, quiet = parameters["steps"], parameters["quiet"]
    results = {}
    for name, configuration in configurations.items():
        with ProgressBar(quiet) as progress:
            results[name] = run(configuration, progress, record_steps=steps)
        if not results[name].record.complete:
            say("interrupted: not all of the runs, nothing to compare")
            return EXIT_INTERRUPTED
    for name, result in results.items():
        for warning in () if quiet else result.warnings:
            say(f"warning: {name}: {warning}")
    for folder, result in zip(folders, results.values(), strict=False):
        write_files(folder, result, parameters)
    shown = show({name: result.record for name, result in results.items()}, parameters["as_json"])
    click.echo(to_text(shown) if parameters["as_json"] else shown, nl=not parameters["as_json"])
    return EXIT_OK
