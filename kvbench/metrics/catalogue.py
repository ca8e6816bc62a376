"""Every scalar metric of a run, one row each: its unit, its better side, and whether a whole run may lack it.

The summary takes units and order from here, the gate the better side, a comparison what it shows. Metrics that only
tiers, fleets or pairs have bring their units with their values; those with a better side have a row here too.
"""

from __future__ import annotations

from typing import NamedTuple

LOWER, HIGHER, NEITHER = -1, 1, 0


class Metric(NamedTuple):
    """better: LOWER, HIGHER, or NEITHER of a way to get there (blocks, steps): a change is told and not judged.

    may_lack   gaps where every answer is one token, goodput where nothing was promised, bounds and idle time where a
               phase is left out, shares of memory where nothing was used; every measurement has the others
    shown      in a comparison that was not asked for all
    """

    unit: str
    better: int = NEITHER
    may_lack: bool = False
    shown: bool = False


_PROMPTS, _DURATION = "share of prompt tokens", "share of duration"
_SLOTS = "share of used and unusable slots"

METRICS: dict[str, Metric] = {
    "requests": Metric("requests"),
    "sequences": Metric("sequences"),
    "finished": Metric("sequences", HIGHER),
    "duration": Metric("s", LOWER),
    "request_throughput": Metric("sequences/s", HIGHER, shown=True),
    "output_throughput": Metric("tokens/s", HIGHER, shown=True),
    "total_token_throughput": Metric("tokens/s", HIGHER),
    "hit_rate": Metric(_PROMPTS, HIGHER, shown=True),
    "hit_rate_infinite": Metric(_PROMPTS, may_lack=True),
    "hit_rate_optimum": Metric(_PROMPTS, may_lack=True),
    "cached_tokens": Metric("tokens", HIGHER),
    "prompt_tokens": Metric("tokens"),
    "recomputed_tokens": Metric("tokens", LOWER, shown=True),
    "preemptions": Metric("preemptions", LOWER, shown=True),
    "evicted_blocks": Metric("blocks"),
    "blocks": Metric("blocks"),
    "used_blocks_mean": Metric("blocks"),
    "used_blocks_peak": Metric("blocks"),
    "tail_waste_mean": Metric("tokens", LOWER),
    "tail_waste_share": Metric("share of used slots", LOWER),
    "metadata": Metric("bytes", LOWER),
    "backup_blocks": Metric("blocks"),
    "backup_busy": Metric("s"),
    "steps": Metric("steps"),
    "host_time": Metric("s", LOWER),
    "host_time_exposed": Metric("s", LOWER),
    "device_time": Metric("s", LOWER),
    "device_idle": Metric(_DURATION, may_lack=True),
    "saved_blocks_mean": Metric("blocks"),
    "saved_blocks_share": Metric("share of blocks without sharing"),
    "copied_blocks": Metric("blocks"),
    "copied_bytes": Metric("bytes"),
    "kv_tokens_share": Metric(_SLOTS, may_lack=True),
    "kv_reserved_share": Metric(_SLOTS, may_lack=True),
    "kv_internal_share": Metric(_SLOTS, may_lack=True),
    "kv_external_share": Metric(_SLOTS, may_lack=True),
    "goodput": Metric("sequences/s", HIGHER, may_lack=True, shown=True),
    "slo_share": Metric("share of sequences", HIGHER, may_lack=True, shown=True),
    "load_cv": Metric("std/mean", LOWER, may_lack=True),
    "engine_queue_p99_max": Metric("ms", LOWER, may_lack=True),
    "engine_hit_rate_min": Metric("share of tokens", HIGHER, may_lack=True),
    "hot_prefix_replicas": Metric("engines", may_lack=True),
    "predicted_error": Metric("tokens", may_lack=True),
    "against_belief": Metric("share of requests", may_lack=True),
    "hit_rate_routed": Metric(_PROMPTS, may_lack=True),
    "fetch_wait": Metric("s", LOWER, may_lack=True),
    "fetch_exposed_in_steps": Metric("s", LOWER, may_lack=True),
    "slowed_by_copies": Metric("s", LOWER, may_lack=True),
    "hits_lost": Metric("sequences", LOWER, may_lack=True),
    "write_amplification": Metric("bytes written per byte of new KV", LOWER, may_lack=True),
    "prefetch_wasted": Metric("blocks", LOWER, may_lack=True),
    "transfer_p50": Metric("ms", LOWER, may_lack=True),
    "transfer_p99": Metric("ms", LOWER, may_lack=True),
    "transfers_retried": Metric("transfers", LOWER, may_lack=True),
    "transfers_failed": Metric("transfers", LOWER, may_lack=True),
    "held_mean": Metric("ms", LOWER, may_lack=True),
    "held_p99": Metric("ms", LOWER, may_lack=True),
    "stranded_mean": Metric("bytes", LOWER, may_lack=True),
    "stranded_peak": Metric("bytes", LOWER, may_lack=True),
    "output_tokens_per_device": Metric("tokens/s", HIGHER, may_lack=True),
    "goodput_per_device": Metric("sequences/s", HIGHER, may_lack=True),
}

Number = float | int | None


def with_units(values: dict[str, Number]) -> dict[str, tuple[Number, str]]:
    """In the order of the catalogue. KeyError: a metric without a row."""
    unknown = values.keys() - METRICS.keys()
    if unknown:
        raise KeyError(f"no row for {', '.join(sorted(unknown))}")
    return {name: (values[name], metric.unit) for name, metric in METRICS.items() if name in values}
