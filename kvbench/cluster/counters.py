"""Totals of a run: what each engine has counted, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.jit import still
from ..core.journal import Counters
from ..engine.settings import EngineSettings
from ..scheduler.state import Engine
from .tiers import tier_counters


def counters_of(lives: Sequence[Sequence[Engine]], settings: EngineSettings, now_ns: int) -> Counters:
    """Sums over the engines; a mean over time is of each engine's own steps.

    lives    of each engine: one that has restarted was another one before
    now_ns   of what happened last at the clients
    """
    engines = [of_one[-1] for of_one in lives]
    parts = [_together([_read(e) for e in of_one]) for of_one in lives]
    first = parts[0]

    def total(name: str) -> Any:
        return sum(p[name] for p in parts)

    def mean(name: str) -> float:
        """Time-weighted over the steps of each engine, summed over the engines."""
        return sum(p[name] / max(p["busy_us"], 1) for p in parts)

    bt, is_paged = settings.block_tokens, settings.cache.allocation == "paged"
    for p in parts:
        p["internal"] = p["waste_us"] if is_paged else p["internal_us"]
        p["tokens"] = p["used_us"] * bt - p["waste_us"]
        p["reserved"] = p["waste_us"] - p["internal"]
        p["saved"] = max(p["table_us"] - p["used_us"], 0)  # copies under way hold blocks that no table names
    return Counters(
        end_ns=max(now_ns, *(p["now"] for p in parts)),
        num_engines=len(engines),
        **{name: total(name) for name in _SUMMED},
        used_blocks_mean=mean("used_us"),
        tail_waste_tokens_mean=mean("waste_us"),
        tail_waste_share=total("waste_us") / max(total("used_us") * bt, 1),
        metadata_bytes=sum(metadata_bytes(e) for e in engines),
        path="calendar" if first["is_calendar"] else "step",
        saved_blocks_mean=mean("saved"),
        saved_blocks_share=total("saved") / max(total("table_us"), 1),
        copied_bytes=total("copied_blocks") * settings.cache.block_bytes,
        kv_tokens_mean=mean("tokens"),
        kv_reserved_mean=mean("reserved"),
        kv_internal_mean=mean("internal"),
        kv_external_mean=mean("external_us"),
        tiers=tier_counters(engines, settings),
    )


def _together(lives: list[dict[str, Any]]) -> dict[str, Any]:
    """What the lives of an engine come to: sums, but for what there is at one time."""
    last = lives[-1]
    joined = {name: sum(life[name] for life in lives) for name in last}
    return joined | {name: max(life[name] for life in lives) for name in _AT_ONE_TIME}


_AT_ONE_TIME = ("now", "num_blocks", "used_blocks_peak", "is_calendar")

_SUMMED = (
    "num_steps", "decode_steps", "prefill_steps", "outside_steps", "prefill_tokens", "decode_tokens", "matched_tokens",
    "admitted_prompt_tokens", "recomputed_tokens", "preemptions", "evicted_blocks", "inserted_blocks",
    "used_blocks_peak", "num_blocks", "busy_ns", "host_ns", "exposed_host_ns", "device_ns", "backup_blocks",
    "backup_ns", "unwritten_hits", "copied_blocks",
)  # fmt: skip
"""Fields of Counters that are sums of what `_read` gives under the same name."""


def _read(engine: Engine) -> dict[str, Any]:
    """The engine's scalars, and those of its parts."""
    engine = still(engine)
    e, pool = engine.read(), engine.pool.read()
    return {
        **{name: int(value) for name, value in e.items() if isinstance(value, int | np.integer | np.bool_)},
        "prefill_tokens": e["sum_prefill_tokens"],
        "decode_tokens": e["sum_decode_tokens"],
        "used_blocks_peak": e["used_peak"],
        "evicted_blocks": pool["evicted"],
        "num_blocks": pool["num_blocks"],
        "inserted_blocks": engine.tree.inserted + engine.hashes.registered,
        "is_calendar": engine.calendar.active,
        **_copies(engine),
        "unwritten_hits": engine.shadow.unwritten_hits,
    }


def _copies(engine: Engine) -> dict[str, int]:
    """What its copies to host memory have moved, and how long its link is busy with that."""
    link, links = engine.tiers.link_down, engine.links
    if link < 0 or engine.rules.tiered:
        return {"backup_blocks": 0, "backup_ns": 0}
    blocks = int(links.fragments[link]) // engine.tiers.block_fragments
    return {"backup_blocks": blocks, "backup_ns": int(links.busy_ns[link])}


def metadata_bytes(engine: Engine) -> int:
    """Bytes of the structures that describe blocks: records, free queue, prefix cache, used block tables."""
    total, engine = 0, still(engine)
    for part in (engine.pool, engine.tree, engine.hashes, engine.slots):
        total += sum(v.nbytes for v in part.read().values() if isinstance(v, np.ndarray))
    return total
