"""Eviction policies in the engine: runs that hold together, both paths equal, cache-only against plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.jit import PLAIN
from kvbench.engine.build import block_costs
from kvbench.engine.integrity_order import check_hash_order, check_tree_order
from kvbench.engine.settings import EngineSettings
from kvbench.prefix import node
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.scheduler.state import Engine

from ..offline.test_replay import hash_hits, radix_hits, random_asks, replayed, settings
from ..reference.eviction import OWN, STAMPS, CostAware, PolicyPool, PolicyTree, TailLru
from .compare import gap_counts, journal_rows, small_tables
from .test_runs import SGLANG, VLLM, mixed_asks
from .workloads import request_table


def with_policy(system: EngineSettings, policy: str, **more: Any) -> EngineSettings:
    tail = TailLru.tail * system.block_tokens
    return replace(system, cache=replace(system.cache, eviction=policy, tlru_threshold=tail, **more))


HASHED = replace(VLLM, fast=False)
ON_RADIX = {"sglang": SGLANG, "vllm-radix": with_policy(VLLM, "lru", kind="radix", free_order="auto")}


def outcome(system: EngineSettings) -> tuple[Any, ...]:
    simulation = Simulation(request_table(mixed_asks()), system, small_tables())
    simulation.run()
    counters = asdict(simulation.counters())
    assert counters["evicted_blocks"] > 30
    del counters["path"], counters["metadata_bytes"]
    return journal_rows(simulation), gap_counts(simulation), counters


@pytest.mark.parametrize("policy", OWN)
@pytest.mark.parametrize("name", ON_RADIX)
def test_a_tree_holds_together_and_both_paths_are_equal(name, policy):
    system = with_policy(ON_RADIX[name], policy)
    assert outcome(replace(system, fast=False, check=True)) == outcome(system)


@pytest.mark.parametrize("policy", STAMPS | OWN)
def test_block_hash_holds_together(policy):
    outcome(with_policy(replace(VLLM, check=True), policy))


def test_on_block_hash_lru_and_nothing_are_the_free_queue():
    assert outcome(with_policy(VLLM, "")) == outcome(with_policy(VLLM, "lru")) == outcome(VLLM)
    assert outcome(with_policy(VLLM, "mru")) != outcome(VLLM)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_is_its_seed(seed):
    system = replace(with_policy(SGLANG, "random"), seed=seed)
    assert outcome(system) == outcome(system)


# ---------------------------------------------------------------- cache only


@pytest.fixture
def costs(monkeypatch):
    """Step times, and the recompute times that the reference is to take from them."""
    ns = block_costs(POLICIES["cost-aware"], small_tables(), 4, 40)
    monkeypatch.setattr(CostAware, "block_ns", tuple(ns.tolist()))
    return small_tables()


def test_deep_blocks_cost_more(costs):
    assert CostAware.block_ns[0] > 0
    assert np.all(np.diff(CostAware.block_ns) >= 0)
    assert CostAware.block_ns[-1] > CostAware.block_ns[0]


@pytest.mark.parametrize("num_blocks", [17, 60])
@pytest.mark.parametrize("policy", STAMPS | OWN)
def test_hits_on_block_hash_are_those_of_a_plain_cache(policy, num_blocks, costs):
    asks = random_asks(seed=num_blocks)
    got = replayed(request_table(asks), with_policy(replace(settings("hash", num_blocks, 4), seed=9), policy), costs)
    pool = PolicyPool(num_blocks + 1, (STAMPS | OWN)[policy](num_blocks, 9))
    assert (got["hit_blocks"], got["evicted_blocks"]) == hash_hits(asks, num_blocks, 4, pool)
    assert got["hit_blocks"] > 0


@pytest.mark.parametrize("num_blocks", [17, 60])
@pytest.mark.parametrize("policy", OWN)
def test_hits_on_the_tree_are_those_of_a_plain_cache(policy, num_blocks, costs):
    asks = random_asks(seed=num_blocks)
    got = replayed(request_table(asks), with_policy(replace(settings("radix", num_blocks, 4), seed=9), policy), costs)
    tree = PolicyTree(OWN[policy](num_blocks, 9))
    assert (got["hit_blocks"], got["evicted_blocks"]) == radix_hits(asks, num_blocks, 4, tree)
    assert got["hit_blocks"] > 0


# ---------------------------------------------------------------- planted damage


def engine_with(policy: str, system: EngineSettings) -> Engine:
    """Half of the work done: what was evicted is remembered, candidates are there."""
    simulation = Simulation(request_table(mixed_asks()), with_policy(system, policy), small_tables())
    while True:
        assert not simulation.advance(max_steps=1)
        e = simulation.engine
        order = e.tree.order if system.cache.kind == "radix" else e.hashes.order
        live = order.nodes[:, node.LENGTH] > 0
        idle = (order.nodes[:, node.LOCK] == 0) & (order.nodes[:, node.CHILDREN] == 0)
        if (live & idle).sum() > 2 and (policy != "s3fifo" or order.ghosts.blocks > 0):
            return e


def some_node(order: Any) -> int:
    return int(np.flatnonzero(order.nodes[:, node.LENGTH] > 0)[0])


def _candidate(order: Any) -> int:
    nodes = order.nodes
    idle = (nodes[:, node.LENGTH] > 0) & (nodes[:, node.LOCK] == 0) & (nodes[:, node.CHILDREN] == 0)
    return int(np.flatnonzero(idle)[0])


def forget_a_key(order: Any) -> None:
    order.nodes[_candidate(order), node.KEY] += 1


def touch_without_an_offer(order: Any) -> None:
    order.nodes[_candidate(order), node.ACCESS] += 1000


def misplace(order: Any) -> None:
    order.nodes[some_node(order), node.DEPTH] += 1


def misprice(order: Any) -> None:
    order.nodes[some_node(order), node.COST] += 1


def miscount_the_small_queue(order: Any) -> None:
    order.nodes[node.SHARED, node.WORD_A] += 1


def misname(order: Any) -> None:
    order.names[some_node(order)] ^= 1


def remember_too_much(order: Any) -> None:
    order.ghosts.blocks += 1


def lose_a_ghost(order: Any) -> None:
    order.ghosts.table[np.flatnonzero(order.ghosts.table)[0]] = 0


def show_a_block(order: Any) -> None:
    order.nodes[np.flatnonzero(order.nodes[1:, node.LENGTH] == 0)[0] + 1, node.LENGTH] = 1


def hold_a_block(order: Any) -> None:
    order.nodes[_candidate(order), node.LOCK] = 1


ANY = [(p, d) for p in ("sieve", "s3fifo", "lfu") for d in (forget_a_key, touch_without_an_offer)]
ANY += [("cost-aware", misprice)]
ANY += [("s3fifo", d) for d in (miscount_the_small_queue, remember_too_much, lose_a_ghost)]


@pytest.mark.skipif(not PLAIN, reason="scalars of the state are set by hand")
@pytest.mark.parametrize(("policy", "damage"), [*ANY, ("s3fifo", misname), ("sieve", misplace)])
def test_damage_to_the_order_of_a_tree_is_seen(policy: str, damage: Callable[[Any], None]):
    e = engine_with(policy, replace(SGLANG, fast=False))
    check_tree_order(e.tree)
    damage(e.tree.order)
    with pytest.raises(KvbenchError, match="integrity"):
        check_tree_order(e.tree)


@pytest.mark.skipif(not PLAIN, reason="scalars of the state are set by hand")
@pytest.mark.parametrize(("policy", "damage"), [*ANY, ("lru-k", show_a_block), ("lru-k", hold_a_block)])
def test_damage_to_the_order_of_blocks_is_seen(policy: str, damage: Callable[[Any], None]):
    e = engine_with(policy, HASHED)
    check_hash_order(e.pool, e.hashes)
    damage(e.hashes.order)
    with pytest.raises(KvbenchError, match="integrity"):
        check_hash_order(e.pool, e.hashes)


@pytest.mark.skipif(not PLAIN, reason="scalars of the state are set by hand")
def test_an_invisible_block_behind_a_visible_one_is_seen():
    e = engine_with("sieve", HASHED)
    last = int(e.pool.before[0])
    e.pool.content[last] = e.hashes.order.nodes[last, node.LENGTH] = 0
    with pytest.raises(KvbenchError, match="waits behind"):
        check_hash_order(e.pool, e.hashes)
