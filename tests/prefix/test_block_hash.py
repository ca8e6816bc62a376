"""The block-hash cache against plain Python: order of the queue, copies of equal content, evictions, look-ups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.memory import pool as product_pool
from kvbench.memory.pool import make_pool
from kvbench.prefix import block_hash
from kvbench.prefix.block_hash import HashMap, make_map
from kvbench.prefix.keys import block_keys

from ..engine.workloads import request_table
from ..reference.block_hash import NO_CHAIN, BlockPool, ChainTable
from ..reference.engine import Ask
from ..reference.timed import block_contents

BLOCK_TOKENS = 2
DEPTH = 6
"""Blocks of a sequence."""
NUM_SEQUENCES = 12


@entry
def give(pool, row, n):
    product_pool.list_give(pool, row, n)


@entry
def rebuild(hashes, pool):
    block_hash.rebuild(hashes, pool)


def small_asks() -> list[Ask]:
    """Sequences that share prefixes of 0, 2 or 4 blocks, and some that are wholly alike or in another namespace."""
    asks = []
    for i in range(NUM_SEQUENCES):
        shared = BLOCK_TOKENS * (0, 2, 4, 4)[i % 4]
        runs = [(1 + i % 2, 0, shared)] if shared else []
        runs.append((10 + i // 4, 0, BLOCK_TOKENS * DEPTH - shared))
        asks.append(Ask(runs, [(100 + i, 0, 1)], namespace=i // 8))
    return asks


class Both:
    """The product's cache and the plain one, led through the same operations.

    table_size  of the hash table: few entries make probes long and sweeps frequent; 0 is the product's own
    """

    def __init__(self, num_blocks: int, order: str, table_size: int = 0, eviction: Any = "lru", **more: Any) -> None:
        asks = small_asks()
        self.keys = block_keys(request_table(asks), BLOCK_TOKENS)
        self.namespaces = [ask.namespace for ask in asks]
        self.pool = make_pool(num_blocks, order)
        fields = make_map(num_blocks, 10_000, eviction, **more).read()
        if table_size:
            fields["table"] = np.zeros(table_size, np.int64)
        self.hashes = HashMap(*fields.values())
        self.scratch = np.zeros(DEPTH, np.int64)
        self.plain = BlockPool(num_blocks + 1, frees_unhashed_to_front=order == "unhashed-first")
        chains = ChainTable()
        self.chains = []
        for ask in asks:
            own = [chains.root(ask.namespace)]
            for key in block_contents(ask.prompt, BLOCK_TOKENS):
                own.append(chains.extend(own[-1], key))
            self.chains.append(own[1:])
        self.tables: list[dict[str, Any]] = []
        self.evicted: list[int] = []

    def match(self, sequence: int, limit: int) -> tuple[list[int], int]:
        """Blocks found, and the chain hash to go on from."""
        row = np.zeros(DEPTH, np.int32)
        namespace = self.namespaces[sequence]
        found, content, unreferenced = block_hash.match(
            self.hashes, self.pool, self.keys, sequence, namespace, limit, self.scratch, row
        )
        hits = row[:found].tolist()
        assert hits == self.plain.match(self.chains[sequence][:limit])
        assert unreferenced == sum(self.plain.num_refs[block] == 0 for block in hits)
        return hits, content

    def start(self, sequence: int, looks_up: bool, wanted: int) -> None:
        """A table with the hits, if it looks them up, and new blocks of which none is visible yet."""
        hits, content = self.match(sequence, wanted if looks_up else 0)
        row = np.zeros(DEPTH, np.int32)
        row[: len(hits)] = hits
        self.share(sequence, row, hits)
        counts = dict.fromkeys(("hits", "blocks", "visible"), len(hits))
        self.tables.append({"sequence": sequence, "row": row, "content": content, "is_closed": False} | counts)
        self.grow(self.tables[-1], wanted - len(hits))

    def share(self, sequence: int, row: np.ndarray, hits: list[int]) -> None:
        block_hash.share(self.pool, row, len(hits))
        self.plain.share(hits)

    def grow(self, table: dict[str, Any], n: int) -> None:
        have = table["blocks"]
        stop = min(have + n, DEPTH, have + self.pool.num_free)
        block_hash.take(self.hashes, self.pool, table["row"], have, stop)
        assert table["row"][have:stop].tolist() == self.plain.take(stop - have)
        self.evicted += self.plain.drain_evicted()
        table["blocks"] = stop

    def publish(self, table: dict[str, Any], n: int) -> None:
        start, stop = table["visible"], min(table["visible"] + n, table["blocks"])
        if stop == start or table["is_closed"]:
            return
        sequence = table["sequence"]
        args = (self.hashes, self.pool, self.keys, sequence, table["content"], table["row"], start, stop, self.scratch)
        table["content"] = block_hash.publish(*args)
        for i in range(start, stop):
            self.register(table, i)
        table["visible"] = stop

    def register(self, table: dict[str, Any], index: int) -> None:
        self.plain.register(int(table["row"][index]), self.chains[table["sequence"]][index])

    def withdraw(self, table: dict[str, Any]) -> None:
        """What it made visible itself is taken back; it publishes nothing any more."""
        row, start, stop = table["row"], table["hits"], table["visible"]
        block_hash.withdraw(self.hashes, self.pool, row, start, stop)
        for block in row[start:stop].tolist():
            copies = self.plain.copies_of[self.plain.chain_of[block]]
            del copies[block]
            if not copies:
                del self.plain.copies_of[self.plain.chain_of[block]]
            self.plain.chain_of[block] = NO_CHAIN
        table["visible"] = table["hits"]
        table["is_closed"] = True

    def end(self, index: int) -> None:
        table = self.tables.pop(index)
        give(self.pool, table["row"], table["blocks"])
        self.plain.give_back(table["row"][: table["blocks"]].tolist())

    def check(self) -> None:
        assert self.free_order() == list(self.plain.free_queue)
        self.check_but_order()

    def free_order(self) -> list[int]:
        order, block = [], int(self.pool.after[0])
        while block:
            order.append(block)
            block = int(self.pool.after[block])
        return order

    def check_but_order(self) -> None:
        rows = [t["row"][: t["blocks"]].tolist() for t in self.tables]
        self.plain.check_integrity(rows)
        order = self.free_order()
        visible = [chain != NO_CHAIN for chain in self.plain.chain_of[1:]]
        assert (self.pool.content[1:] != 0).tolist() == visible
        assert self.pool.refs[1:].tolist() == self.plain.num_refs[1:]
        assert self.pool.cached == sum(visible[b - 1] for b in order)
        assert self.hashes.distinct == self.plain.num_cached_chains
        assert self.hashes.log[: self.hashes.log_size].tolist() == self.evicted
        assert self.hashes.used == int((self.hashes.table != 0).sum())
        for sequence in range(NUM_SEQUENCES):
            self.match(sequence, DEPTH)


def random_operation(both: Both, draw: Any) -> None:
    action = draw(
        st.sampled_from(["start", "start", "grow", "publish", "publish", "end", "end", "withdraw", "rebuild"])
    )
    if action == "start":
        both.start(draw(st.integers(0, NUM_SEQUENCES - 1)), draw(st.booleans()), draw(st.integers(1, DEPTH)))
        if draw(st.booleans()):
            both.publish(both.tables[-1], DEPTH)
    elif action == "rebuild":
        rebuild(both.hashes, both.pool)
    elif both.tables:
        index = draw(st.integers(0, len(both.tables) - 1))
        if action == "end":
            both.end(index)
        elif action == "withdraw":
            both.withdraw(both.tables[index])
        else:
            getattr(both, action)(both.tables[index], draw(st.integers(1, DEPTH)))


@pytest.mark.parametrize("order", ["tail", "unhashed-first"])
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), num_blocks=st.integers(2, 24), small_table=st.booleans())
def test_random_operations(order, data, num_blocks, small_table):
    both = Both(num_blocks, order, table_size=32 if small_table and num_blocks <= 12 else 0)
    for _ in range(data.draw(st.integers(1, 40))):
        random_operation(both, data.draw)
        both.check()


def test_stale_entries_are_swept():
    """Long churn in a small table: entries of what was evicted pile up, are swept, and nothing is forgotten."""
    random = np.random.default_rng(3)
    both = Both(9, "tail", table_size=32)
    most_stale, sweeps, before = 0, 0, 0
    for _ in range(1500):
        both.start(int(random.integers(NUM_SEQUENCES)), bool(random.integers(2)), DEPTH)
        both.publish(both.tables[-1], DEPTH)
        while both.pool.num_free < 3 or len(both.tables) > 3:
            both.end(int(random.integers(len(both.tables))))
        stale = int((both.hashes.table != 0).sum()) - both.hashes.distinct
        most_stale, sweeps, before = max(most_stale, stale), sweeps + (stale < before - 5), stale
        both.check()
    assert most_stale > 5
    assert sweeps > 2
    assert len(both.evicted) > 1000


def test_the_earliest_copy_answers_and_the_next_one_after_it():
    both = Both(3, "tail")
    for _ in range(3):
        both.start(0, looks_up=False, wanted=1)
        both.publish(both.tables[-1], 1)
    for answer in (1, 2, 3):
        assert both.match(0, 1)[0] == [answer]
        both.end(0)
        both.start(1, looks_up=False, wanted=1)  # takes the only free block, that copy, and keeps it
        both.check()
    assert both.match(0, 1)[0] == []
    assert both.evicted == [1, 2, 3]
