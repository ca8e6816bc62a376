"""check_integrity sees planted damage: each of these is a fault that a wrong scheduler or cache would leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.jit import PLAIN
from kvbench.engine.integrity import check_integrity
from kvbench.engine.partition import is_intact
from kvbench.engine.settings import EngineSettings
from kvbench.prefix import node
from kvbench.prefix.block_hash import GONE, find_entry
from kvbench.scheduler.state import Engine
from kvbench.scheduler.state_columns import (
    BLOCKS,
    COMPUTED,
    FIRST_TERMINAL,
    FOLLOWS,
    KEPT_SLOT,
    NO_REQUEST,
    PARENT,
    PHASE,
    PUBLISHED,
    WANTED,
)

from .compare import small_tables
from .test_runs import SGLANG, VLLM, mixed_asks
from .workloads import request_table

pytestmark = pytest.mark.skipif(not PLAIN, reason="scalars of the state are set by hand")

Damage = Callable[[Engine], None]


def half_way(system: EngineSettings, ready: Callable[[Simulation], bool]) -> Engine:
    """An engine in the middle of its work: sequences run and have ended, blocks are free, cached, shared, private."""
    simulation = Simulation(request_table(mixed_asks()), replace(system, fast=False), small_tables())
    while not ready(simulation):
        assert not simulation.advance(max_steps=1)
    check_integrity(simulation.engine)
    return simulation.engine


def is_busy(simulation: Simulation) -> bool:
    e = simulation.engine
    if min(e.pool.num_free, e.slots.running, e.num_done) < 2:
        return False
    slots = [int(s) for s in e.seqs.slot if s >= 0]
    if not any(e.slots.rec[s, BLOCKS] > e.slots.rec[s, PUBLISHED] for s in slots):
        return False
    if simulation.settings.cache.kind != "radix":
        return bool((e.pool.content[1:] == 0).any() and e.pool.cached > 0)
    parents = e.tree.nodes[live_nodes(e), node.PARENT]
    return bool(e.tree.evictable > 0 and (parents > 0).any() and np.unique(parents).size < parents.size)


def first_free(e: Engine) -> int:
    return int(e.pool.after[0])


def running_slot(e: Engine, private: bool = False) -> int:
    """A slot with a block; private: with one that is not published."""
    rec = e.slots.rec
    slots = [int(s) for s in e.seqs.slot if s >= 0]
    return next(s for s in slots if rec[s, BLOCKS] > (rec[s, PUBLISHED] if private else 0))


# ---------------------------------------------------------------- blocks with reference counts


def leak_a_free_block(e: Engine) -> None:
    block = first_free(e)
    following = int(e.pool.after[block])
    e.pool.after[0], e.pool.before[following] = following, 0
    e.pool.num_free -= 1


def free_a_used_block(e: Engine) -> None:
    block = int(e.slots.table[running_slot(e), 0])
    head = first_free(e)
    e.pool.after[0], e.pool.before[head] = block, block
    e.pool.after[block], e.pool.before[block] = head, 0
    e.pool.num_free += 1


def hold_a_free_block(e: Engine) -> None:
    e.slots.table[running_slot(e), 0] = first_free(e)


def lose_a_reference(e: Engine) -> None:
    e.pool.refs[e.slots.table[running_slot(e), 0]] -= 1


def invent_a_reference(e: Engine) -> None:
    e.pool.refs[e.slots.table[running_slot(e), 0]] += 1


def tear_the_queue(e: Engine) -> None:
    second = int(e.pool.after[first_free(e)])
    e.pool.before[second] = second


def cut_the_queue_short(e: Engine) -> None:
    e.pool.after[first_free(e)] = 0


def forget_the_tail(e: Engine) -> None:
    e.pool.before[0] = first_free(e)


def miscount_free(e: Engine) -> None:
    e.pool.num_free += 1


def miscount_cached(e: Engine) -> None:
    e.pool.cached += 1


def forget_a_hash(e: Engine) -> None:
    content = e.pool.content[np.flatnonzero(e.pool.content)[0]]
    e.hashes.table[find_entry(e.hashes.table, e.pool.content, content)] = GONE


def hash_a_block_that_nobody_registered(e: Engine) -> None:
    blank = np.flatnonzero(e.pool.content[1:] == 0)[0] + 1
    e.pool.content[blank] = 12345


def miscount_contents(e: Engine) -> None:
    e.hashes.distinct -= 1


LIST = [
    leak_a_free_block,
    free_a_used_block,
    hold_a_free_block,
    lose_a_reference,
    invent_a_reference,
    tear_the_queue,
    cut_the_queue_short,
    forget_the_tail,
    miscount_free,
    miscount_cached,
    forget_a_hash,
    hash_a_block_that_nobody_registered,
    miscount_contents,
]


# ---------------------------------------------------------------- blocks of a tree


def live_nodes(e: Engine) -> np.ndarray:
    return np.flatnonzero(e.tree.nodes[:, node.LENGTH] > 0)


def locked_node(e: Engine) -> int:
    return int(next(n for n in live_nodes(e) if e.tree.nodes[n, node.LOCK] > 0))


def inner_node(e: Engine) -> int:
    return int(next(n for n in live_nodes(e) if e.tree.nodes[n, node.CHILDREN] > 0))


def ring_at(e: Engine, i: int) -> int:
    return (e.pool.ring_head + i) & (e.pool.ring.size - 1)


def leak_a_free_page(e: Engine) -> None:
    e.pool.num_free -= 1


def list_a_page_twice(e: Engine) -> None:
    e.pool.ring[ring_at(e, 0)] = e.pool.ring[ring_at(e, 1)]


def free_a_page_of_the_tree(e: Engine) -> None:
    e.pool.ring[ring_at(e, 0)] = e.tree.blocks[e.tree.nodes[live_nodes(e)[0], node.OFFSET]]


def own_a_page_twice(e: Engine) -> None:
    slot = running_slot(e, private=True)
    e.slots.table[slot, e.slots.rec[slot, PUBLISHED]] = e.pool.ring[ring_at(e, 0)]


def invent_a_lock(e: Engine) -> None:
    e.tree.nodes[locked_node(e), node.LOCK] += 1


def lose_a_lock(e: Engine) -> None:
    e.tree.nodes[locked_node(e), node.LOCK] -= 1


def miscount_children(e: Engine) -> None:
    e.tree.nodes[inner_node(e), node.CHILDREN] += 1


def orphan_a_node(e: Engine) -> None:
    e.tree.nodes[live_nodes(e)[0], node.PARENT] = int(e.tree.free_nodes[e.tree.num_free_nodes - 1])


def name_two_children_alike(e: Engine) -> None:
    nodes, keys = e.tree.nodes, e.tree.keys
    parents = nodes[live_nodes(e), node.PARENT].tolist()
    parent = next(p for p in parents if parents.count(p) > 1)
    a, b = [n for n in live_nodes(e).tolist() if nodes[n, node.PARENT] == parent][:2]
    keys[nodes[a, node.OFFSET]] = keys[nodes[b, node.OFFSET]]


def lose_the_way_to_a_child(e: Engine) -> None:
    e.tree.table[np.flatnonzero(e.tree.table)[0]] = 0


def miscount_evictable(e: Engine) -> None:
    e.tree.evictable += 1


def miscount_protected(e: Engine) -> None:
    e.tree.protected -= 1


def forget_who_may_be_evicted(e: Engine) -> None:
    e.tree.order.heap.size = 0


TREE = [
    leak_a_free_page,
    list_a_page_twice,
    free_a_page_of_the_tree,
    own_a_page_twice,
    invent_a_lock,
    lose_a_lock,
    miscount_children,
    orphan_a_node,
    name_two_children_alike,
    lose_the_way_to_a_child,
    miscount_evictable,
    miscount_protected,
    forget_who_may_be_evicted,
]


# ---------------------------------------------------------------- sequences


def miscount_context(e: Engine) -> None:
    e.context += 1


def miscount_tables(e: Engine) -> None:
    e.table_blocks += 1


def miscount_holders(e: Engine) -> None:
    e.slots.holders += 1


def miscount_running(e: Engine) -> None:
    e.slots.running += 1


def miscount_waiting(e: Engine) -> None:
    e.num_waiting += 1


def compute_beyond_the_table(e: Engine) -> None:
    slot = running_slot(e)
    more = int(e.slots.rec[slot, BLOCKS]) * e.rules.block_tokens + 1 - int(e.slots.rec[slot, COMPUTED])
    e.slots.rec[slot, COMPUTED] += more
    e.context += more


def end_with_memory(e: Engine) -> None:
    done = int(np.flatnonzero(e.seqs.state >= FIRST_TERMINAL)[0])
    e.seqs.slot[done] = 0


def end_nobody(e: Engine) -> None:
    e.num_done += 1


def leave_an_operation_behind(e: Engine) -> None:
    e.pool.in_flight[3] = 1


SEQUENCES = [
    miscount_context,
    miscount_tables,
    miscount_holders,
    miscount_running,
    miscount_waiting,
    compute_beyond_the_table,
    end_with_memory,
    end_nobody,
    leave_an_operation_behind,
]


# ---------------------------------------------------------------- a policy over block hash


def visible_block(e: Engine, held: bool) -> int:
    return int(next(b for b in np.flatnonzero(e.pool.content) if (e.pool.refs[b] > 0) == held))


def lose_a_block_of_the_policy(e: Engine) -> None:
    e.hashes.order.nodes[visible_block(e, held=True), node.LENGTH] = 0


def let_the_policy_hold_nobody(e: Engine) -> None:
    e.hashes.order.nodes[visible_block(e, held=True), node.LOCK] = 0


def let_the_policy_hold_what_is_free(e: Engine) -> None:
    e.hashes.order.nodes[visible_block(e, held=False), node.LOCK] = 1


def offer_nothing(e: Engine) -> None:
    e.hashes.order.heap.size = 0


def offer_under_an_old_key(e: Engine) -> None:
    e.hashes.order.nodes[visible_block(e, held=False), node.KEY] += 1


def hide_behind_a_visible_block(e: Engine) -> None:
    """A block without content goes behind one that has some."""
    after, before = e.pool.after, e.pool.before
    block, last = first_free(e), int(before[0])
    assert e.pool.content[block] == 0
    assert e.pool.content[last] != 0
    after[0], before[after[block]] = after[block], 0
    after[last], before[block], after[block], before[0] = block, last, 0, block


POLICY = [
    lose_a_block_of_the_policy,
    let_the_policy_hold_nobody,
    let_the_policy_hold_what_is_free,
    offer_nothing,
    offer_under_an_old_key,
    hide_behind_a_visible_block,
]


# ---------------------------------------------------------------- tables that fork


def has_forked(simulation: Simulation) -> bool:
    e = simulation.engine
    return is_busy(simulation) and e.kept_head >= 0 and bool((e.pool.refs > 1).any())


def forget_the_kept_tables(e: Engine) -> None:
    e.kept_head = -1


def keep_a_table_for_nobody(e: Engine) -> None:
    kept = e.lineage[:, KEPT_SLOT] >= 0
    parent = int(np.flatnonzero(kept)[0])
    e.lineage[e.lineage[:, PARENT] == parent, PARENT] = NO_REQUEST
    e.lineage[parent, WANTED] = 0


def keep_it_in_another_slot(e: Engine) -> None:
    e.lineage[np.flatnonzero(e.lineage[:, KEPT_SLOT] >= 0)[0], KEPT_SLOT] += 1


def miscount_who_wants_it(e: Engine) -> None:
    e.lineage[np.flatnonzero(e.lineage[:, WANTED])[-1], WANTED] += 1


def follow_with_memory(e: Engine) -> None:
    e.slots.rec[running_slot(e), PHASE] = FOLLOWS


FORKS = [
    forget_the_kept_tables,
    keep_a_table_for_nobody,
    keep_it_in_another_slot,
    miscount_who_wants_it,
    follow_with_memory,
]

RANKED = replace(VLLM, cache=replace(VLLM.cache, eviction="lfu"))
FORKED = replace(VLLM, cache=replace(VLLM.cache, num_blocks=60, copy_on_write=True))


def cases() -> list[object]:
    groups = (
        ("vllm", VLLM, LIST + SEQUENCES, is_busy),
        ("sglang", SGLANG, TREE + SEQUENCES, is_busy),
        ("ranked", RANKED, POLICY, is_busy),
        ("forks", FORKED, FORKS + LIST, has_forked),
    )
    return [
        pytest.param(system, damage, ready, id=f"{name}-{damage.__name__}")
        for name, system, kinds, ready in groups
        for damage in kinds
    ]


@pytest.mark.parametrize(("system", "damage", "ready"), cases())
def test_damage_is_seen(system, damage: Damage, ready):
    engine = half_way(system, ready)
    assert is_intact(engine)
    damage(engine)
    with pytest.raises(KvbenchError, match="integrity"):
        check_integrity(engine)
    assert not is_intact(engine)
