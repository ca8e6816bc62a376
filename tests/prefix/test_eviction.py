"""Policies that are more than a stamp, on the tree and on block hash, against plain Python: victim by victim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.jit import entry
from kvbench.engine.integrity_order import check_hash_order, check_tree_order
from kvbench.prefix import block_hash, ranked
from kvbench.prefix.eviction.policies import POLICIES, Policy
from kvbench.prefix.leaf_heap import make_order
from kvbench.prefix.node import ACCESS, NODE_COLUMNS
from kvbench.scheduler.rules import EVICTION

from ..reference.block_hash import NO_CHAIN
from ..reference.eviction import OWN, STAMPS, CostAware, PolicyPool, PolicyTree
from . import test_block_hash, test_radix

BLOCK_NS = [5 + 3 * i + i * i % 7 for i in range(test_radix.LONGEST)]
CostAware.block_ns = tuple(BLOCK_NS)

MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def test_every_policy_has_a_line_for_the_user_and_a_reference():
    assert list(POLICIES) == list(EVICTION)
    assert {"lru", *OWN, *STAMPS} == set(POLICIES)


def test_a_policy_of_costs_wants_step_times():
    with pytest.raises(UsageError, match="no step times"):
        make_order(np.zeros((4, NODE_COLUMNS), np.int64), 3, POLICIES["cost-aware"])


# ---------------------------------------------------------------- the tree


class OnTree(test_radix.Both):
    def __init__(self, policy: str, num_blocks: int) -> None:
        self.policy = OWN[policy](num_blocks, test_radix.SEED)
        super().__init__(policy, num_blocks, PolicyTree(self.policy), BLOCK_NS)

    def use(self, node: Any, plain_node: Any) -> None:
        super().use(node, plain_node)
        self.plain.hit(plain_node)

    def check(self) -> None:
        super().check()
        check_tree_order(self.tree)


@pytest.mark.parametrize("policy", OWN)
@MANY
@given(data=st.data(), num_blocks=st.integers(1, 40))
def test_random_operations_on_the_tree(policy, data, num_blocks):
    both = OnTree(policy, num_blocks)
    for _ in range(data.draw(st.integers(1, 40))):
        test_radix.random_operation(both, data.draw)
        both.check()


@pytest.mark.parametrize("policy", OWN)
def test_long_churn_on_the_tree(policy):
    both = OnTree(policy, 40)
    test_radix.churn(both, np.random.default_rng(5), rounds=900)
    both.check()
    if policy == "s3fifo":
        assert min(both.policy.recalled, both.policy.forgotten) > 20


# ---------------------------------------------------------------- block hash


@entry
def note(hashes, pool, event, row, start, stop, priority):
    block_hash.note(hashes, pool, event, row, start, stop, priority)


class OnHash(test_block_hash.Both):
    """Sequences have a priority of their own: the number modulo 3."""

    def __init__(self, policy: str | Policy, num_blocks: int, plain: Any) -> None:
        super().__init__(num_blocks, "unhashed-first", eviction=policy, block_ns=BLOCK_NS, seed=7)
        self.plain = plain

    def tell(self, event: int, table: dict[str, Any], start: int, stop: int) -> None:
        note(self.hashes, self.pool, event, table["row"], start, stop, np.int64(table["sequence"] % 3))

    def share(self, sequence: int, row: np.ndarray, hits: list[int]) -> None:
        super().share(sequence, row, hits)
        self.tell(ranked.SHARED_AGAIN, {"sequence": sequence, "row": row}, 0, len(hits))

    def publish(self, table: dict[str, Any], n: int) -> None:
        start = table["visible"]
        super().publish(table, n)
        self.tell(ranked.REGISTERED, table, start, table["visible"])

    def register(self, table: dict[str, Any], index: int) -> None:
        sequence = table["sequence"]
        self.plain.publish(int(table["row"][index]), self.chains[sequence][index], index, sequence % 3)

    def withdraw(self, table: dict[str, Any]) -> None:
        for block in table["row"][table["hits"] : table["visible"]].tolist():
            self.plain.withdraw(block)
        super().withdraw(table)

    def end(self, index: int) -> None:
        table = self.tables[index]
        super().end(index)
        self.tell(ranked.RELEASED, table, 0, table["blocks"])

    def check(self) -> None:
        self.check_but_order()
        order = self.free_order()
        visible = [self.plain.chain_of[block] != NO_CHAIN for block in order]
        assert visible == sorted(visible)
        check_hash_order(self.pool, self.hashes)


def churn(both: OnHash, rounds: int) -> None:
    random = np.random.default_rng(3)
    for _ in range(rounds):
        both.start(
            int(random.integers(test_block_hash.NUM_SEQUENCES)), bool(random.integers(4)), 1 + int(random.integers(6))
        )
        both.publish(both.tables[-1], int(random.integers(1, 7)))
        if random.integers(6) == 0:
            both.withdraw(both.tables[-1])
        while both.pool.num_free < 3 or len(both.tables) > 3:
            both.end(int(random.integers(len(both.tables))))
        both.check()


def policies_on_hash() -> dict[str, Any]:
    return STAMPS | OWN


@pytest.mark.parametrize("policy", policies_on_hash())
@MANY
@given(data=st.data(), num_blocks=st.integers(2, 24))
def test_random_operations_on_block_hash(policy, data, num_blocks):
    both = OnHash(policy, num_blocks, PolicyPool(num_blocks + 1, policies_on_hash()[policy](num_blocks, 7)))
    for _ in range(data.draw(st.integers(1, 40))):
        test_block_hash.random_operation(both, data.draw)
        both.check()


@pytest.mark.parametrize("policy", policies_on_hash())
def test_long_churn_on_block_hash(policy):
    plain = PolicyPool(24 + 1, policies_on_hash()[policy](24, 7))
    both = OnHash(policy, 24, plain)
    churn(both, 600)
    assert len(both.evicted) > 500
    if policy == "s3fifo":
        assert min(plain.policy.recalled, plain.policy.forgotten) > 20


def last_access(nodes, node, now):
    return nodes[node, ACCESS]


def test_lru_is_the_free_queue():
    """Ordered by last access through a heap, blocks leave as they stand in the queue: lru needs no heap there."""
    ordered = OnHash(Policy(key=last_access), 15, test_block_hash.BlockPool(16, frees_unhashed_to_front=True))
    assert ordered.hashes.ranked
    ordered.register = lambda table, index: test_block_hash.Both.register(ordered, table, index)
    ordered.withdraw = lambda table: test_block_hash.Both.withdraw(ordered, table)
    churn(ordered, 400)
    assert len(ordered.evicted) > 300
    assert not block_hash.make_map(15, 0, "lru").ranked
