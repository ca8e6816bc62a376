"""Presets: the rules of an engine and version as values of keys. Data and two pure functions; no arrays.

A preset lies between the defaults and the user's own values. Where an engine chooses a size by the memory of
the device, the preset leaves the key at 0 and `automatic` chooses.
Source: the engines' own defaults for a server, overlap among them: asynchronous scheduling is on in vLLM from 0.14,
the overlap scheduler in SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.config import nearest
from ..core.errors import UsageError

GB = 1_000_000_000
LARGE_DEVICE_BYTES = 70 * GB
"""Both engines raise their budgets from about here (80 GB cards and up)."""
SMALL_DEVICE_BYTES = 35 * GB

DEFAULT_PRESET = "vllm"


@dataclass(frozen=True)
class Preset:
    """One engine and version.

    name           as in `--preset`
    engine         "vLLM 0.33", for the head of a table
    meaning        one line for `kvbench list`
    values         dotted key -> value
    """

    name: str
    engine: str
    meaning: str
    values: Mapping[str, Any]


_VLLM = {
    "overlap": True,
    "scheduler.discipline": "token-budget",
    "scheduler.policy": "fcfs",
    "scheduler.max_num_seqs": 0,
    "scheduler.max_num_batched_tokens": 0,
    "scheduler.enable_chunked_prefill": True,
    "scheduler.long_prefill_token_threshold": 0,
    "scheduler.reserve_full_isl": True,
    "scheduler.watermark": 0.0,
    "cache.kind": "hash",
    "cache.memory_utilization": 0.9,
    "cache.unregister_unwritten": False,
    "costs.graphs": "vllm",
}

_SGLANG = {
    "overlap": True,
    "scheduler.discipline": "prefill-first",
    "scheduler.policy": "fcfs",
    "scheduler.max_running_requests": 2048,
    "scheduler.max_prefill_tokens": 16384,
    "scheduler.chunked_prefill_size": 0,
    "scheduler.enable_chunked_prefill": True,
    "scheduler.enable_mixed_chunk": False,
    "scheduler.schedule_conservativeness": 1.0,
    "scheduler.init_new_token_ratio": 0.7,
    "scheduler.min_new_token_ratio_factor": 0.14,
    "scheduler.new_token_ratio_decay_steps": 600,
    "scheduler.clip_max_new_tokens": 4096,
    "scheduler.retract_decode_steps": 20,
    "scheduler.in_batch_check_threshold": 32,
    "scheduler.in_batch_deprioritize_threshold": 32,
    "scheduler.prefill_max_requests": 0,
    "scheduler.lpm_fallback_waiting": 128,
    "scheduler.ignore_eos": False,
    "cache.kind": "radix",
    "cache.memory_utilization": 0.88,
    "cache.free_order": "auto",
    "costs.graphs": "sglang",
}

_SGLANG_RULES = {
    "scheduler.drop_ended_each_step": True,
    "scheduler.full_only_beside_others": True,
    "scheduler.chunks_bound_input": True,
    "scheduler.chunk_takes_one_place": True,
    "scheduler.mixed_needs_memory": True,
    "scheduler.stop_when_spent": True,
    "scheduler.match_all_but_last": True,
    "scheduler.ignore_eos_in_full": True,
    "scheduler.ignore_eos_block": True,
    "scheduler.waiting_refresh_interval": 32,
    "cache.evict_shortfall": True,
    "cache.split_keeps_age": True,
    "cache.split_at_prompt": True,
    "cache.count_hits_once": True,
}
"""What 0.5.23 does otherwise than 0.5.12."""

PRESETS: dict[str, Preset] = {
    "vllm-0.12": Preset(
        "vllm-0.12",
        "vLLM 0.12",
        "vLLM v1, 0.12: the rules recorded of 0.19, no asynchronous scheduling, so the host's time of a step shows",
        {
            **_VLLM,
            "scheduler.long_prefill_threshold_when_alone": True,
            "scheduler.self_preemption_ends_step": True,
            "cache.free_order": "tail",
            "overlap": False,
            "costs.step_overhead_us": 1700.0,
            "costs.request_overhead_us": 45.0,
        },
    ),
    "vllm-0.19": Preset(
        "vllm-0.19",
        "vLLM 0.19",
        "vLLM v1, 0.19: token budget, block hash, freed blocks to the tail of the queue",
        {
            **_VLLM,
            "scheduler.long_prefill_threshold_when_alone": True,
            "scheduler.self_preemption_ends_step": True,
            "cache.free_order": "tail",
        },
    ),
    "vllm-0.33": Preset(
        "vllm-0.33",
        "vLLM 0.33",
        "vLLM v1, 0.33: token budget, block hash, unhashed freed blocks to the front of the queue",
        {
            **_VLLM,
            "scheduler.long_prefill_threshold_when_alone": False,
            "scheduler.self_preemption_ends_step": False,
            "cache.free_order": "unhashed-first",
        },
    ),
    "sglang-0.5.6": Preset(
        "sglang-0.5.6",
        "SGLang 0.5.6",
        "SGLang 0.5.6: the rules recorded of 0.5.12, and the host's time and output stage that limit a server of it",
        {
            **_SGLANG,
            **{name: type(value)(0) for name, value in _SGLANG_RULES.items()},
            "costs.request_overhead_us": 45.0,
            "costs.output_us_per_token": 50.0,
        },
    ),
    "sglang-0.5.12": Preset(
        "sglang-0.5.12",
        "SGLang 0.5.12",
        "SGLang 0.5.12: prefill first, radix tree, output reserved by the new-token ratio",
        {**_SGLANG, **{name: type(value)(0) for name, value in _SGLANG_RULES.items()}},
    ),
    "sglang-0.5.23": Preset(
        "sglang-0.5.23",
        "SGLang 0.5.23",
        "SGLang 0.5.23: one radix tree, prompts and outputs evicted apart, no more evicted than is missing",
        {**_SGLANG, **_SGLANG_RULES},
    ),
}

PRESETS["vllm-ascend-2026.8"] = Preset(
    "vllm-ascend-2026.8",
    "vLLM on Ascend, August 2026",
    "vllm-ascend of August 2026: vLLM's scheduler and block hash, blocks of 128, graphs up to max_num_seqs",
    {
        **PRESETS["vllm-0.33"].values,
        "block_tokens": 128,
        "costs.graphs": "vllm-ascend",
        "pd.lease_s": 480.0,  # the Mooncake connector's; pd.protocol = push is the layerwise one
        "pd.heartbeat_s": -1.0,
        "pd.tells_unread": False,
    },
)

ALIASES = {"vllm": "vllm-0.33", "vllm-ascend": "vllm-ascend-2026.8", "sglang": "sglang-0.5.23"}
"""A short name is the newest version known here."""


RECORDED = {"vLLM": ("0.19.0", "0.33.0"), "SGLang": ("0.5.12", "0.5.23")}
"""Versions whose real code was recorded and agrees, step by step (`kvbench verify golden`)."""


def find_preset(name: str, where: str) -> Preset:
    """The preset of a full or short name; UsageError names the nearest."""
    full = ALIASES.get(name, name)
    if full not in PRESETS:
        raise UsageError(f"{where}: unknown preset {name}; the nearest is {nearest(name, [*PRESETS, *ALIASES])}")
    return PRESETS[full]


def automatic(values: Mapping[str, Any], memory_bytes: int) -> dict[str, Any]:
    """What the sizes and orders left open come to on a device with this much memory.

    Only keys that are open (0, "auto", "") are in the answer. `values` holds every key, max_model_len closed.
    """
    large = memory_bytes >= LARGE_DEVICE_BYTES
    chunk = 8192 if large else 4096 if memory_bytes >= SMALL_DEVICE_BYTES else 2048
    sequences = values["scheduler.max_num_seqs"] or (1024 if large else 256)
    tokens = 8192 if large else 2048
    if not values["scheduler.enable_chunked_prefill"]:  # the longest prompt has to fit in a step
        tokens = max(tokens, values["max_model_len"])
    tokens = min(tokens, sequences * values["max_model_len"])
    chosen: dict[str, Any] = {
        "scheduler.max_num_seqs": min(sequences, values["scheduler.max_num_batched_tokens"] or tokens),
        "scheduler.max_num_batched_tokens": tokens,
        "scheduler.chunked_prefill_size": chunk,
        "cache.eviction": "lru",
        "cache.free_order": _free_order(values),
    }
    return {name: value for name, value in chosen.items() if values[name] in (0, "", "auto")}


def _free_order(values: Mapping[str, Any]) -> str:
    """SGLang has two allocators: tokens are appended to the free list, freed pages go sorted to its front."""
    if values["scheduler.discipline"] == "prefill-first":
        return "append" if values["block_tokens"] == 1 else "sorted-front"
    return "unhashed-first"
