"""SGLang's radix cache as a subject of recordings.

Written against the public classes of `sglang.srt.mem_cache` as their documentation and signatures give them (0.5.12);
it cannot be run where SGLang is missing, and no test here runs it against the real package. What tests hold is the
scripts and the format, on kvbench's own code. The clock is replaced by a counter, so that no two reads tie, and the
token allocator by one that only notes what is given back to it.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from itertools import count
from typing import Any

from ..recording import Row
from .adapting import Open, call, merged
from .scripts import Fields, Script


class _Notes:
    """An allocator that notes what the tree frees."""

    def __init__(self, torch: Any) -> None:
        self.device = torch.device("cpu")
        self.freed: list[list[int]] = []

    def free(self, slots: Any) -> None:
        self.freed.append(slots.tolist())


class Radix:
    """The tree by itself: match, insert, lock, unlock, evict."""

    def __init__(self, script: Script) -> None:
        p = script.header["params"]
        self.torch: Any = import_module("torch")
        self.module: Any = import_module("sglang.srt.mem_cache.radix_cache")
        self.types: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
        init: Any = import_module("sglang.srt.mem_cache.cache_init_params")
        ticks = count(1)
        vars(self.module)["time"] = Open(
            monotonic=lambda: next(ticks), time=lambda: next(ticks), perf_counter=lambda: 0.0
        )
        self.notes, self.page = _Notes(self.torch), p["page_size"]
        params = call(
            init.CacheInitParams,
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.notes,
            page_size=self.page,
            eviction_policy=p["policy"],
        )
        self.cache = self.module.RadixCache(params)
        self.found: Any = self.cache.root_node
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
        return self.module.RadixKey(list(row["key"][:whole]), row.get("ns"))

    def _match(self, row: Row) -> Fields:
        result = self.cache.match_prefix(call(self.types.MatchPrefixParams, key=self._key(row)))
        self.found = result.last_device_node
        slots = result.device_indices.tolist()
        return {"len": len(slots), "slots": merged(slots)}

    def _insert(self, row: Row) -> Fields:
        key = self._key(row)
        value = self.torch.arange(row["slot_base"], row["slot_base"] + len(key), dtype=self.torch.int64)
        params = call(
            self.types.InsertParams,
            key=key,
            value=value,
            chunked=row.get("chunked", False),
            priority=row.get("priority", 0),
        )
        return {"prefix_len": int(self.cache.insert(params).prefix_len)}

    def _lock(self, row: Row) -> Fields:
        self.held[row["h"]] = self.found
        return self._change(self.cache.inc_lock_ref, self.found)

    def _unlock(self, row: Row) -> Fields:
        return self._change(self.cache.dec_lock_ref, self.held.pop(row["h"]))

    def _change(self, action: Any, node: Any) -> Fields:
        before = self.cache.evictable_size()
        action(node)
        return {"delta": int(self.cache.evictable_size() - before)}

    def _evict(self, row: Row) -> Fields:
        self.cache.evict(call(self.types.EvictParams, num_tokens=row["n"]))
        freed = self.notes.freed
        return {"evicted": sum(map(len, freed)), "segs": [r for node in freed for r in merged(node)]}

    def _tree(self) -> list[list[Any]]:
        rows: list[list[Any]] = []

        def name(node: Any) -> tuple[str, list[int]]:
            return node.key.extra_key or "", list(node.key.token_ids)

        def walk(parent: Any, depth: int) -> None:
            for node in sorted(parent.children.values(), key=name):
                length, first = len(node.key), int(node.value[0])
                counts = [int(node.lock_ref), int(node.hit_count), int(node.priority)]
                rows.append([depth, length, first, *counts, node.key.extra_key])
                walk(node, depth + length)

        walk(self.cache.root_node, 0)
        return rows

    def last(self) -> Fields:
        return {"summary": {name: self.totals[name] for name in ("match_hit", "evicted", "locks", "ops")}}


def load() -> Any:
    """What makes a subject of a script. ImportError: SGLang or something that it needs is missing."""
    import_module("sglang.srt.mem_cache.radix_cache")
    return Radix
