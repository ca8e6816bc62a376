"""What the tiers of a run brought and cost: from the journal's columns and the counters, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.journal import FINISHED, NEVER, Counters, Journal
from ..core.units import NS_PER_MS, NS_PER_S
from .percentiles import Distribution, distribution

HOST_TOKENS, STORE_TOKENS, FETCH_WAIT = "cached_host_tokens", "cached_storage_tokens", "fetch_wait_ns"
"""Columns of a journal of a run with tiers."""

SOURCES = ("computed", "device", "host", "storage")
"""Where the first tokens of a prompt came from: the lowest tier that gave any."""

Scalars = dict[str, tuple[float | int | None, str]]


@dataclass(frozen=True)
class TierSummary:
    """ttft: source -> distribution of TTFT in ns, of finished sequences. requests: source -> admitted sequences."""

    ttft: dict[str, Distribution]
    requests: dict[str, int]


def source_of(journal: Journal) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(sequences,) index into SOURCES."""
    from_host = journal.columns[HOST_TOKENS] > 0
    from_above = np.where(from_host, 2, np.where(journal.cached_tokens > 0, 1, 0))
    return np.where(journal.columns[STORE_TOKENS] > 0, 3, from_above)


def tier_summary(journal: Journal) -> TierSummary:
    """TTFT by the tier of the hit."""
    source, done = source_of(journal), journal.status == FINISHED
    ttft = journal.first_token_ns - journal.arrival_ns
    admitted = journal.scheduled_ns != NEVER
    return TierSummary(
        {name: distribution(ttft[done & (source == i)]) for i, name in enumerate(SOURCES)},
        {name: int((admitted & (source == i)).sum()) for i, name in enumerate(SOURCES)},
    )


def tier_scalars(journal: Journal, counters: Counters, wall_ns: int) -> Scalars:
    """Rows of summary.csv; none without tiers."""
    t = counters.tiers
    if t is None:
        return {}
    summary = tier_summary(journal)
    host, stored = (int(journal.columns[name].sum()) for name in (HOST_TOKENS, STORE_TOKENS))
    admitted = max(int(counters.admitted_prompt_tokens), 1)
    wait = int(journal.columns[FETCH_WAIT].sum())
    new_bytes = (int(counters.prefill_tokens) + int(counters.decode_tokens)) * t.block_bytes // max(t.block_tokens, 1)
    out: Scalars = {
        "host_blocks": (t.host_blocks, "blocks"),
        "hit_rate_host": (host / admitted, "share of prompt tokens"),
        "hit_rate_storage": (stored / admitted, "share of prompt tokens"),
        "hit_rate_device": ((int(counters.matched_tokens) - host - stored) / admitted, "share of prompt tokens"),
        "fetch_wait": (wait / NS_PER_S, "s"),
        "fetch_exposed_in_steps": (t.exposed_ns / NS_PER_S, "s"),
        "slowed_by_copies": (t.slowed_ns / NS_PER_S, "s"),
        "host_written_blocks": (t.written, "blocks"),
        "host_refused_blocks": (t.refused, "blocks"),
        "host_evicted_blocks": (t.evicted, "blocks"),
        "host_loaded_blocks": (t.loaded, "blocks"),
        "host_link_up_bandwidth": (t.link_up / 1e9 if t.link_up else None, "GB/s"),
        "break_even": (t.break_even / 1e9 if t.fetched else None, "GB/s"),
        "break_even_tokens": (t.break_even_tokens if t.fetched else None, "tokens"),
        "hits_fetched": (t.fetched, "sequences"),
        "hits_lost": (t.lost, "sequences"),
        "write_amplification": (t.bytes_down / new_bytes if new_bytes else None, "bytes written per byte of new KV"),
        "host_link_down_bytes": (t.bytes_down, "bytes"),
        "host_link_up_bytes": (t.bytes_up, "bytes"),
        "host_link_down_busy": (_busy(t.busy_down_ns, wall_ns * counters.num_engines), "share of duration"),
        "host_link_up_busy": (_busy(t.busy_up_ns, wall_ns * counters.num_engines), "share of duration"),
        "storage_blocks": (t.store_blocks, "blocks"),
        "storage_written_blocks": (t.stored, "blocks"),
        "prefetch_asked": (t.asked, "blocks"),
        "prefetch_arrived": (t.arrived, "blocks"),
        "prefetch_truncated": (t.truncated, "blocks"),
        "prefetch_wasted": (max(t.arrived - stored // max(t.block_tokens, 1), 0), "blocks"),
        "storage_link_down_bytes": (t.store_bytes_down, "bytes"),
        "storage_link_up_bytes": (t.store_bytes_up, "bytes"),
        "storage_link_down_busy": (_busy(t.store_busy_down_ns, wall_ns), "share of duration"),
        "storage_link_up_busy": (_busy(t.store_busy_up_ns, wall_ns), "share of duration"),
    }
    for name in SOURCES:
        d = summary.ttft[name]
        out[f"requests_{name}"] = (summary.requests[name], "sequences")
        for part in ("p50", "p99"):
            value = getattr(d, part)
            out[f"ttft_{name}_{part}"] = (None if value is None else value / NS_PER_MS, "ms")
    return out


def _busy(busy_ns: int, wall_ns: int) -> float | None:
    """Of the links' time while requests ran; what still lay queued at the end goes on behind it."""
    return min(busy_ns / wall_ns, 1.0) if wall_ns else None
