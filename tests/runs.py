"""A small finished run by hand, for tests that need one without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvbench.core.journal import FINISHED, NEVER, PARTIAL, REFUSED, STEP_COLUMNS, Counters, Journal
from kvbench.core.requests import NONE, Requests
from kvbench.metrics.latency import summarise
from kvbench.report.record import MemoryLine, RunRecord

MS = 1_000_000
"""ns"""


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def requests(**changed: Any) -> Requests:
    """Four requests: two that finish, a refused one, one cut off. The second is a turn of session 7."""
    fields: dict[str, Any] = {
        "arrival_ns": ints(0, 1 * MS, 2 * MS, 3 * MS),
        "prompt_tokens": ints(100, 200, 300, 400),
        "output_tokens": ints(4, 1, 10, 10),
        "max_tokens": ints(4, 1, 10, 10),
        "samples": ints(1, 1, 1, 1),
        "session_id": ints(NONE, 7, NONE, NONE),
        "turn": ints(0, 3, 0, 0),
        "after": ints(NONE, NONE, NONE, NONE),
        "think_ns": ints(0, 0, 0, 0),
        "tenant": ints(0, 1, 0, 0),
        "namespace": ints(0, 0, 0, 0),
        "priority": ints(0, 0, 0, 0),
        "phase": ints(0, 0, 0, 0),
        "cancel_ns": ints(NONE, NONE, NONE, NONE),
        "output_stream": ints(11, 12, 13, 14),
        "output_start": ints(0, 0, 0, 0),
        "segment_offset": ints(0, 1, 2, 3, 4),
        "segment_stream": ints(1, 2, 3, 4),
        "segment_start": ints(0, 0, 0, 0),
        "segment_length": ints(100, 200, 300, 400),
        "token_ids": np.zeros(0, np.int64),
        "tenants": ("default", 'a "b", c'),
    }
    return Requests(**{**fields, **changed})


def journal(**changed: Any) -> Journal:
    """The rows of those four."""
    fields: dict[str, Any] = {
        "request_index": ints(0, 1, 2, 3),
        "sample": ints(0, 0, 0, 0),
        "status": ints(FINISHED, FINISHED, REFUSED, PARTIAL),
        "arrival_ns": ints(1 * MS, 3 * MS, 4 * MS, 5 * MS),
        "queued_ns": ints(1 * MS, 3 * MS, NEVER, 5 * MS),
        "scheduled_ns": ints(2 * MS, 5 * MS, NEVER, 8 * MS),
        "first_token_ns": ints(12 * MS, 25 * MS, NEVER, NEVER),
        "finish_ns": ints(42 * MS, 25 * MS, NEVER, NEVER),
        "cached_tokens": ints(0, 96, 0, 0),
        "output_tokens": ints(4, 1, 0, 0),
        "recomputed_tokens": ints(0, 0, 0, 17),
        "preemptions": ints(0, 0, 0, 1),
        "itl_gap_ns": ints(9 * MS, 11 * MS, 10 * MS),
        "itl_count": ints(1, 1, 1),
        "steps": np.zeros((0, len(STEP_COLUMNS)), np.int64),
    }
    return Journal(**{**fields, **changed})


def counters(**changed: Any) -> Counters:
    """Totals of that run."""
    fields: dict[str, Any] = {
        "end_ns": 43 * MS,
        "num_steps": 6,
        "decode_steps": 3,
        "prefill_steps": 3,
        "prefill_tokens": 604,
        "decode_tokens": 3,
        "matched_tokens": 96,
        "admitted_prompt_tokens": 700,
        "recomputed_tokens": 17,
        "preemptions": 1,
        "evicted_blocks": 5,
        "inserted_blocks": 40,
        "used_blocks_peak": 50,
        "used_blocks_mean": 31.25,
        "tail_waste_tokens_mean": 12.5,
        "tail_waste_share": 0.025,
        "metadata_bytes": 4096,
        "num_blocks": 100,
        "path": "step",
        "busy_ns": 40 * MS,
        "host_ns": 8 * MS,
        "exposed_host_ns": 8 * MS,
        "device_ns": 32 * MS,
    }
    return Counters(**{**fields, **changed})


def record(**changed: Any) -> RunRecord:
    """That run as a report sees it."""
    fields: dict[str, Any] = {
        "run": "small",
        "fingerprint": requests().fingerprint(),
        "clock": "modelled",
        "cache_state": "cold",
        "cache_kind": "hash",
        "preset": "vllm-0.33",
        "engine": "vLLM 0.33",
        "batching": "continuous",
        "overlap": False,
        "overlap_default": True,
        "model": "llama-3.1-8b",
        "dtype": "bf16",
        "kv_dtype": "bf16",
        "parallelism": "tp 1",
        "device": "h100",
        "step_times": "datasheet, uncalibrated (0.5 of FLOP/s, 0.8 of bandwidth)",
        "block_tokens": 16,
        "seed": 0,
        "machine": "a CPU, 2 threads",
        "path": "step",
        "memory": (MemoryLine("weights", 16_060_000_000), MemoryLine("KV", 200_000_000, "100 blocks")),
        "notes": (),
        "complete": True,
        "summary": summarise(journal(), requests(), counters()),
    }
    return RunRecord(**{**fields, **changed})
