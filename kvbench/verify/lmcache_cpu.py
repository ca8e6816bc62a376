"""Recordings of LMCache's local CPU back end: the pool of copies of a tier under its four policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from ..prefix.node import ACCESS, CREATED
from ..tiers import probe
from ..tiers.copies import NO_SLOT, make_host, policy_of
from .recording import Row
from .stream import Observed

_BY_USE = ("LRU", "MRU")
"""Policies under which a touch moves a copy to the end of the cache's own order; else it is the order of arrival."""


class LmcacheCpu:
    """Chunks of a pool; a key is a content. Pins and readers are holds."""

    ENGINE: ClassVar[str] = "lmcache"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.6",)
    PARAMS: ClassVar[frozenset[str]] = frozenset("policy capacity num_docs doc_len n_ops".split())
    FIXED: ClassVar[dict[str, Any]] = {}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("lookup_pin touch unpin store get release remove".split())

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        self.policy = p["policy"]
        self.tier = make_host(p["capacity"], policy_of(self.policy.lower()), False, 1)
        self.pins: Counter[int] = Counter()
        self.readers: Counter[int] = Counter()
        self.waiting: list[int] = []  # keys whose use has not been counted yet
        self.reads: dict[int, list[int]] = {}

    def step(self, row: Row) -> Observed:
        got: Observed = getattr(self, f"_{row['op']}")(row)
        if "cache" in row["out"]:
            got["cache"] = self._cache()
        return got | {"free": int(self.tier.num_free)}

    def last(self) -> Observed:
        return {"summary": {"cache": self._cache(), "free": int(self.tier.num_free)}}

    def _slot(self, key: int) -> int:
        return int(probe.slot_of(self.tier, key))

    def _hits(self, keys: Sequence[int]) -> list[int]:
        found = [self._slot(key) != NO_SLOT for key in keys]
        return list(keys[: found.index(False)] if False in found else keys)

    def _cache(self) -> list[list[int]]:
        nodes, contents = self.tier.order.nodes, self.tier.content
        column = ACCESS if self.policy in _BY_USE else CREATED
        slots = sorted((s for s in range(1, contents.size) if contents[s]), key=lambda s: int(nodes[s, column]))
        keys = [int(contents[s]) for s in slots]
        return [[key, 1 + self.readers[key], self.pins[key]] for key in keys]

    def _lookup_pin(self, row: Row) -> Observed:
        hits = self._hits(row["keys"])
        for key in hits:
            probe.hold(self.tier, self._slot(key))
            self.pins[key] += 1
        self.waiting += hits
        return {"hits": len(hits)}

    def _touch(self, row: Row) -> Observed:
        for key in reversed(self.waiting):
            probe.touch(self.tier, key)
        self.waiting = []
        return {}

    def _unpin(self, row: Row) -> Observed:
        key = row["key"]
        if self.pins[key] > 0:
            self.pins[key] -= 1
            probe.let_go(self.tier, self._slot(key))
        return {}

    def _store(self, row: Row) -> Observed:
        stored, evicted = [], []
        for key in row["keys"]:
            if self._slot(key) != NO_SLOT:
                continue
            before = self.tier.content.tolist()
            slot = int(probe.put(self.tier, key))
            stored.append([key, slot != NO_SLOT])
            if slot == NO_SLOT:
                break
            evicted += [before[slot]] if before[slot] else []
        return {"stored": stored, "evicted": evicted}

    def _get(self, row: Row) -> Observed:
        hits = self._hits(row["keys"])
        for key in hits:
            probe.hold(self.tier, self._slot(key))
            self.readers[key] += 1
        self.reads[row["id"]] = hits
        return {"got": len(hits)}

    def _release(self, row: Row) -> Observed:
        for key in self.reads.pop(row["id"], []):
            if self.readers[key] > 0:
                self.readers[key] -= 1
                probe.let_go(self.tier, self._slot(key))
        return {}

    def _remove(self, row: Row) -> Observed:
        key = row["key"]
        slot = self._slot(key)
        if slot == NO_SLOT:
            return {"ok": False}
        probe.drop(self.tier, slot)
        self.waiting = [other for other in self.waiting if other != key]
        self.pins[key] = self.readers[key] = 0
        return {"ok": True}
