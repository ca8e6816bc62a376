"""SGLang as a subject of recordings: which part of it a script leads, and its radix tree by itself.

Run against 0.5.12 and 0.5.23 on a CPU. The tree of 0.5.23 is its Python core here, whose nodes
can be looked at; policy and scheduler run on the core that it takes by itself. No test here runs them against the real
package: what tests hold is the scripts and the format, on kvbench's own code.
"""

from __future__ import annotations

import os
from collections import Counter
from importlib import import_module
from typing import Any

from ..recording import Row
from .adapting import call, merged
from .scripts import Fields, Script
from .sglang_engine import Engine, prepare
from .sglang_policy import Policy
from .sglang_scheduler import Scheduling

CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"


class _Notes:
    """An allocator that notes what the tree frees; slots are the recording's."""

    def __init__(self, torch: Any, page: int) -> None:
        self.device, self.page_size = torch.device("cpu"), page
        self.freed: list[list[int]] = []

    def free(self, slots: Any) -> None:
        self.freed.append(slots.tolist())

    def free_segment(self, slots: Any, *, start_pos: int) -> None:
        self.free(slots)

    def free_segments(self, segments: Any) -> None:
        for slots, _ in segments:
            self.free(slots)


class Radix:
    """The tree by itself: match, insert, lock, unlock, evict."""

    def __init__(self, script: Script) -> None:
        p = script.header["params"]
        tree = {"kv_tokens": p["page_size"], "eviction_policy": p["policy"], "page_size": p["page_size"]}
        config = {name: p[name] for name in ("eviction_policy_config",) if name in p}
        os.environ[CORE] = "python"
        try:
            self.engine = Engine(tree | config, 1)
        finally:
            del os.environ[CORE]
        self.new, self.page, self.torch, self.types = (
            self.engine.new,
            p["page_size"],
            self.engine.torch,
            self.engine.types,
        )
        self.cache = self.engine.tree
        self.notes = _Notes(self.torch, self.page)
        self.cache.token_to_kv_pool_allocator = self.notes
        self.root = self.cache.root_node_handle() if self.new else self.cache.root_node
        self.found: Any = self.root
        self.held: dict[int, Any] = {}
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Fields:
        self.notes.freed.clear()
        got: Fields = getattr(self, f"_{row['op']}")(row)
        evictable, protected = int(self.cache.evictable_size()), int(self.cache.protected_size())
        self.totals.update(
            ops=1, locks=row["op"] == "lock", evicted=got.get("evicted", 0), match_hit=got.get("len", 0) > 0
        )
        if "tree" in row["out"]:
            got["tree"] = self._tree()
        return got | {"evictable": evictable, "protected": protected, "total": evictable + protected}

    def _key(self, row: Row) -> Any:
        whole = len(row["key"]) // self.page * self.page
        return self.engine.key(list(row["key"][:whole]), row.get("ns"))

    def _match(self, row: Row) -> Fields:
        result = self.cache.match_prefix(call(self.types.MatchPrefixParams, key=self._key(row)))
        self.found = result.last_device_node
        slots = self.cache.path_device_indices(self.found) if self.new else result.device_indices
        return {"len": len(slots), "slots": merged(slots.tolist())}

    def _insert(self, row: Row) -> Fields:
        key, base = self._key(row), row["slot_base"]
        params = call(
            self.types.InsertParams,
            key=key,
            value=self.torch.arange(base, base + len(key), dtype=self.torch.int64),
            priority=row.get("priority", 0),
            chunked=row.get("chunked", False),
            inserted_len=row.get("inserted", 0),
        )
        return {"prefix_len": int(self.cache.insert(params).prefix_len)}

    def _lock(self, row: Row) -> Fields:
        before = self.cache.evictable_size()
        if self.new:
            self.held[row["h"]] = self.cache.lock(self.found)
        else:
            self.held[row["h"]] = self.found
            self.cache.inc_lock_ref(self.found)
        return {"delta": int(self.cache.evictable_size() - before)}

    def _unlock(self, row: Row) -> Fields:
        before = self.cache.evictable_size()
        held = self.held.pop(row["h"])
        if self.new:
            self.cache.unlock(held)
        else:
            self.cache.dec_lock_ref(held)
        return {"delta": int(self.cache.evictable_size() - before)}

    def _evict(self, row: Row) -> Fields:
        self.cache.evict(call(self.types.EvictParams, num_tokens=row["n"]))
        freed = self.notes.freed
        return {"evicted": sum(map(len, freed)), "segs": [r for node in freed for r in merged(node)]}

    def _tree(self) -> list[list[Any]]:
        rows: list[list[Any]] = []
        core = self.cache.tree_core if self.new else self.cache

        def name(node: Any) -> tuple[str, list[int]]:
            return node.key.extra_key or "", list(node.key.token_ids)

        def walk(parent: Any, depth: int) -> None:
            for node in sorted(parent.children.values(), key=name):
                own = node.component_data[0] if self.new else node
                length, first = len(node.key), int(own.value[0])
                counts = [int(own.lock_ref), int(node.hit_count), int(node.priority)]
                rows.append([depth, length, first, *counts, node.key.extra_key])
                walk(node, depth + length)

        walk(core.root_node, 0)
        return rows

    def last(self) -> Fields:
        return {"summary": {name: self.totals[name] for name in ("match_hit", "evicted", "locks", "ops")}}


SUBJECTS: dict[str, Any] = {
    "radix_cache": Radix,
    "schedule_policy_and_prefill_adder": Policy,
    "scheduler": Scheduling,
}


def load() -> Any:
    """What makes a subject of a script. ImportError: SGLang or something that it needs is missing."""
    prepare()
    import_module("sglang.srt.mem_cache.radix_cache")
    return lambda script: SUBJECTS[script.component](script)
