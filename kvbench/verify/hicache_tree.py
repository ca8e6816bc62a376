"""A radix tree whose nodes lie on the device, on the host, or on both: SGLang's HiCache over the product's tree.

Structure, matching, splitting, insertion, locks, the order of eviction and both pools of pages are the product's. What
is told here is HiCache's own: a node keeps its place in the tree when it leaves the device, and has pages on the host
from the moment in which their copy begins. Pages of a node are runs of two arenas beside the keys of the tree, so that
a split of the tree divides them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ..core.jit import entry
from ..memory.pool import BlockPool, make_pool, ring_give, ring_take
from ..prefix import radix
from ..prefix.eviction.policies import POLICIES, by_functions
from ..prefix.node import ACCESS, CHILDREN, HITS, LENGTH, LOCK, OFFSET, PARENT, PRIORITY

NOWHERE = 0
"""A page of no pool."""

ROOT_PRIORITY = 1 - (1 << 63)
"""What a prefetch below the root inherits: smaller than any."""

Node = int
Wanted = list[list[Any]]


@entry
def _take(pool: Any, pages: Any, count: int) -> None:
    ring_take(pool, pages, np.int64(0), np.int64(count))


@entry
def _take_out(tree: Any, pool: Any, node: Any) -> None:
    radix.unhang(tree, pool, node)


@entry
def _give(pool: Any, pages: Any) -> None:
    ring_give(pool, pages, np.int64(0), np.int64(pages.size))


class HiTree:
    """pages: every page that is ever inserted. A node is a number > 0, the root of namespace n is -1 - n."""

    def __init__(self, pages: int, device: BlockPool, host: BlockPool, policy: str, write: str, threshold: int) -> None:
        self.tree = radix.make_tree(pages, policy)
        self.key = by_functions(POLICIES[policy]).key
        self.nodes, self.device_pages = self.tree.nodes, self.tree.blocks
        self.host_pages = np.zeros_like(self.device_pages)
        self.device, self.host = device, host
        self.writes_back, self.threshold = write == "write_back", threshold
        self.row = np.zeros(pages + 1, np.int32)
        self.host_lock: Counter[Node] = Counter()
        self.writing: dict[Node, bool] = {}  # node -> its path is locked for it; in the order of their copies
        self.nobody = make_pool(pages, "append")  # takes what leaves, as much at once as there ever is
        self.on_new: Callable[[Node], None] = lambda node: None
        self.on_copied: Callable[[Node], None] = lambda node: None
        self.lost = 0  # pages of the device that belong to nodes which left the tree while they were loaded
        self.forget()

    def forget(self) -> None:
        """What was seen so far is told."""
        self.demoted: Wanted = []
        self.dropped: Wanted = []
        self.host_evicted: Wanted = []
        self.writes: Wanted = []

    # ---------------------------------------------------------------- nodes

    def length(self, node: Node) -> int:
        return int(self.nodes[node, LENGTH])

    def parent(self, node: Node) -> Node:
        return int(self.nodes[node, PARENT])

    def _run(self, pages: Any, node: Node) -> Any:
        offset = self.nodes[node, OFFSET]
        return pages[offset : offset + self.nodes[node, LENGTH]]

    def on_device(self, node: Node) -> Any:
        return self._run(self.device_pages, node)

    def on_host(self, node: Node) -> Any:
        return self._run(self.host_pages, node)

    def is_on_device(self, node: Node) -> bool:
        return node < 0 or self.on_device(node)[0] != NOWHERE

    def is_backed_up(self, node: Node) -> bool:
        return node < 0 or self.on_host(node)[0] != NOWHERE

    def path(self, node: Node) -> list[Node]:
        """Nodes from below the root to `node`."""
        found = []
        while node > 0:
            found.append(node)
            node = self.parent(node)
        return found[::-1]

    def depth(self, node: Node) -> int:
        """Pages of the path."""
        return sum(map(self.length, self.path(node)))

    def all(self) -> Iterator[Node]:
        return (int(node) for node in np.flatnonzero(self.nodes[:, LENGTH] > 0))

    def last_on_device(self, node: Node) -> Node:
        while not self.is_on_device(node):
            node = self.parent(node)
        return node

    def last_on_host(self, node: Node) -> Node:
        while not self.is_backed_up(node):
            node = self.parent(node)
        return node

    def lock(self, node: Node) -> int:
        """Returns by how many pages of the device fewer can be evicted."""
        before = self.device_sizes()[1]
        radix.lock(self.tree, np.int64(node))
        return before - self.device_sizes()[1]

    def unlock(self, node: Node) -> None:
        radix.unlock(self.tree, np.int64(node))

    def device_sizes(self) -> tuple[int, int, int]:
        """Pages free, evictable, protected."""
        sizes = [0, 0]
        for node in self.all():
            if self.is_on_device(node):
                sizes[int(self.nodes[node, LOCK] > 0)] += self.length(node)
        return int(self.device.num_free), sizes[0], sizes[1] + self.lost

    def host_sizes(self) -> tuple[int, int]:
        """Pages free, and those of leaves that can be evicted."""
        return int(self.host.num_free), sum(self.length(node) for node in self.all() if self._may_leave_host(node))

    # ---------------------------------------------------------------- match, insert

    def match(self, root: Node, keys: Any) -> tuple[Node, int]:
        """Returns where the path ends, and the pages of it that the device has (in row)."""
        if keys.size == 0:
            return root, 0
        node, pages = radix.match(self.tree, np.int64(-1 - root), keys, keys.size, self.row)
        missing = np.flatnonzero(self.row[:pages] == NOWHERE)
        return int(node), int(missing[0] if missing.size else pages)

    def insert(self, node: Node, keys: Any, known: int, pages: Any, priority: int, chunked: bool) -> int:
        """Pages of a key, of which the path to `node` is the first `known`. Returns how many the device had."""
        row = pages.astype(np.int32)
        end, present = radix.insert(
            self.tree, self.nobody, np.int64(node), keys, row, known, keys.size, priority, np.int64(keys.size)
        )
        have, start = 0, 0
        for at in self.path(int(end)):
            stop = start + self.length(at)
            if start >= present:
                self.on_new(at)
                self._count_hit(at, chunked)
            elif not self.is_on_device(at):
                self.on_device(at)[:] = pages[start:stop]
            else:
                have += stop - start
                self._count_hit(at, chunked)
            start = stop
        return have

    def insert_on_host(self, start: Node, keys: Any, pages: Any) -> tuple[int, Node]:
        """Pages of the host below a node. Returns how many were there already, and the end of the path."""
        above = self.path(start)
        stamps = self.nodes[above, ACCESS].tolist()
        row = np.zeros(keys.size, np.int32)
        end, present = radix.insert(
            self.tree, self.nobody, np.int64(start), keys, row, 0, keys.size, np.int64(ROOT_PRIORITY), np.int64(1 << 40)
        )
        if above:
            self.nodes[above[:-1], ACCESS] = stamps[:-1]
        if present < keys.size:
            parent = self.parent(int(end))
            self.nodes[end, PRIORITY] = self.nodes[parent, PRIORITY] if parent > 0 else ROOT_PRIORITY
            self.on_host(int(end))[:] = pages[present:]
        return int(present), int(end)

    def _count_hit(self, node: Node, chunked: bool) -> None:
        if self.writes_back or chunked:
            return
        self.nodes[node, HITS] += 1
        above = self.parent(node)
        if not self.is_backed_up(node) and self.nodes[node, HITS] >= self.threshold and self.is_backed_up(above):
            self.back_up(node, locks=True)

    def back_up(self, node: Node, locks: bool) -> bool:
        """Begin the copy of a node to the host, evicting there if need be. False: there is no space."""
        if not self._reserve(node):
            self.evict_host(self.length(node))
            if not self._reserve(node):
                return False
        self.writing[node] = locks
        if locks:
            self.lock(node)
        return True

    def _reserve(self, node: Node) -> bool:
        count = self.length(node)
        pages = self.take(self.host, count)
        self.writes.append([count, None if pages is None else int(pages[0])])
        if pages is not None:
            self.on_host(node)[:] = pages
        return pages is not None

    @staticmethod
    def take(pool: BlockPool, count: int) -> Any:
        """Pages of a pool, or None when it is short."""
        if pool.num_free < count:
            return None
        pages = np.zeros(count, np.int32)
        _take(pool, pages, count)
        return pages

    @staticmethod
    def give(pool: BlockPool, pages: Sequence[int] | Any) -> None:
        """Pages go back as one group."""
        _give(pool, np.array(pages, np.int32))

    # ---------------------------------------------------------------- eviction

    def _rank(self, node: Node) -> tuple[int, int, Node]:
        return int(self.key(self.nodes, node, self.tree.clock)), int(self.nodes[node, ACCESS]), node

    def _children(self, node: Node) -> list[Node]:
        return [other for other in self.all() if self.parent(other) == node]

    def evict(self, count: int) -> int:
        """Leaves of the device go until `count` pages are free, or none is left. Returns the pages."""
        leaves = [n for n in self.all() if self.is_on_device(n) and self._is_device_leaf(n, ())]
        heap = [self._rank(n) for n in leaves if self.nodes[n, LOCK] == 0]
        heapify(heap)
        freed, leaving = 0, dict[Node, None]()
        while heap and freed < count:
            node = heappop(heap)[2]
            above, pages = self.parent(node), self.length(node)
            if self.is_backed_up(node):
                self._demote(node)
            elif not self.writes_back:
                self._drop(node)
            elif self.back_up(node, locks=False):
                leaving[node] = None
            else:
                continue
            freed += pages
            if above > 0 and self.nodes[above, LOCK] == 0 and self._is_device_leaf(above, leaving):
                heappush(heap, self._rank(above))
        for node in leaving:
            del self.writing[node]
            self.on_copied(node)
        for node in leaving:
            self._demote(node)
        return freed

    def _is_device_leaf(self, node: Node, leaving: Any) -> bool:
        return all(child in leaving or not self.is_on_device(child) for child in self._children(node))

    def _demote(self, node: Node) -> None:
        run = self.on_device(node)
        self.demoted.append([int(run[0]), run.size])
        self.give(self.device, run)
        run[:] = NOWHERE

    def _drop(self, node: Node) -> None:
        run = self.on_device(node)
        self.dropped.append([int(run[0]), run.size])
        self.give(self.device, run)
        self._unhang(node)

    def _unhang(self, node: Node) -> None:
        above = self.parent(node)
        _take_out(self.tree, self.nobody, np.int64(node))
        if above > 0:
            self.nodes[above, CHILDREN] -= 1

    def _may_leave_host(self, node: Node) -> bool:
        is_alone = self.nodes[node, CHILDREN] == 0 and not self.is_on_device(node)
        return bool(is_alone and self.host_lock[node] == 0)

    def evict_host(self, count: int) -> int:
        """Leaves that only the host has go until `count` pages are free, or none is left. Returns the pages."""
        heap = [self._rank(n) for n in self.all() if self._may_leave_host(n)]
        heapify(heap)
        freed = 0
        while heap and freed < count:
            node = heappop(heap)[2]
            above, run = self.parent(node), self.on_host(node).copy()
            self.host_evicted.append([int(run[0]), run.size])
            self.give(self.host, run)
            self.on_host(node)[:] = NOWHERE
            self._unhang(node)
            freed += run.size
            if above > 0 and self._may_leave_host(above):
                heappush(heap, self._rank(above))
        return freed

    # ---------------------------------------------------------------- back to the device

    def load_back(self, node: Node, quota: int | None, least: int) -> Any:
        """The path to a node that only the host has comes back: tokens are there at once. None: it does not."""
        loading = [n for n in self.path(node) if not self.is_on_device(n)]
        above, lengths = self.parent(loading[0]), [self.length(n) for n in loading]
        lost, count = self.lock(above), sum(lengths)
        pages = None
        if count >= least and (quota is None or count <= quota - lost):
            pages = self.take(self.device, count)
            if pages is None:
                self.evict(count)
                pages = self.take(self.device, count)
        self.unlock(above)
        if pages is None:
            return None
        self.lost += sum(length for n, length in zip(loading, lengths, strict=True) if self.length(n) == 0)
        loading = [n for n in loading if self.length(n) > 0]
        first = 0
        for n in loading:
            self.on_device(n)[:] = pages[first : first + self.length(n)]
            first += self.length(n)
        self.lock(loading[-1] if loading else above)
        return pages
