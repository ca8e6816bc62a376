"""Recordings of SGLang's HiCache: one engine's tree over device and host, led operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..memory.pool import make_pool
from ..prefix.keys import block_keys, sequence_keys
from ..prefix.node import HITS, LOCK, OFFSET, PRIORITY
from .content import Asked, request_table, slot_ranges
from .hicache_storage import HiStorage
from .hicache_tree import HiTree, Node
from .pull_pair import tokens_of_runs
from .recording import Row
from .stream import Observed

_PRODUCERS = 3
"""Transfers of loads that can be under way."""


class HiCache:
    """A page's slot is that of its first token."""

    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.12",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "page_size device_tokens host_ratio host_tokens write_policy eviction_policy storage prefetch_policy key_scale "
        "max_key namespaces n_ops tree_every write_through_threshold load_back_threshold storage_batch_pages "
        "prefetch_threshold prefetch_capacity_limit timeout unguarded".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset(
        "match put load load_start write_done load_done check evict evict_host unlock prefetch query io pf_check "
        "pf_terminate pf_abort backup seed lose store_fail tick".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = self.params = header["params"]
        self.page = page = p["page_size"]
        self.spaces = list(dict.fromkeys(p["namespaces"]))
        self.tokens = [tokens_of_runs(row.get("key", ())) for row in rows]
        self.keys = block_keys(request_table([Asked(tokens) for tokens in self.tokens]), page)
        device = make_pool(p["device_tokens"] // page, "append" if page == 1 else "sorted-front")
        host = make_pool(p["host_tokens"] // page, "append")
        pages = sum(len(tokens) // page for tokens in self.tokens)
        threshold = p["write_through_threshold"]
        self.tree = HiTree(pages, device, host, p["eviction_policy"], p["write_policy"], threshold)
        self.content = self._content()
        self.storage: HiStorage | None = None
        if p["storage"]:
            self.storage = HiStorage(self.tree, p, -1 - self.spaces.index(None), self.content)
            self.tree.on_copied = self._store
        self.number = -1
        self.held: dict[int, Node] = {}
        self.acks: list[tuple[Node, bool]] = []  # copies to the host in order: node, whether it is done
        self.queued: list[Node] = []  # loads: the end of each
        self.loads: list[tuple[list[Node], bool]] = []  # transfers in order: ends, whether it is done
        self.producer = -1
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Observed:
        self.number += 1
        self.totals[row["op"]] += 1
        self.tree.forget()
        out = row["out"]
        self.stored = list[list[int]]()
        got: Observed = getattr(self, f"_{row['op']}")(row)
        self._take_writes()
        if "error" in got:
            return {"error": got["error"], "mem": self._memory()}
        got |= {
            "demoted": self._slots(self.tree.demoted, 0),
            "dropped": self._slots(self.tree.dropped, 0),
            "host_evicted": self._slots(self.tree.host_evicted, 1),
            "writes": [[n * self.page, first and self._host_slot(first)] for n, first in self.tree.writes],
            "storage_writes": self.stored,
            "mem": self._memory(),
            "fault": "detached" if self.tree.lost else None,
        }
        if "tree" in out:
            got["tree"] = self._rows()
        return got

    def last(self) -> Observed:
        ended = self.tree.lost > 0 or (self.storage is not None and self.storage.is_dead)
        summary = {"ops": dict(self.totals), "ended_by_error": ended, "tree": self._rows(), "mem": self._memory()}
        return {"summary": summary}

    # ---------------------------------------------------------------- what is to be seen

    def _host_slot(self, page: int) -> int:
        return (page - 1) * self.page

    def _device_slot(self, page: int) -> int:
        return page if self.page == 1 else page * self.page

    def _slots(self, runs: Any, on_host: int) -> list[list[int]]:
        slot = self._host_slot if on_host else self._device_slot
        return [[slot(first), n * self.page] for first, n in runs]

    def _ranges(self, pages: Any) -> list[list[int]]:
        return slot_ranges([self._device_slot(int(p)) for p in pages], self.page)

    def _memory(self) -> Observed:
        loading = len(self.queued) + sum(len(ends) for ends, _ in self.loads)
        found: Observed = {
            "dev": [n * self.page for n in self.tree.device_sizes()],
            "host": [n * self.page for n in self.tree.host_sizes()],
            "ops": [len(self.tree.writing), len(self.acks), len(self.queued), loading, len(self.loads)],
        }
        return found | ({} if self.storage is None else {"st": self.storage.sizes()})

    def _rows(self) -> list[list[Any]]:
        t, rows = self.tree, list[list[Any]]()
        children: dict[Node, list[Node]] = {}
        for node in t.all():
            children.setdefault(t.parent(node), []).append(node)

        def tokens(node: Node) -> tuple[int, ...]:
            first = int(t.nodes[node, OFFSET])
            keys = t.tree.keys[first : first + t.length(node)].tolist()
            return tuple(token for key in keys for token in self.content[key])

        def walk(above: Node, depth: int, space: Any) -> None:
            for node in sorted(children.get(above, ()), key=tokens):
                dev, host = t.on_device(node)[0], t.on_host(node)[0]
                length = t.length(node) * self.page
                rows.append(
                    [
                        depth,
                        length,
                        tokens(node)[0],
                        self._device_slot(int(dev)) if dev else -1,
                        self._host_slot(int(host)) if host else -1,
                        int(t.nodes[node, LOCK]),
                        t.host_lock[node],
                        int(t.nodes[node, HITS]),
                        space or "",
                        -1 if self.storage is None else self.storage.num_hashes(node),
                        int(t.nodes[node, PRIORITY]),
                    ]
                )
                walk(node, depth + 1, space)

        for number, space in sorted(enumerate(self.spaces), key=lambda pair: pair[1] or ""):
            walk(-1 - number, 0, space)
        return rows

    def _content(self) -> dict[int, tuple[int, ...]]:
        """Key of a page -> its tokens."""
        found = {}
        for number, tokens in enumerate(self.tokens):
            for i, key in enumerate(self._page_keys(number).tolist()):
                found[key] = tuple(tokens[i * self.page : (i + 1) * self.page])
        return found

    # ---------------------------------------------------------------- device and host

    def _page_keys(self, number: int) -> Any:
        return sequence_keys(self.keys, number, len(self.tokens[number]) // self.page)

    def _find(self, row: Row) -> tuple[Observed, Node, int, Any]:
        """Returns what a match shows, the end of its path, pages on the device, and the keys."""
        t, keys = self.tree, self._page_keys(self.number)
        end, dev = t.match(-1 - self.spaces.index(row.get("ns")), keys)
        last, backed_up = t.last_on_device(end), t.last_on_host(end)
        shown = {
            "dev": dev * self.page,
            "host": (t.depth(end) - dev) * self.page,
            "dev_end": t.depth(last) * self.page,
            "host_end": t.depth(backed_up) * self.page,
        }
        return shown, end, dev, keys

    def _match(self, row: Row) -> Observed:
        shown, _, dev, _ = self._find(row)
        return shown | {"slots": self._ranges(self.tree.row[:dev])}

    def _put(self, row: Row) -> Observed:
        shown, end, dev, keys = self._find(row)
        t = self.tree
        if keys.size == 0:
            return shown
        have = t.row[:dev].copy()
        last, need = t.last_on_device(end), keys.size - dev
        t.lock(last)
        if t.device.num_free < need:
            shown["evict"] = t.evict(need) * self.page
        new = t.take(t.device, need)
        shown["ok"] = new is not None
        if new is not None:
            shown["new"] = self._ranges(new)
            pages = np.concatenate((have, new))
            known = t.insert(last, keys, dev, pages, row.get("prio", 0), row.get("chunked", False))
            shown["prefix_len"] = known * self.page
        t.unlock(last)
        return shown

    def _load(self, row: Row) -> Observed:
        shown, end, _, _ = self._find(row)
        t = self.tree
        last = t.last_on_device(end)
        if shown["host"] > 0:
            t.lock(last)
            quota = row.get("quota")
            least = -(-self.params["load_back_threshold"] // self.page)
            target = t.last_on_host(end)
            depth = t.depth(target) * self.page
            pages = t.load_back(target, None if quota is None else quota // self.page, least)
            t.unlock(last)
            if pages is not None:
                self.queued.append(target)
                shown |= {
                    "loaded": pages.size * self.page,
                    "slots": self._ranges(pages),
                    "end": depth,
                }
                last = target
            shown.setdefault("end", t.depth(last) * self.page)
            shown.setdefault("loaded", 0)
        if "hold" in row:
            t.lock(last)
            self.held[row["hold"]] = last
        return shown

    def _unlock(self, row: Row) -> Observed:
        self.tree.unlock(self.held.pop(row["hold"]))
        return {}

    def _load_start(self, row: Row) -> Observed:
        if not self.queued:
            return {"producer": -1}
        self.producer = (self.producer + 1) % _PRODUCERS
        self.loads.append((self.queued, False))
        self.queued = []
        return {"producer": self.producer}

    def _load_done(self, row: Row) -> Observed:
        waiting = [i for i, (_, done) in enumerate(self.loads) if not done][: row["n"]]
        for i in waiting:
            self.loads[i] = (self.loads[i][0], True)
        return {"marked": len(waiting)}

    def _write_done(self, row: Row) -> Observed:
        waiting = [i for i, (_, done) in enumerate(self.acks) if not done][: row["n"]]
        for i in waiting:
            self.acks[i] = (self.acks[i][0], True)
        return {"marked": len(waiting)}

    def _evict(self, row: Row) -> Observed:
        return {"evicted": self.tree.evict(-(-row["n"] // self.page)) * self.page}

    def _evict_host(self, row: Row) -> Observed:
        self.tree.evict_host(-(-row["n"] // self.page))
        return {}

    def _take_writes(self) -> None:
        """Copies that began since the last look get their place in the order of acknowledgements."""
        known = {node for node, _ in self.acks}
        self.acks += [(node, False) for node, locks in self.tree.writing.items() if locks and node not in known]

    def _check(self, row: Row) -> Observed:
        while self.acks and self.acks[0][1]:
            node, _ = self.acks.pop(0)
            del self.tree.writing[node]
            self.tree.unlock(node)
            self.tree.on_copied(node)
        while self.loads and self.loads[0][1]:
            for end in self.loads.pop(0)[0]:
                self.tree.unlock(end)
        if self.storage is not None:
            self.storage.drain()
        return {}

    # ---------------------------------------------------------------- storage

    def _store(self, node: Node) -> None:
        assert self.storage is not None
        self.storage.back_up(node)
        self.stored.append([self.tree.length(node), self.tree.depth(node) * self.page])

    def _prefetch(self, row: Row) -> Observed:
        assert self.storage is not None
        shown, end, _, keys = self._find(row)
        start = self.tree.last_on_host(end)
        first = self.tree.depth(end)
        tokens = self.tokens[self.number][first * self.page : keys.size * self.page]
        shown["eligible"] = True
        issued = self.storage.prefetch(row["rid"], start, keys[first:], tokens)
        return shown | ({"issued": issued} if issued else {})

    def _query(self, row: Row) -> Observed:
        assert self.storage is not None
        return {"log": self.storage.query()}

    def _io(self, row: Row) -> Observed:
        assert self.storage is not None
        got = self.storage.io(row["pages"])
        if self.page == 1 and "host" in got:
            got["host"] = slot_ranges(got["host"], 1)
        return got

    def _pf_check(self, row: Row) -> Observed:
        assert self.storage is not None
        return self.storage.check(row["rid"])

    def _pf_terminate(self, row: Row) -> Observed:
        assert self.storage is not None
        self.storage.terminate(row["rid"])
        return {}

    def _pf_abort(self, row: Row) -> Observed:
        assert self.storage is not None
        self.storage.abort(row["rid"])
        return {}

    def _backup(self, row: Row) -> Observed:
        assert self.storage is not None
        return self.storage.write(row["n"])

    def _seed(self, row: Row) -> Observed:
        assert self.storage is not None
        return {"new": self.storage.put(self.storage.hashes("", self.tokens[self.number]))}

    def _lose(self, row: Row) -> Observed:
        assert self.storage is not None
        return {"lost": self.storage.lose(row["idx"])}

    def _store_fail(self, row: Row) -> Observed:
        assert self.storage is not None
        self.storage.failing = row["n"]
        return {}

    def _tick(self, row: Row) -> Observed:
        assert self.storage is not None
        self.storage.now += row["s"]
        return {}
