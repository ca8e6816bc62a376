"""What the name of a device or of a model means: a row of the catalogue, or a file."""

from __future__ import annotations

import difflib
from pathlib import Path

from ..core.errors import UsageError
from .devices import DEVICES, Device
from .models import MODELS, Model


def find_device(name: str) -> Device:
    """The device of this name, or of a file of step times or corrections. UsageError that names the nearest."""
    if name.endswith(".npz"):
        from .step_times import load_step_times  # here: it needs NumPy

        return load_step_times(Path(name)).origin.device
    if name.endswith(".toml"):
        from .corrections import read_corrections

        return find_device(read_corrections(Path(name))["base"])
    if name in DEVICES:
        return DEVICES[name]
    nearest = difflib.get_close_matches(name.lower(), DEVICES, n=1, cutoff=0.0)[0]
    raise UsageError(f"unknown device {name!r}; the nearest is {nearest!r} (`kvbench list` shows all)")


def find_model(name: str) -> Model:
    """A built-in model, or a Hugging Face config.json where the name has a `/` or ends in `.json`."""
    if name in MODELS:
        return MODELS[name]
    if ("/" in name or name.endswith(".json")) and Path(name).exists():
        from .config_json import read_config_json

        return read_config_json(name)
    called = name.lower().rpartition("/")[2] or name.lower()  # of a hub's name, what follows the owner
    nearest = difflib.get_close_matches(called, MODELS, n=1, cutoff=0.0)[0]
    what = "no such file, and no known model" if "/" in name or name.endswith(".json") else "unknown model"
    raise UsageError(
        f"{what} {name!r}; the nearest is {nearest!r} (`kvbench list` shows all; a path to a config.json works too)"
    )
