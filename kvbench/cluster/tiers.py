"""What the tiers of the engines of a run have counted, for each sequence and in all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.journal import TierCounters
from ..core.requests import I64
from ..engine.attribution import Fetch
from ..engine.break_even import break_even
from ..engine.settings import EngineSettings
from ..scheduler.state import Engine
from ..tiers.copies import EVICTED, LOADED, REFUSED, WRITTEN
from ..tiers.state import (
    ARRIVED_BLOCKS,
    ASKED_BLOCKS,
    HOST_TOKENS,
    STORE_TOKENS,
    STORED_BLOCKS,
    TRUNCATED_BLOCKS,
    WAIT_IN_STEPS,
    WAIT_QUEUED,
)


def fetches(engines: Sequence[Engine], engine_of: I64) -> Fetch | None:
    """What each sequence waited for tiers; None without any. engine_of: (sequences,) its engine, or -1."""
    rows = _of_seq(engines, engine_of)
    return None if rows is None else Fetch(rows[:, WAIT_QUEUED], rows[:, WAIT_IN_STEPS])


def tier_columns(engines: Sequence[Engine], engine_of: I64, cached: I64) -> dict[str, I64]:
    """Columns of the journal. cached: (sequences,) prompt tokens of its first admission that were hits."""
    rows = _of_seq(engines, engine_of)
    if rows is None:
        return {}
    lower = np.minimum(rows[:, HOST_TOKENS], cached)
    stored = np.minimum(rows[:, STORE_TOKENS], lower)
    return {
        "cached_host_tokens": lower - stored,
        "cached_storage_tokens": stored,
        "fetch_wait_ns": rows[:, WAIT_QUEUED] + rows[:, WAIT_IN_STEPS],
    }


def _of_seq(engines: Sequence[Engine], engine_of: I64) -> I64 | None:
    if not any(e.rules.tiered for e in engines):
        return None
    out: I64 = np.zeros((engine_of.size, engines[0].tiers.of_seq.shape[1]), np.int64)
    for e in engines:
        if e.rules.tiered:
            own = engine_of == e.number
            out[own] = e.tiers.of_seq[own]
    return out


def link_names(engines: Sequence[Engine]) -> tuple[str, ...]:
    """Of every link of a run, by its number."""
    names = [f"link {n}" for n in range(engines[0].links.queue.size)]
    for e in engines:
        own = f"engine {e.number}: " if len(engines) > 1 else ""
        for number, name in ((e.tiers.link_down, "device to host"), (e.tiers.link_up, "host to device")):
            if number >= 0:
                names[number] = own + name
        for number, name in ((e.tiers.store_down, "host to storage"), (e.tiers.store_up, "storage to host")):
            if number >= 0:
                names[number] = name
    return tuple(names)


def tier_counters(engines: Sequence[Engine], settings: EngineSettings) -> TierCounters | None:
    """Sums over the engines."""
    tiered = [e.tiers for e in engines if e.rules.tiered]
    if not tiered:
        return None
    links = engines[0].links.read()
    host = sum(t.host.counters for t in tiered)
    even = break_even(engines)
    counts = sum(t.counts for t in tiered)
    has_store = tiered[0].store_up >= 0
    store = ([tiered[0].store_down], [tiered[0].store_up]) if has_store else ([], [])
    down, up = [t.link_down for t in tiered], [t.link_up for t in tiered]
    return TierCounters(
        host_blocks=sum(int(t.host.content.size) - 1 for t in tiered),
        block_tokens=settings.block_tokens,
        block_bytes=settings.cache.block_bytes,
        written=int(host[WRITTEN]),
        refused=int(host[REFUSED]),
        evicted=int(host[EVICTED]),
        loaded=int(host[LOADED]),
        bytes_down=int(links["bytes"][down].sum()),
        bytes_up=int(links["bytes"][up].sum()),
        busy_down_ns=int(links["busy_ns"][down].sum()),
        busy_up_ns=int(links["busy_ns"][up].sum()),
        exposed_ns=sum(int(t.sum_wait_ns) for t in tiered),
        slowed_ns=sum(int(t.sum_slowed_ns) for t in tiered),
        link_up=even.link,
        break_even=even.bandwidth,
        break_even_tokens=even.tokens,
        fetched=even.fetched,
        lost=even.lost,
        store_blocks=int(tiered[0].store.content.size) - 1,
        asked=int(counts[ASKED_BLOCKS]),
        arrived=int(counts[ARRIVED_BLOCKS]),
        truncated=int(counts[TRUNCATED_BLOCKS]),
        stored=int(counts[STORED_BLOCKS]),
        store_bytes_down=int(links["bytes"][store[0]].sum()),
        store_bytes_up=int(links["bytes"][store[1]].sum()),
        store_busy_down_ns=int(links["busy_ns"][store[0]].sum()),
        store_busy_up_ns=int(links["busy_ns"][store[1]].sum()),
    )
