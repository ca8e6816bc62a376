"""SGLang's radix cache by itself: match, insert, lock, unlock, evict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..engine.build import eviction, radix_tree
from ..engine.observe import fields_of
from ..engine.settings import EngineSettings
from ..memory.pool import make_pool
from ..prefix import radix
from ..prefix.keys import block_keys, sequence_keys
from .content import Asked, request_table, slot_ranges, tokens_of_keys
from .recording import Row
from .sglang_rules import VERSIONS as KNOWN
from .sglang_rules import cache_rules, scheduler_rules
from .stream import EVICTION_LOG, Observed
from .tree_rows import tree_rows

NOBODY = 2
"""Blocks of a pool that nobody takes from: slots belong to the recording, and what the tree gives back is gone."""


class SglangRadix:
    """A tree without requests. A block's value is its first slot."""

    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = KNOWN
    PARAMS: ClassVar[frozenset[str]] = frozenset("page_size policy namespaces eviction_policy_config".split())
    FIXED: ClassVar[dict[str, Any]] = {}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("match insert lock unlock evict".split())

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        self.page, self.namespaces = p["page_size"], p["namespaces"]
        asked = [Asked(row.get("key", ())) for row in rows]
        self.block_keys = block_keys(request_table(asked), self.page)
        self.tokens_of = tokens_of_keys(self.block_keys, asked, self.page)
        blocks = sum(len(a.prompt) // self.page for a, row in zip(asked, rows, strict=True) if row["op"] == "insert")
        self.rules = cache_rules(header, "radix", blocks, p["policy"])
        settings = EngineSettings(scheduler_rules(header), self.rules, self.page)
        self.tree = radix_tree(settings, blocks, eviction(settings), np.zeros(0, np.int64), EVICTION_LOG)
        self.pool = make_pool(NOBODY, "append")
        self.blocks, self.log = self.tree.blocks, self.tree.log
        self.row = np.zeros(max((len(a.prompt) for a in asked), default=0) + 1, np.int32)
        self.locked: dict[Any, int] = {}
        self.found = 0
        self.number = -1
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Observed:
        self.number += 1
        got: Observed = getattr(self, f"_{row['op']}")(row)
        tree = fields_of(self.tree)
        evictable, protected = tree["evictable"] * self.page, tree["protected"] * self.page
        self.totals.update(
            ops=1, locks=row["op"] == "lock", evicted=got.get("evicted", 0), match_hit=got.get("len", 0) > 0
        )
        if "tree" in row["out"]:
            got["tree"] = tree_rows(self.tree, self.namespaces, self.tokens_of, self.page, lambda slot: slot)
        return got | {"evictable": evictable, "protected": protected, "total": evictable + protected}

    def _namespace(self, row: Row) -> np.int64:
        return np.int64(self.namespaces.index(row.get("ns")))

    def _keys(self, row: Row) -> Any:
        return sequence_keys(self.block_keys, self.number, len(row["key"]) // self.page)

    def _match(self, row: Row) -> Observed:
        keys = self._keys(row)
        namespace = self._namespace(row)
        self.found, blocks = radix.match(self.tree, namespace, keys, keys.size, self.row)
        return {"len": blocks * self.page, "slots": slot_ranges(self.row[:blocks].tolist(), self.page)}

    def _insert(self, row: Row) -> Observed:
        keys = self._keys(row)
        slots = (row["slot_base"] + self.page * np.arange(keys.size)).astype(np.int32)
        root = -1 - self._namespace(row)
        counted = row.get("inserted", 0) // self.page
        if not self.rules.count_hits_once:
            counted = keys.size if row.get("chunked", False) else 0
        worth = row.get("priority", 0)
        _, present = radix.insert(self.tree, self.pool, root, keys, slots, 0, keys.size, worth, counted)
        return {"prefix_len": present * self.page}

    def _lock(self, row: Row) -> Observed:
        self.locked[row["h"]] = self.found
        return {"delta": -radix.lock(self.tree, self.found) * self.page}

    def _unlock(self, row: Row) -> Observed:
        return {"delta": radix.unlock(self.tree, self.locked.pop(row["h"])) * self.page}

    def _evict(self, row: Row) -> Observed:
        logged = self.tree.log_size
        freed = radix.evict(self.tree, self.pool, -(-row["n"] // self.page))
        nodes = self.log[logged : self.tree.log_size].tolist()
        ranges = [slot_ranges(self.blocks[first : first + n].tolist(), self.page) for first, n in nodes]
        return {"evicted": freed * self.page, "segs": [r for node in ranges for r in node]}

    def last(self) -> Observed:
        return {"summary": {name: self.totals[name] for name in ("match_hit", "evicted", "locks", "ops")}}
