"""The rules under which a recording of SGLang is replayed: those of the preset of its version."""

from __future__ import annotations

from typing import Any

from ..scheduler.presets import PRESETS
from ..scheduler.rules import CacheRules, SchedulerRules
from .recording import Row

OLDEST = "0.5.12"
VERSIONS = (OLDEST, "0.5.23")


def scheduler_rules(header: Row, **own: Any) -> SchedulerRules:
    """The preset's scheduler with what the recording was made with."""
    return SchedulerRules(**_of_preset(header, "scheduler", SchedulerRules) | own)


def cache_rules(header: Row, kind: str, blocks: int, eviction: str) -> CacheRules:
    """The same of its cache."""
    config = header["params"].get("eviction_policy_config", {})
    tail = {f"tlru_{name}": value for name, value in config.items()}
    own = {"kind": kind, "num_blocks": blocks, "eviction": eviction, "free_order": "auto"}
    return CacheRules(**_of_preset(header, "cache", CacheRules) | tail | own)


def _of_preset(header: Row, section: str, kind: Any) -> dict[str, Any]:
    values = PRESETS[f"sglang-{header['version']}"].values
    named = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}
    return {name: value for name, value in named.items() if name in kind.__dataclass_fields__}
