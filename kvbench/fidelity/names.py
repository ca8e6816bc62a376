"""Models, devices and engines as result files name them -> as kvbench does."""

from __future__ import annotations

import re

from ..core.errors import UsageError
from ..costs.devices import DEVICES
from ..costs.models import MODELS
from ..scheduler.presets import PRESETS

_SUFFIXES = ("-instruct", "-chat", "-base", "-hf", "-it", "-fp8", "-bf16")
_MAKERS = ("nvidia", "geforce", "meta-", "amd", "instinct", "huawei")


def known_model(path: str) -> str:
    """meta-llama/Meta-Llama-3.1-8B-Instruct -> llama-3.1-8b. UsageError: kvbench does not know it."""
    name = path.rpartition("/")[2].lower().removeprefix("meta-")
    while (shorter := _without_suffix(name)) != name:
        name = shorter
    if name not in MODELS:
        raise UsageError(f"no model {path} ({', '.join(sorted(MODELS)[:4])}, ...; `kvbench list` shows all)")
    return name


def known_device(system: str) -> str:
    """h200_sxm, NVIDIA GeForce RTX 4090, RTXPRO6000 -> h200, rtx-4090, rtx-pro-6000. UsageError: not known."""
    whole = _letters(system)
    for maker in _MAKERS:
        whole = whole.replace(_letters(maker), "")
    for device in DEVICES.values():
        if whole in (_letters(device.name), _letters(device.title)):
            return device.name
    for word in re.split(r"[_ -]", system.lower()):
        if word in DEVICES and "pcie" not in whole:
            return word
    raise UsageError(f"no device {system} (`kvbench list` shows all)")


def known_preset(engine: str, version: str) -> str:
    """The preset of this engine whose version is nearest below, else the oldest. UsageError: no such engine."""
    own = {name: _numbers(name) for name in PRESETS if name.startswith(f"{engine.lower()}-")}
    if not own:
        raise UsageError(f"no engine {engine} ({', '.join(PRESETS)})")
    below = [name for name in own if own[name] <= _numbers(version)]
    return max(below, key=lambda name: own[name]) if below else min(own, key=lambda name: own[name])


def _without_suffix(name: str) -> str:
    name = re.sub(r"-\d{4}$", "", name)
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _numbers(text: str) -> tuple[int, ...]:
    """0.5.6.post2 -> (0, 5, 6)."""
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
