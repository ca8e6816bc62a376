"""Replays of one workload through caches of many capacities, with what they share worked out once.

LRU under block hash is a stack algorithm (`prefix.optimum.lru_hits` says why): one pass gives all capacities, in the
very numbers of separate replays. Radix evicts whole nodes and overshoots, so its capacities do not nest: one replay
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import I64, Requests
from ..engine.settings import EngineSettings
from ..prefix.keys import BlockKeys, block_keys
from ..prefix.optimum import lru_hits, most_hits
from ..prefix.reuse import Reuses
from .bounds import id_reuses, replay_reuses
from .replay import replay_rates


@dataclass(frozen=True)
class Offline:
    """A workload at one block size: keys and reuses, made when they are first asked for.

    raises   UsageError: it has flushes, which come at a time, and there is no clock
    """

    requests: Requests
    block_tokens: int

    def __post_init__(self) -> None:
        if self.requests.flush_ns is not None:
            raise UsageError("flush comes at a time, and --cache-only has no clock; leave one of them out")

    @cached_property
    def whole(self) -> I64:
        """(n,) whole blocks of each prompt."""
        return self.requests.prompt_tokens // self.block_tokens

    @cached_property
    def keys(self) -> BlockKeys:
        return block_keys(self.requests, self.block_tokens)

    @cached_property
    def reuses(self) -> Reuses:
        return replay_reuses(self.requests, self.keys, self.block_tokens)

    def bounds(self, capacities: Sequence[int]) -> list[dict[str, float]]:
        """For each capacity in blocks (0 = no bound): rate + "_infinite", "_optimum" of the rates of a replay."""
        found: list[dict[str, float]] = [{} for _ in capacities]
        blocks, tokens = max(int(self.whole.sum()), 1), int(self.requests.prompt_tokens.sum())
        rates = [
            ("hit_rate_blocks", self.reuses, 1 / blocks),
            ("hit_rate_tokens", self.reuses, self.block_tokens / tokens),
        ]
        if self.requests.block_hint == self.block_tokens:
            rates.append(("hit_rate_ids", id_reuses(self.requests), 1 / self.requests.segment_stream.size))
        for name, reuses, worth in rates:
            for row, optimum in zip(found, most_hits(reuses, capacities), strict=True):
                row[f"{name}_infinite"] = reuses.total * worth
                row[f"{name}_optimum"] = optimum * worth
        return found


def is_stack(settings: EngineSettings) -> bool:
    """Whether one pass serves all capacities."""
    return settings.cache.kind == "hash" and settings.cache.eviction in ("", "lru")


def lru_curve(offline: Offline, settings: Sequence[EngineSettings]) -> list[dict[str, Any]]:
    """Rates of a replay under settings that differ in cache.num_blocks only, for which `is_stack` holds."""
    capacities = [s.cache.num_blocks for s in settings]
    hits = lru_hits(offline.reuses, offline.whole, capacities)
    distinct = int(offline.whole.sum()) - offline.reuses.total
    rows = []
    for system, capacity, hit in zip(settings, capacities, hits, strict=True):
        room = capacity or int(offline.whole.sum())
        entered = int(np.minimum(offline.whole, room).sum()) - hit
        rows.append(replay_rates(offline.requests, system, hit, entered - min(distinct, room)))
    return rows
