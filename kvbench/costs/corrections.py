"""A device file in TOML: another source of step times, corrected by what somebody measured on a server of his own.

base = "h100"                 # a known device, or a file of step times beside this one
source = "calibrated on ..."  # one line, added to that of the base
error = "TPOT +-3 % on ..."   # what the correction has shown on requests it was not made from; optional

[scale]                       # factors on the times of the base; those not named stay
linear = 1.04                 # linear, head, communication, prefill, decode, mixed, launch

[host]                        # keys of [costs]: they replace those of the preset
step_overhead_us = 1700.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.config import read_toml
from ..core.errors import UsageError
from .axes import Grid, Line
from .keys import COST_KEYS
from .step_times import StepTimes, Wanted

SCALES = ("linear", "head", "communication", "prefill", "decode", "mixed", "launch")
_KEYS = ("base", "source", "error", "scale", "host")


def read_corrections(path: Path) -> dict[str, Any]:
    """The file, checked. UsageError names the key that is wrong."""
    tree = read_toml(path)
    unknown = [key for key in tree if key not in _KEYS]
    if unknown or not isinstance(tree.get("base"), str):
        wrong = f"{unknown[0]} is not one of its keys" if unknown else "base is missing"
        raise UsageError(f"{path}: {wrong}; a device file has {', '.join(_KEYS)}")
    _check(path, "scale", tree.setdefault("scale", {}), SCALES, low=0.01)
    hosts = tuple(key.name.removeprefix("costs.") for key in COST_KEYS if key.unit == "us")
    _check(path, "host", tree.setdefault("host", {}), hosts, low=0.0)
    if tree["base"].endswith(".toml"):
        raise UsageError(f"{path}: base is a known device or a .npz of step times, not another correction")
    if tree["base"].endswith(".npz"):
        tree["base"] = str(path.resolve().parent / tree["base"])
    return tree


def corrected(path: Path, find: Callable[[Wanted], StepTimes], wanted: Wanted) -> StepTimes:
    """The step times of the base with the corrections on them. find: those of another source."""
    tree = read_corrections(path)
    base = find(replace(wanted, device=tree["base"], step_times=""))
    source = f"{tree.get('source', path.name)}, on {base.origin.source}"
    return replace(
        scaled(base, tree["scale"]),
        origin=replace(base.origin, kind="corrected", source=source, error=str(tree.get("error", ""))),
        host={**base.host, **tree["host"]},
    )


def scaled(base: StepTimes, factors: Mapping[str, float]) -> StepTimes:
    """The step times with factors on some of their parts (SCALES)."""
    scale = {name: float(factors.get(name, 1.0)) for name in SCALES}
    return replace(
        base,
        linear=_line(base.linear, scale["linear"]),
        head=_line(base.head, scale["head"]),
        communication=_line(base.communication, scale["communication"]),
        prefill=_grid(base.prefill, scale["prefill"]),
        decode=_grid(base.decode, scale["decode"]),
        mixed=_grid(base.mixed, scale["mixed"]),
        prefill_step_ns=base.prefill_step_ns * scale["prefill"],
        launch_ns=base.launch_ns * scale["launch"],
    )


def _line(line: Line, factor: float) -> Line:
    return Line(line.bits, line.ns * factor)


def _grid(grid: Grid, factor: float) -> Grid:
    return Grid(grid.row_bits, grid.column_bits, grid.compute_ns * factor, grid.memory_ns * factor)


def _check(path: Path, name: str, table: Any, keys: tuple[str, ...], low: float) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} is a table of numbers")
    for key, value in table.items():
        if key not in keys:
            raise UsageError(f"{path}: {name}.{key} is not known; try one of {', '.join(keys)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 1e9:
            raise UsageError(f"{path}: {name}.{key} is a number from {low:g} on, is {value!r}")
