"""Models, devices and engines as result files name them -> as kvbench does."""

from __future__ import annotations

import re

from ..core.errors import UsageError
from ..costs.devices import find_hardware
from ..costs.models import find_hub_model
from ..scheduler.presets import PRESETS


def known_model(path: str) -> str:
    """meta-llama/Meta-Llama-3.1-8B-Instruct -> llama-3.1-8b. UsageError: kvbench does not know it."""
    return find_hub_model(re.sub(r"-(fp8|bf16)$", "", path, flags=re.IGNORECASE)).name


def known_device(system: str) -> str:
    """h200_sxm, NVIDIA GeForce RTX 4090, NVIDIA H100 80GB HBM3 -> h200, rtx-4090, h100. UsageError: not known."""
    words = re.sub(r"(?i)nvidia|geforce|\b\d+ ?gb\b|hbm\w*|accelerator", " ", system).replace("_", " ").split()
    return find_hardware("".join(words)).name


def known_preset(engine: str, version: str) -> str:
    """The preset of this engine whose version is nearest below, else the oldest. UsageError: no such engine."""
    own = {name: numbers(name) for name in PRESETS if name.startswith(f"{engine.lower()}-")}
    if not own:
        raise UsageError(f"no engine {engine} ({', '.join(PRESETS)})")
    below = [name for name in own if own[name] <= numbers(version)]
    return max(below, key=lambda name: own[name]) if below else min(own, key=lambda name: own[name])


def numbers(version: str) -> tuple[int, ...]:
    """0.5.6.post2 -> (0, 5, 6)."""
    found = re.search(r"\d+(\.\d+)+", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
