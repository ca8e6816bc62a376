"""Totals of a run: what each engine has counted, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
        num_steps=total("num_steps"),
        decode_steps=total("decode_steps"),
        prefill_steps=total("prefill_steps"),
        outside_steps=total("outside_steps"),
        prefill_tokens=total("sum_prefill_tokens"),
        decode_tokens=total("sum_decode_tokens"),
        matched_tokens=total("matched_tokens"),
        admitted_prompt_tokens=total("admitted_tokens"),
        recomputed_tokens=total("recomputed_tokens"),
        preemptions=total("preemptions"),
        evicted_blocks=total("evicted"),
        inserted_blocks=total("inserted"),
        used_blocks_peak=total("used_peak"),
        used_blocks_mean=mean("used_us"),
        tail_waste_tokens_mean=mean("waste_us"),
        tail_waste_share=total("waste_us") / max(total("used_us") * bt, 1),
        metadata_bytes=sum(metadata_bytes(e) for e in engines),
        num_blocks=total("num_blocks"),
        path="calendar" if first["is_calendar"] else "step",
        busy_ns=total("busy_ns"),
        host_ns=total("host_ns"),
        exposed_host_ns=total("exposed_ns"),
        device_ns=total("device_ns"),
        backup_blocks=total("backup_blocks"),
        backup_ns=total("backup_ns"),
        unwritten_hits=total("unwritten_hits"),
        saved_blocks_mean=mean("saved"),
        saved_blocks_share=total("saved") / max(total("table_us"), 1),
        copied_blocks=total("copied_blocks"),
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


_AT_ONE_TIME = ("now", "num_blocks", "used_peak", "is_calendar")


def _read(engine: Engine) -> dict[str, Any]:
    """The engine's scalars, and those of its parts."""
    e, pool = engine.read(), engine.pool.read()
    return {
        **{name: int(value) for name, value in e.items() if isinstance(value, int | np.integer | np.bool_)},
        "evicted": pool["evicted"],
        "num_blocks": pool["num_blocks"],
        "inserted": engine.tree.inserted + engine.hashes.registered,
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
    total = 0
    for part in (engine.pool, engine.tree, engine.hashes, engine.slots):
        total += sum(v.nbytes for v in part.read().values() if isinstance(v, np.ndarray))
    return total
