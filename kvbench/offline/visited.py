"""Which tokens have been through a cache before t = 0, by its state."""

from __future__ import annotations

import numpy as np

from ..core.requests import EXPLICIT, I64, Requests


def visited_tokens(requests: Requests, state: str) -> I64:
    """(n,) leading tokens of each request whose KV went through the cache before t = 0."""
    if state == "warm":
        tokens: I64 = requests.prompt_tokens + np.maximum(requests.output_tokens, 1) - 1
        return tokens
    if state == "prefilled":
        return shared_prefix_tokens(requests)
    return np.zeros(len(requests), np.int64)


def shared_prefix_tokens(requests: Requests) -> I64:
    """Tokens of each prompt's first segment, where another request begins with the same stream; else 0."""
    r = requests
    first = r.segment_offset[:-1]
    stream, start = r.segment_stream[first], r.segment_start[first]
    _, which, count = np.unique(stream, return_inverse=True, return_counts=True)
    shared = (count[which] > 1) & (start == 0) & (stream != EXPLICIT)
    return np.where(shared, r.segment_length[first], 0)
