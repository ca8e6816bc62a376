"""A workload without a clock, and what replays of it through caches of many capacities have in common."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..cluster.admissions import Admissions
from ..core.requests import EXPLICIT, I64, Requests
from ..prefix.keys import BlockKeys, block_keys
from ..prefix.reuse import Reuses, find_reuses
from .bounds import id_reuses, visits_of
from .ids import IdRows, hit_rate_ids, id_rows
from .order import arrival_order


@dataclass(frozen=True)
class Endless:
    """Hit rates of a cache that never evicts: of prompt tokens, and of whole blocks of the prompts."""

    tokens: float
    blocks: float


@dataclass(frozen=True)
class Offline:
    """A workload without a clock at one block size, and what replays of it share, made when it is first asked for.

    answers   False: prompts alone enter the cache
    warm_up   share of the requests, the first ones, that fill the cache before anything is counted
    """

    given: Requests
    block_tokens: int
    answers: bool = True
    warm_up: float = 0.0
    _reuses: dict[bytes, Reuses] = field(default_factory=dict, repr=False)
    _id_rates: dict[int, float] = field(default_factory=dict, repr=False)

    @cached_property
    def requests(self) -> Requests:
        """Without answers a request ends with its first token, which leaves no KV."""
        if self.answers:
            return self.given
        one = np.ones(len(self.given), np.int64)
        return replace(self.given, output_tokens=one, max_tokens=one)

    @cached_property
    def order(self) -> I64:
        """(n,) requests as they come."""
        return arrival_order(self.requests)

    @cached_property
    def num_warming(self) -> int:
        """Requests that only fill the cache."""
        return int(self.warm_up * len(self.order))

    @cached_property
    def counted(self) -> I64:
        """(n,) 0 or 1: whether a request is counted; phases that are left out of results are not."""
        counted = (~self.requests.is_excluded()).astype(np.int64)
        counted[self.order[: self.num_warming]] = 0
        return counted

    @cached_property
    def keys(self) -> BlockKeys:
        return block_keys(self.requests, self.block_tokens)

    @cached_property
    def ids(self) -> Reuses:
        return id_reuses(self.requests, self.order, self.counted)

    @cached_property
    def _id_rows(self) -> IdRows:
        return id_rows(self.requests, self.order, self.counted)

    def id_rate(self, capacity: int) -> float:
        """Of ids in an LRU of `capacity` of them, whatever the policy of the cache."""
        if capacity not in self._id_rates:
            self._id_rates[capacity] = hit_rate_ids(self._id_rows, capacity)
        return self._id_rates[capacity]

    @cached_property
    def place(self) -> I64:
        """(n,) place of each request in the order."""
        return np.argsort(self.order)

    def endless(self) -> Endless:
        """What a cache that never evicts and refuses nobody finds, one request after another."""
        r, bt, is_counted = self.requests, self.block_tokens, self.counted == 1
        n = np.repeat(np.arange(len(r)), r.samples)
        when = self.place[n]
        none = np.zeros(n.size, np.int64)
        everyone = Admissions(np.arange(n.size), n, r.prompt_tokens[n], self.counted[n], when, when, none, n)
        hits = self.reuses(everyone, self.keys, "cold").total
        tokens = int((r.prompt_tokens * r.samples)[is_counted].sum())
        blocks = int((r.prompt_tokens // bt * r.samples)[is_counted].sum())
        return Endless(hits * bt / max(tokens, 1), hits / max(blocks, 1))

    def reuses(self, admissions: Admissions, keys: BlockKeys, state: str) -> Reuses:
        """Of these admissions, which are the same at many capacities."""
        name = state.encode() + admissions.asked.tobytes() + admissions.sequence.tobytes()
        if name not in self._reuses:
            self._reuses[name] = find_reuses(keys, visits_of(self.requests, admissions, self.block_tokens, state))
        return self._reuses[name]

    @cached_property
    def prompts_with_answers(self) -> int:
        """Requests whose prompt holds a piece of an answer, or explicit ids, which may be one."""
        r = self.requests
        piece = np.isin(r.segment_stream, r.output_stream) | (r.segment_stream == EXPLICIT)
        return int(np.unique(np.searchsorted(r.segment_offset, np.flatnonzero(piece), side="right")).size)
