"""The radix tree against plain Python, operation by operation: hits, blocks, evictions, stamps, sizes, free queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.memory import pool as product_pool
from kvbench.memory.pool import make_pool
from kvbench.prefix import radix
from kvbench.prefix.node import CHILDREN, HITS, LENGTH, LOCK, OFFSET, PARENT, PRIORITY

from ..memory.test_pool import ring_order
from ..reference.radix import EVICTION_RANKS, RadixTree
from ..reference.sglang_memory import TokenAllocator

NAMESPACES = 2
LONGEST = 12
TAIL = 3
"""Blocks that tlru may drop; the reference's own number."""
SEED = 3


@entry
def take(pool, row, start, stop):
    product_pool.ring_take(pool, row, start, stop)


@entry
def use(tree, node):
    radix.hit(tree, node)


class Both:
    """The product's tree and the plain one over one pool each. A key is a small int, its block comes from the pool."""

    def __init__(self, policy: str, num_blocks: int, plain: Any = None, block_ns: Any = ()) -> None:
        self.tree = radix.make_tree(num_blocks, policy, 5000, block_ns, SEED, tail=TAIL)
        self.pool = make_pool(num_blocks, "append")
        self.plain, self.plain_pool = plain or RadixTree(policy), TokenAllocator(num_blocks)
        self.locks: list[tuple[int, Any]] = []
        self.appended = 0

    def match(self, namespace: int, path: list[int]) -> tuple[Any, Any, np.ndarray]:
        """The node in both trees, and the blocks found."""
        keys, row = np.array(path, np.int64), np.zeros(LONGEST, np.int32)
        node, found = radix.match(self.tree, np.int64(namespace), keys, len(path), row)
        plain = self.plain.match_and_split(path, namespace)
        assert row[:found].tolist() == plain.values
        return node, plain.node, row[:found]

    def visit(self, namespace: int, path: list[int], priority: int, is_chunk: bool) -> None:
        """What a request does: match, lock, room for the rest (evicting), insert behind the hits, unlock."""
        node, plain_node, hits = self.match(namespace, path)
        self.use(node, plain_node)
        radix.lock(self.tree, node)
        self.plain.lock(plain_node)
        missing = len(path) - hits.size
        if self.pool.num_free < missing:
            self.evict(missing - self.pool.num_free)
        stop = min(len(path), hits.size + self.pool.num_free)
        self._insert(node, namespace, path[:stop], hits, priority, is_chunk)
        radix.unlock(self.tree, node)
        self.plain.unlock(plain_node)

    def use(self, node: Any, plain_node: Any) -> None:
        """Policies that are more than a stamp hear of it (test_eviction.py)."""
        use(self.tree, node)

    def insert_again(self, namespace: int, path: list[int], priority: int) -> None:
        """Insert from the root with blocks of its own: duplicates of what is there go back to the pool."""
        path = path[: self.pool.num_free]
        if path:
            self._insert(np.int64(-1 - namespace), namespace, path, np.zeros(0, np.int32), priority, False)

    def _insert(
        self, node: Any, namespace: int, path: list[int], hits: np.ndarray, priority: int, is_chunk: bool
    ) -> None:
        start, stop = hits.size, len(path)
        row = np.zeros(LONGEST, np.int32)
        row[:start] = hits
        take(self.pool, row, start, stop)
        mine = self.plain_pool.take(stop - start)
        assert row[start:stop].tolist() == mine
        keys = np.array(path, np.int64)
        counted = np.int64(stop if is_chunk else 0)
        args = (self.tree, self.pool, node, keys, row, start, stop, priority, counted)
        end, present = radix.insert(*args)
        values = hits.tolist() + mine
        assert present == self.plain.insert(path, values, namespace, priority, is_chunk)
        self.plain_pool.free(values[start:present])
        self.appended += stop - present
        assert self._path(end) == path
        assert self._blocks(end) == row[:stop].tolist()

    def evict(self, n: int) -> None:
        logged = self.tree.log_size
        freed = radix.evict(self.tree, self.pool, n)
        segments = self.plain.evict(n)
        for values in segments:
            self.plain_pool.free(values)
        log = self.tree.log[logged : self.tree.log_size]
        assert [self.tree.blocks[o : o + length].tolist() for o, length in log] == segments
        assert freed == sum(map(len, segments))

    def lock(self, namespace: int, path: list[int]) -> None:
        node, plain_node, _ = self.match(namespace, path)
        self.use(node, plain_node)
        assert -radix.lock(self.tree, node) == self.plain.lock(plain_node)
        self.locks.append((node, plain_node))

    def unlock(self, index: int) -> None:
        node, plain_node = self.locks.pop(index)
        assert radix.unlock(self.tree, node) == self.plain.unlock(plain_node)

    def _up(self, node: int) -> list[int]:
        nodes: list[int] = []
        while node > 0:
            nodes.insert(0, int(node))
            node = self.tree.nodes[node, PARENT]
        return nodes

    def _run(self, node: int) -> slice:
        offset = int(self.tree.nodes[node, OFFSET])
        return slice(offset, offset + int(self.tree.nodes[node, LENGTH]))

    def _path(self, node: int) -> list[int]:
        return [key for n in self._up(node) for key in self.tree.keys[self._run(n)].tolist()]

    def _blocks(self, node: int) -> list[int]:
        return [block for n in self._up(node) for block in self.tree.blocks[self._run(n)].tolist()]

    def check(self) -> None:
        """The same nodes with the same counts, sizes and free blocks; the plain tree is sound."""
        self.plain.check_integrity()
        assert (self.tree.evictable, self.tree.protected) == (self.plain.num_evictable, self.plain.num_protected)
        assert ring_order(self.pool) == list(self.plain_pool._free)
        assert self._rows() == self._plain_rows()
        assert self.tree.num_free_nodes + len(self._plain_rows()) == self.tree.free_nodes.size

    def _rows(self) -> dict[Any, Any]:
        rows, nodes = {}, self.tree.nodes
        for node in np.flatnonzero(nodes[:, LENGTH] > 0):
            top = self._up(int(node))[0]
            key = (-1 - int(nodes[top, PARENT]), tuple(self._path(int(node))))
            columns = [int(nodes[node, c]) for c in (LENGTH, LOCK, HITS, PRIORITY, CHILDREN)]
            rows[key] = (columns, self.tree.blocks[self._run(int(node))].tolist())
        return rows

    def _plain_rows(self) -> dict[Any, Any]:
        rows = {}
        paths: dict[Any, tuple[int, ...]] = {self.plain.root: ()}
        for node in self.plain.nodes():
            paths[node] = paths[node.parent] + tuple(node.keys)
            columns = [len(node.keys), node.lock_ref, node.hit_count, node.priority, len(node.children)]
            rows[(node.namespace, paths[node])] = (columns, list(node.values))
        return rows


paths = st.lists(st.integers(0, 2), min_size=1, max_size=LONGEST)
"""Few keys, so that paths meet, end inside nodes and split them."""


def random_operation(both: Both, draw: Any) -> None:
    action = draw(st.sampled_from(["visit", "visit", "visit", "again", "match", "lock", "unlock", "evict"]))
    namespace = draw(st.integers(0, NAMESPACES - 1))
    if action == "visit":
        both.visit(namespace, draw(paths), draw(st.integers(-1, 2)), draw(st.booleans()))
    elif action == "again":
        both.insert_again(namespace, draw(paths), draw(st.integers(-1, 2)))
    elif action == "match":
        both.match(namespace, draw(paths))
    elif action == "lock":
        both.lock(namespace, draw(paths))
    elif action == "evict":
        both.evict(draw(st.integers(1, 8)))
    elif both.locks:
        both.unlock(draw(st.integers(0, len(both.locks) - 1)))


@pytest.mark.parametrize("policy", EVICTION_RANKS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), num_blocks=st.integers(1, 40))
def test_random_operations(policy, data, num_blocks):
    both = Both(policy, num_blocks)
    for _ in range(data.draw(st.integers(1, 40))):
        random_operation(both, data.draw)
        both.check()


@pytest.mark.parametrize("policy", EVICTION_RANKS)
def test_long_churn_compacts_the_arena_and_rebuilds_the_heap(policy):
    """A small tree through which far more goes than its arena and its heap hold."""
    both = Both(policy, 24)
    churn(both, np.random.default_rng(5), rounds=900)
    assert both.appended > 3 * both.tree.keys.size
    both.check()


def churn(both: Both, random: np.random.Generator, rounds: int) -> None:
    for step in range(rounds):
        path = random.integers(0, 3, int(random.integers(1, LONGEST + 1))).tolist()
        namespace = int(random.integers(NAMESPACES))
        if both.locks and (len(both.locks) > 2 or random.integers(2)):
            both.unlock(int(random.integers(len(both.locks))))
        if random.integers(4) == 0:
            both.lock(namespace, path)
        both.visit(namespace, path, int(random.integers(3)), bool(random.integers(2)))
        if step % 7 == 0:
            both.check()


def test_a_locked_path_survives_any_eviction():
    both = Both("lru", 16)
    both.visit(0, [1, 2, 3, 4, 5], 0, False)
    both.visit(0, [1, 2, 7], 0, False)
    both.lock(0, [1, 2, 3])
    both.evict(100)
    both.check()
    assert both.match(0, [1, 2, 3, 4, 5])[2].size == 3
    assert both.match(0, [1, 2, 7])[2].size == 2
    both.unlock(0)
    both.evict(100)
    assert both.tree.evictable == both.tree.protected == 0
    assert both.pool.num_free == 16


def test_namespaces_share_nothing():
    both = Both("lru", 16)
    both.visit(0, [1, 2, 3], 0, False)
    assert both.match(1, [1, 2, 3])[2].size == 0
    both.visit(1, [1, 2, 3], 0, False)
    blocks = [both.match(namespace, [1, 2, 3])[2].tolist() for namespace in (0, 1)]
    assert not set(blocks[0]) & set(blocks[1])
    both.check()
