"""Plans of moves: executed, every rank ends with what it should have, from somebody who had it."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.experts import moves, replica_choice
from kvbench.experts.layout import Layout, placement_of


@st.composite
def maps(draw):
    """(old, new, ranks, nodes) of one layer; both maps hold every expert."""
    nodes, per_node, size = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ranks = nodes * per_node
    experts = draw(st.integers(1, ranks * size))
    base = [i % experts for i in range(ranks * size)]
    shuffled = st.permutations(base)
    return draw(shuffled), draw(shuffled), ranks, nodes


@settings(max_examples=200, deadline=None)
@given(maps(), st.sampled_from(sorted(moves.PLANS)))
def test_a_plan_brings_every_rank_what_it_needs_and_nothing_else(case, engine):
    old, new, ranks, nodes = case
    of = moves.held(old, new, ranks)
    plan = moves.PLANS[engine](of, nodes)
    before = [set(rows) for rows in of.old]
    assert all(move.expert in before[move.source] for move in plan)
    received = Counter((move.expert, move.target) for move in plan)
    missing = {(e, r) for r in range(ranks) for e in of.new[r] if e not in before[r]}
    assert received == Counter(missing)


@settings(max_examples=100, deadline=None)
@given(maps())
def test_rows_of_a_rank_end_with_their_new_experts(case):
    old, new, ranks, _ = case
    of = moves.held(old, new, ranks)
    for rank in range(ranks):
        rows = moves.fill(of, rank)
        assert sorted([*rows.unchanged, *rows.local, *rows.remote, *rows.copied]) == list(range(len(of.new[rank])))
        assert all(of.old[rank][row] == of.new[rank][row] for row in rows.unchanged)
        assert all(of.new[rank][row] in of.old[rank] for row in rows.local)
        assert len({of.new[rank][row] for row in rows.remote}) == len(rows.remote)


@settings(max_examples=100, deadline=None)
@given(maps())
def test_batches_have_no_rank_twice_and_every_move_once(case):
    old, new, ranks, _ = case
    plan = moves.vllm_moves(moves.held(old, new, ranks))
    batches = moves.free_batches(plan)
    for batch in batches:
        ends = [rank for source, target, _ in batch for rank in (source, target)]
        assert len(ends) == len(set(ends))
    moved = Counter((e, s, t) for batch in batches for s, t, experts in batch for e in experts)
    assert moved == Counter(tuple(move) for move in plan)


@settings(max_examples=100, deadline=None)
@given(maps())
def test_sglang_crosses_nodes_only_where_the_own_node_has_none(case):
    old, new, ranks, nodes = case
    of, per_node = moves.held(old, new, ranks), ranks // nodes
    for move in moves.sglang_moves(of, nodes):
        node = move.target // per_node
        near = any(move.expert in of.old[r] for r in range(node * per_node, (node + 1) * per_node))
        assert (move.source // per_node == node) == near


@pytest.mark.parametrize("choose", [replica_choice.vllm, replica_choice.sglang_rows])
def test_a_token_goes_to_a_slot_of_its_expert(choose):
    experts = np.array([[0, 1, 2, 3, 1, 1, 0, 2]])
    slots = placement_of(experts).slots_of(0, 4)
    ids = np.random.default_rng(3).integers(0, 4, (50, 2))
    assert np.array_equal(experts[0, choose(slots, ids)], ids)


def test_the_fair_table_uses_the_own_rank_first_and_differs_by_one_at_most():
    layout = Layout(2, 8, 8, nodes=2)
    slots = placement_of(np.array([[0, 1, 1, 1, 0, 1, 1, 1]])).slots_of(0, 2)
    table = replica_choice.sglang_static(slots, layout, random.Random(1))
    for rank, expert in np.ndindex(table.shape):
        if rank in slots[expert]:
            assert table[rank, expert] == rank
    assert np.array_equal(table[:4, 0], np.zeros(4))  # the one replica of the node
    assert np.array_equal(table[4:, 0], np.full(4, 4))
