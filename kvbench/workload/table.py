"""A Requests table from the columns a workload knows; the others get their plain value."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM, NONE, Requests
from .rows import I64, take_ragged

PLAIN = {
    "arrival_ns": 0, "samples": 1, "session_id": NONE, "turn": 0, "after": NONE, "think_ns": 0, "tenant": 0,
    "namespace": 0, "priority": 0, "phase": 0, "cancel_ns": NONE, "output_start": 0,
}  # fmt: skip
"""Columns that most workloads leave as they are, with the value they have then."""

_SEGMENTS = ("segment_stream", "segment_start", "segment_length")
_FLUSHES = ("flush_ns", "flush_namespace")
NO_ROWS = ("segment_offset", "token_ids", *_SEGMENTS, *_FLUSHES)
"""Arrays that do not have one value for each request."""


def request_table(size: int, **columns: Any) -> Requests:
    """Requests of `size` rows, checked. UsageError: more streams than block keys can tell apart."""
    filled: dict[str, Any] = {
        name: np.full(size, value, np.int64) for name, value in PLAIN.items() if name not in columns
    }
    columns.setdefault("token_ids", np.zeros(0, np.int64))
    columns.setdefault("max_tokens", np.maximum(columns["output_tokens"], 1))
    requests = Requests(**filled, **columns)
    if size and int((requests.output_stream + requests.samples).max()) > MAX_STREAM:
        raise UsageError(f"the workload needs more than {MAX_STREAM} streams; lower num_prompts or samples")
    requests.check()
    return requests


def taken(requests: Requests, order: I64) -> Requests:
    """Some requests, or all in another order. Each must come with its predecessor, and stay behind it."""
    rank = np.full(len(requests) + 1, NONE, np.int64)  # the last entry is that of NONE
    rank[order] = np.arange(order.size)
    changed: dict[str, Any] = {
        f.name: getattr(requests, f.name)[order]
        for f in fields(requests)
        if f.name not in NO_ROWS and isinstance(getattr(requests, f.name), np.ndarray)
    }
    for name in {"after", "joins"} & changed.keys():
        changed[name] = rank[changed[name]]
    counts = np.diff(requests.segment_offset)
    for name in _SEGMENTS:
        changed[name] = take_ragged(getattr(requests, name), counts, order)
    changed["segment_offset"] = np.concatenate(([0], np.cumsum(counts[order])))
    return replace(requests, **changed)
