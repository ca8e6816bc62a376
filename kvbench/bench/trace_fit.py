"""A declared workload fitted to a trace, and how far the two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.requests import I64, NONE, Requests
from ..offline.shared import Offline
from ..workload.build import build_workload
from ..workload.fit import Tables, distance, fitted, shared_tokens

BLOCK_TOKENS = 16
"""Block size of the hit rates where the trace has none of its own."""

_STEPS = 10
"""Numbers of groups that are tried, from 1 to the number of requests."""


@dataclass(frozen=True)
class Fit:
    """tables: of the declared workload. distances: name -> (trace, fit, how far apart); lengths and gaps have only
    the last, the Kolmogorov-Smirnov distance."""

    tables: Tables
    block_tokens: int
    distances: dict[str, tuple[float | None, float | None, float]]


def fit_trace(requests: Requests, seed: int = 0) -> Fit:
    """Fit lengths, arrivals and sharing; as many groups as meet the hit rate of an endless cache best."""
    block = requests.block_hint or BLOCK_TOKENS
    wanted = hit_rate(requests, block)
    tables = _with_groups(requests, block, wanted, seed)
    found = _built(tables, seed)
    distances: dict[str, tuple[float | None, float | None, float]] = {
        "prompt tokens": (None, None, distance(requests.prompt_tokens, found.prompt_tokens)),
        "output tokens": (None, None, distance(requests.output_tokens, found.output_tokens)),
        "gaps of arrivals": (None, None, distance(_gaps(requests), _gaps(found))),
    }
    reached = hit_rate(found, block)
    distances["hit rate"] = (wanted, reached, reached - wanted)
    return Fit(tables, block, distances)


def hit_rate(requests: Requests, block_tokens: int) -> float:
    """Of prompt tokens, in a cache that never evicts, one request after another, answers in it."""
    return Offline(requests, block_tokens).endless().tokens


def _with_groups(requests: Requests, block: int, wanted: float, seed: int) -> Tables:
    """The tables whose groups, evenly or unevenly popular, come closest in hit rate and prompts."""
    if (requests.after != NONE).any() or not shared_tokens(requests, block).any():
        return fitted(requests, block)
    counts = sorted({int(count) for count in np.geomspace(1, len(requests), _STEPS)})
    tried = [fitted(requests, block, groups, zipf) for groups in counts for zipf in (0.0, 1.0)]

    def apart(tables: Tables) -> float:
        found = _built(tables, seed)
        return abs(hit_rate(found, block) - wanted) + distance(requests.prompt_tokens, found.prompt_tokens)

    return min(tried, key=apart)


def _built(tables: Tables, seed: int) -> Requests:
    config: dict[str, Any] = {**tables, "seed": seed}
    return build_workload(config)[0]


def _gaps(requests: Requests) -> I64:
    return np.diff(requests.arrival_ns[requests.after == NONE])
