"""HiCache's storage: prefetches and back-ups as three queues, each worked off when the script says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..prefix.node import OFFSET
from .hicache_tree import HiTree, Node
from .stream import Observed

SHORT = "IndexError: index 0 is out of bounds for dimension 0 with size 0"
"""What the engine dies of when a prefetch runs past the pages it got; see the recordings' README."""


@dataclass
class _Prefetch:
    """start: the node behind which it begins. pages: of the host. wanted: hashes of the pages that storage has."""

    rid: str
    start: Node
    keys: Any
    tokens: Sequence[int]
    pages: list[int]
    begun: float
    before: str
    wanted: list[str] = field(default_factory=list)
    completed: int = 0
    is_over: bool = False


class HiStorage:
    """A dictionary of pages, by the hash of the prefix that each of them ends; it knows no namespaces.

    root     of those without a namespace: whoever begins at a root gets his pages below this one
    content  key of a page -> its tokens
    """

    def __init__(self, tree: HiTree, p: Any, root: Node, content: dict[int, tuple[int, ...]]) -> None:
        self.root, self.content = root, content
        self.tree, self.page = tree, p["page_size"]
        self.policy, self.batch = p["prefetch_policy"], p["storage_batch_pages"]
        self.least, self.most, self.timeout = p["prefetch_threshold"], p["prefetch_capacity_limit"], p["timeout"]
        self.hash_of: dict[int, str] = {}  # place in the tree's arena -> hash of the page
        self.there: dict[str, None] = {}
        self.now, self.failing, self.is_dead = 0.0, 0, False
        self.prefetches: dict[str, _Prefetch] = {}
        self.occupied = 0
        self.asked: list[_Prefetch] = []
        self.moving: list[_Prefetch] = []
        self.transfer: Iterator[None] | None = None
        self.revoked: list[str] = []
        self.backups: dict[Node, None] = {}
        self.to_write: list[tuple[Node, list[str]]] = []
        self.written: list[Node] = []
        self.leaving: list[int] = []
        self.log: list[Any] = []
        self.slots: list[int] = []
        tree.on_new = self._name

    def sizes(self) -> list[int]:
        queues = (self.asked, self.moving, self.backups, self.to_write, self.revoked, self.written, self.leaving)
        return [len(self.prefetches), self.occupied, *map(len, queues), len(self.there)]

    # ---------------------------------------------------------------- names of pages

    def hashes(self, before: str, tokens: Sequence[int]) -> list[str]:
        """Of whole pages behind a page of hash `before`."""
        found = []
        for first in range(0, len(tokens) - self.page + 1, self.page):
            digest = hashlib.sha256(bytes.fromhex(before))
            for token in tokens[first : first + self.page]:
                digest.update(token.to_bytes(4, "little"))
            before = digest.hexdigest()
            found.append(before)
        return found

    def _places(self, node: Node) -> range:
        first = int(self.tree.nodes[node, OFFSET])
        return range(first, first + self.tree.length(node))

    def num_hashes(self, node: Node) -> int:
        return sum(place in self.hash_of for place in self._places(node)) or -1

    def _last_hash(self, node: Node) -> str:
        return self.hash_of[self._places(node)[-1]] if node > 0 else ""

    def _name(self, node: Node) -> None:
        before = self._last_hash(self.tree.parent(node))
        tokens = [t for place in self._places(node) for t in self.content[int(self.tree.tree.keys[place])]]
        self.hash_of.update(zip(self._places(node), self.hashes(before, tokens), strict=True))

    # ---------------------------------------------------------------- prefetch

    def prefetch(self, rid: str, start: Node, keys: Any, tokens: Sequence[int]) -> list[int]:
        """Returns tokens of its key and tokens of the host that it got; [] = refused."""
        t = self.tree
        if len(tokens) < self.least or self.occupied >= self.most:
            return []
        t.host_lock[start] += 1
        pages = t.take(t.host, keys.size)
        if pages is None:
            t.evict_host(keys.size)
            pages = t.take(t.host, keys.size)
        if pages is None:
            if t.host.num_free * self.page < self.least:
                t.host_lock[start] -= 1
                return []
            pages = t.take(t.host, int(t.host.num_free))
        operation = _Prefetch(rid, start, keys, tokens, pages.tolist(), self.now, self._last_hash(start))
        self.prefetches[rid] = operation
        self.asked.append(operation)
        self.occupied += len(tokens)
        return [len(tokens), len(pages) * self.page]

    def query(self) -> list[Any]:
        """The thread that asks storage takes the next prefetch."""
        if not self.asked:
            return []
        operation, log = self.asked.pop(0), list[Any]()
        names = self.hashes(operation.before, operation.tokens)
        for first in range(0, len(names), self.batch):
            batch = names[first : first + self.batch]
            missing = [i for i, name in enumerate(batch) if name not in self.there]
            found = missing[0] if missing else len(batch)
            log.append(["exists", len(batch), found])
            operation.wanted += batch[:found]
            if missing:
                break
        hits = len(operation.wanted)
        if hits * self.page < self.least:
            operation.wanted = []
            self.revoked.append(operation.rid)
            self.leaving += operation.pages
            return log
        self.leaving += operation.pages[hits:]
        operation.pages = operation.pages[:hits]
        self.moving.append(operation)
        return log

    def io(self, pages: int) -> Observed:
        """The transfer thread goes on for at most so many pages."""
        self.log, self.slots = [], []
        try:
            while self._has_a_page() and pages > 0:
                pages -= 1
                self._go_on()
        except IndexError:
            self.is_dead = True
            return {"error": SHORT}
        return {"pages": len(self.slots), "host": self.slots, "log": self.log}

    def _has_a_page(self) -> bool:
        """Whether the thread stands before a page; it begins with the next prefetch if need be."""
        while self.transfer is None and self.moving:
            self.transfer = self._transfer(self.moving.pop(0))
            self._go_on()
        return self.transfer is not None

    def _go_on(self) -> None:
        assert self.transfer is not None
        if next(self.transfer, "over") == "over":
            self.transfer = None

    def _transfer(self, operation: _Prefetch) -> Iterator[None]:
        names = operation.wanted
        for first in range(0, len(names), self.batch):
            batch = names[first : first + self.batch]
            found = [name in self.there for name in batch]
            self.log.append(["get", len(batch), sum(found)])
            is_whole = True
            for i, is_there in enumerate(found):
                if not is_there:
                    is_whole = False
                    break
                yield
                self.slots.append((operation.pages[first + i] - 1) * self.page)
                if operation.is_over:
                    is_whole = False
                    break
                operation.completed += 1
            if not is_whole:
                operation.is_over = True
                break
        self.leaving += operation.pages[operation.completed :]

    def check(self, rid: str) -> Observed:
        """Whether a request need not wait any more for its prefetch; if so, what has come is part of the tree."""
        operation = self.prefetches.get(rid)
        if operation is None:
            return {"done": True, "loaded": 0}
        if not self._may_stop(operation):
            return {"done": False}
        operation.is_over = True
        count = operation.completed
        pages = operation.pages[:count]
        below = operation.start if operation.start > 0 else self.root
        present, end = self.tree.insert_on_host(below, operation.keys[:count], pages)
        if present < count:
            self.hash_of.update(zip(self._places(end), operation.wanted[present:count], strict=True))
        self.tree.give(self.tree.host, pages[:present])
        self._close(operation)
        return {"done": True, "loaded": (count - present) * self.page}

    def _may_stop(self, operation: _Prefetch) -> bool:
        hits = len(operation.wanted)
        is_whole = hits > 0 and operation.completed == hits
        if self.policy == "best_effort" or operation.is_over or is_whole:
            return True
        base, more, most = self.timeout
        limit = min(most, base + more * hits * self.page / 1024)
        return bool(self.policy == "timeout" and self.now - operation.begun >= limit)

    def _close(self, operation: _Prefetch) -> None:
        del self.prefetches[operation.rid]
        self.tree.host_lock[operation.start] -= 1
        self.occupied -= len(operation.tokens)

    def terminate(self, rid: str) -> None:
        if rid in self.prefetches:
            self.prefetches[rid].is_over = True

    def abort(self, rid: str) -> None:
        operation = self.prefetches.get(rid)
        if operation is not None:
            operation.is_over = True
            self.leaving += operation.pages[: operation.completed]
            self._close(operation)

    # ---------------------------------------------------------------- back-up

    def back_up(self, node: Node) -> None:
        """A node whose copy to the host has ended is written to storage, and stays on the host until then."""
        self.tree.host_lock[node] += 1
        self.backups[node] = None
        self.to_write.append((node, [self.hash_of[place] for place in self._places(node)]))

    def write(self, count: int) -> Observed:
        """The thread that writes takes so many of them."""
        log, did = list[Any](), 0
        for _ in range(min(count, len(self.to_write))):
            node, names = self.to_write.pop(0)
            did += 1
            for first in range(0, len(names), self.batch):
                batch = names[first : first + self.batch]
                if self.failing:
                    self.failing -= 1
                    log.append(["set", len(batch), 0])
                    break
                log.append(["set", len(batch), self.put(batch)])
            self.written.append(node)
        return {"did": did, "log": log}

    def put(self, names: Sequence[str]) -> int:
        """Pages are there. Returns how many were not."""
        new = [name for name in dict.fromkeys(names) if name not in self.there]
        self.there.update(dict.fromkeys(new))
        return len(new)

    def lose(self, places: Sequence[int]) -> list[str]:
        names = list(self.there)
        lost = [names[place] for place in sorted(places, reverse=True)]
        for name in lost:
            del self.there[name]
        return [name[:8] for name in lost]

    def drain(self) -> None:
        """What the scheduler hears of the three threads."""
        for rid in self.revoked:
            if rid in self.prefetches:
                self._close(self.prefetches[rid])
        for node in self.written:
            del self.backups[node]
            self.tree.host_lock[node] -= 1
        for page in self.leaving:
            self.tree.give(self.tree.host, [page])
        self.revoked, self.written, self.leaving = [], [], []
