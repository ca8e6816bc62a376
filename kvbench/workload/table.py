"""A Requests table from the columns a workload knows; the others get their plain value."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM, NONE, Requests

_PLAIN = {
    "arrival_ns": 0, "samples": 1, "session_id": NONE, "turn": 0, "after": NONE, "think_ns": 0, "tenant": 0,
    "namespace": 0, "priority": 0, "phase": 0, "cancel_ns": NONE, "output_start": 0,
}  # fmt: skip


def request_table(size: int, **columns: Any) -> Requests:
    """Requests of `size` rows, checked. UsageError: more streams than block keys can tell apart."""
    filled: dict[str, Any] = {
        name: np.full(size, value, np.int64) for name, value in _PLAIN.items() if name not in columns
    }
    requests = Requests(**filled, **columns, token_ids=np.zeros(0, np.int64))
    if size and int((requests.output_stream + requests.samples).max()) > MAX_STREAM:
        raise UsageError(f"the workload needs more than {MAX_STREAM} streams; lower num_prompts or samples")
    requests.check()
    return requests
