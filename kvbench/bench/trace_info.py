"""What a trace is: lengths, times, sessions, and what a cache could make of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.requests import I64, NONE, Requests
from ..core.units import NS_PER_S
from ..metrics.percentiles import Distribution, distribution
from ..offline.order import virtual_arrivals
from ..offline.shared import Offline
from ..workload.chain import block_ids, has_own_ids, shares_nothing
from ..workload.rows import bad_rows
from ..workload.trace import TraceInfo

BLOCK_SIZES = (16, 64, 256, 1024)
"""Tokens; a trace's own size comes on top."""

ID_TOKENS = 16
"""Block size of reuse age and one-time blocks where a trace has no ids of its own."""


def trace_info(requests: Requests, source: TraceInfo | None, sizes: tuple[int, ...] = BLOCK_SIZES) -> dict[str, Any]:
    """Everything that `kvbench trace info` prints, as JSON values. None: the number does not exist.

    Times count what arrives by itself; a later turn is put after its think time, as if answers took none.
    """
    r = requests
    return {
        "path": source.path if source else "",
        "format": source.format if source else "generated",
        "sha256": source.sha256 if source else "",
        "time_unit": source.time_unit if source else "",
        "turns_of_rows": source.turns if source else "",
        "fingerprint": r.fingerprint(),
        "requests": len(r),
        "bad_rows": bad_rows(r.notes),
        "prompt_tokens": _lengths(r.prompt_tokens),
        "output_tokens": _lengths(r.output_tokens) | {"zero": int(np.count_nonzero(r.output_tokens == 0))},
        **_times(r),
        **_sessions(r),
        **_blocks(r),
        "hit_rates": [_hit_rates(r, size) for size in sorted({*sizes, *([r.block_hint] if r.block_hint else [])})],
        "notes": list(r.notes),
    }


def _lengths(values: I64) -> dict[str, Any]:
    return _numbers(distribution(values)) | {"min": int(values.min()), "max": int(values.max())}


def _numbers(d: Distribution, unit: float = 1.0) -> dict[str, Any]:
    parts = {"mean": d.mean, "p50": d.p50, "p90": d.p90, "p99": d.p99}
    return {name: None if value is None else value / unit for name, value in parts.items()}


def _times(r: Requests) -> dict[str, Any]:
    arrival = r.arrival_ns[r.after == NONE]
    span_s = float(np.ptp(arrival)) / NS_PER_S
    gaps = np.diff(arrival)
    per_second = np.bincount((arrival - arrival.min()) // NS_PER_S) if span_s < 1e8 else np.zeros(0)
    timed = span_s > 0
    return {
        "arrivals": int(arrival.size),
        "distinct_times": int(np.unique(arrival).size),
        "most_at_one_time": int(np.unique(arrival, return_counts=True)[1].max()),
        "duration_s": span_s,
        "rate_rps": arrival.size / span_s if timed else None,
        "input_tokens_per_s": int(r.prompt_tokens.sum()) / span_s if timed else None,
        "output_tokens_per_s": int(r.output_tokens.sum()) / span_s if timed else None,
        "gap_cv": float(gaps.std() / gaps.mean()) if timed else None,
        "largest_gap_s": float(gaps.max()) / NS_PER_S if timed else None,
        "variance_to_mean_per_s": float(per_second.var() / per_second.mean()) if timed and per_second.size else None,
    }


def _sessions(r: Requests) -> dict[str, Any]:
    sizes = np.unique(r.session_id[r.session_id != NONE], return_counts=True)[1]
    return {
        "sessions": int(sizes.size),
        "turns": _numbers(distribution(sizes)) | {"max": int(sizes.max(initial=0))} if sizes.size else None,
        "think_s": _numbers(distribution(r.think_ns[r.after != NONE]), NS_PER_S) if (r.after != NONE).any() else None,
    }


def _blocks(r: Requests) -> dict[str, Any]:
    """Reuse of single blocks: those of the trace's ids, the last, partial one of a prompt included."""
    size = r.block_hint or ID_TOKENS
    own = has_own_ids(r, size)
    if not own and shares_nothing(r):
        total = int((-(-r.prompt_tokens // size)).sum())
        none = distribution(np.zeros(0, np.int64))
        return {"block_tokens": size, "own_ids": False, "ids_name_prefixes": None, "blocks": total,
                "distinct_blocks": total, "one_time_share": 1.0, "reuse_age_s": _numbers(none)}  # fmt: skip
    ids, counts = (r.segment_stream, np.diff(r.segment_offset)) if own else block_ids(r, size)
    uses = np.unique(ids, return_counts=True)[1]
    return {
        "block_tokens": size,
        "own_ids": own,
        "ids_name_prefixes": _name_prefixes(ids, counts) if own else None,
        "blocks": int(ids.size),
        "distinct_blocks": int(uses.size),
        "one_time_share": float(np.count_nonzero(uses == 1) / uses.size),
        "reuse_age_s": _numbers(distribution(_ages(ids, np.repeat(virtual_arrivals(r), counts))), NS_PER_S),
    }


def _name_prefixes(ids: I64, counts: I64) -> bool:
    """Whether every id has one place in a prompt and one id before it, so that equal ids are equal prefixes."""
    starts = np.cumsum(counts) - counts
    place = np.arange(ids.size) - np.repeat(starts, counts)
    before = np.where(place > 0, np.roll(ids, 1), NONE)
    different = np.unique(np.stack([ids, before, place]), axis=1).shape[1]
    return bool(different == np.unique(ids).size)


def _ages(ids: I64, time_ns: I64) -> I64:
    """ns from each use of a block to the next."""
    order = np.lexsort((time_ns, ids))
    same = ids[order][1:] == ids[order][:-1]
    return np.diff(time_ns[order])[same]


def _hit_rates(r: Requests, size: int) -> dict[str, Any]:
    """Of a cache that never evicts, one request after another: of whole blocks, of tokens, and of the trace's ids.

    prompts: of tokens, when prompts alone enter the cache.
    """
    offline = Offline(r, size)
    endless = offline.endless()
    own = has_own_ids(r, size)
    return {
        "block_tokens": size,
        "blocks": endless.blocks,
        "tokens": endless.tokens,
        "prompts": Offline(r, size, answers=False).endless().tokens,
        "ids": offline.ids.total / r.segment_stream.size if own else None,
    }
