"""Placement of experts: against plain Python, and what must hold whatever the load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.experts import boustrophedon, greedy, swift
from kvbench.experts.balance import balancedness, rank_loads, slot_loads
from kvbench.experts.flashlb import FlashLb
from kvbench.experts.layout import Layout, check_map, placement_of, replica_counts
from kvbench.experts.policies import POLICIES, policy_named

from ..reference import eplb as reference


@st.composite
def cases(draw):
    """(loads of a few layers, layout whose parts divide)."""
    nodes = draw(st.sampled_from([1, 2, 4]))
    groups = nodes * draw(st.sampled_from([1, 2]))
    ranks = nodes * draw(st.sampled_from([1, 2, 3]))
    experts = groups * draw(st.integers(1, 6))
    per_rank = max(1, -(-experts // ranks)) + draw(st.integers(0, 2))
    layers = draw(st.integers(1, 3))
    load = st.lists(st.integers(0, draw(st.sampled_from([3, 1000, 10**7]))), min_size=experts, max_size=experts)
    rows = draw(st.lists(load, min_size=layers, max_size=layers))
    return np.array(rows), Layout(experts, ranks * per_rank, ranks, groups, nodes)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_greedy_placement_is_that_of_plain_python(case):
    load, layout = case
    got = greedy.place(load, layout, greedy.VLLM, hierarchical=True)
    for layer, row in enumerate(load):
        want = reference.place(row, layout.slots, layout.ranks, layout.groups, layout.nodes)
        assert got.experts[layer].tolist() == want


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32))
def test_every_policy_gives_a_map_that_holds_all_experts(case, name, seed):
    load, layout = case
    old = np.random.default_rng(seed).permuted(layout.first_map(load.shape[0]), axis=1)
    try:
        placed = policy_named(name)(load[None].astype(np.float64), layout, old)
    except UsageError:
        assert name == "vllm-ascend"  # one redundant expert a rank at most
        assert layout.redundant > layout.ranks
        return
    check_map(placed.experts, layout)
    for layer in range(load.shape[0]):
        listed = placed.slots_of(layer, layout.experts)
        assert sorted(slot for slots in listed for slot in slots) == list(range(layout.slots))
        assert all(placed.experts[layer, slot] == expert for expert, slots in enumerate(listed) for slot in slots)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_kept_rows_move_nothing_between_ranks(case):
    load, layout = case
    fresh = greedy.place(load, layout, greedy.VLLM, hierarchical=False)
    old = np.flip(layout.first_map(load.shape[0]), axis=1)
    kept = greedy.keep_rows(fresh, old, layout)
    shape = (load.shape[0], layout.ranks, layout.slots_per_rank)
    assert np.array_equal(np.sort(kept.experts.reshape(shape), -1), np.sort(fresh.experts.reshape(shape), -1))
    assert (kept.experts == old).sum() >= (fresh.experts == old).sum()


@settings(max_examples=100, deadline=None)
@given(cases())
def test_shares_of_slots_add_up_to_the_load(case):
    load, layout = case
    placed = boustrophedon.place(load[None], layout, hierarchical=False)
    assert slot_loads(load, placed.experts).sum(1) == pytest.approx(load.sum(1))
    loads = rank_loads(slot_loads(load, placed.experts), layout.ranks)
    assert 0.0 <= balancedness(loads) <= 1.0 + 1e-12


def test_a_hot_expert_is_spread_until_ranks_are_even():
    load = np.array([[1000, 10, 10, 10, 10, 10, 10, 10]])
    layout = Layout(8, 16, 8)
    before = rank_loads(slot_loads(load, layout.first_map(1)), 8)
    placed = greedy.place(load, layout, greedy.DEEPSEEK, hierarchical=False)
    after = rank_loads(slot_loads(load, placed.experts), 8)
    assert replica_counts(placed.experts, 8)[0, 0] == 9  # on 8 ranks: one of them has two, and is the fullest
    assert after.max() == pytest.approx(2 * 1000 / 9)
    assert balancedness(after) > 2 * balancedness(before)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 2**32))
def test_swift_never_fills_the_fullest_rank_more_and_moves_less_than_a_new_placement(case, seed):
    load, layout = case
    old = np.random.default_rng(seed).permuted(layout.first_map(load.shape[0]), axis=1)
    load = load[:1]  # of layer 0 is the mean that all layers are judged by
    placed = swift.place(load, layout, old[:1])
    before, after = (rank_loads(slot_loads(load, m), layout.ranks).max() for m in (old[:1], placed.experts))
    assert after <= before * (1 + 1e-5)  # sums are of float32
    stays = (placed.experts == old[:1]).sum()
    homes = min(layout.experts, layout.slots)
    swaps = layout.ranks * (layout.ranks - 1)  # a pair of ranks swaps once: two slots
    assert stays >= homes - swaps


def test_flashlb_leaves_a_layer_alone_until_it_is_uneven_again():
    layout, policy = Layout(16, 20, 4), FlashLb()
    hot = np.ones((8, 1, 16)) * 100
    hot[:, 0, 3] = 4000
    first = policy(hot, layout, layout.first_map(1)).experts
    assert replica_counts(first, 16)[0, 3] > 1
    assert np.array_equal(policy(hot, layout, first).experts, first)
    elsewhere = np.roll(hot, 5, axis=2)
    second = policy(elsewhere, layout, first).experts
    assert replica_counts(second, 16)[0, 8] > 1
    even = [balancedness(rank_loads(slot_loads(elsewhere.sum(0), m), 4)) for m in (first, second)]
    assert even[1] > even[0] + 0.2


def test_ranks_that_are_down_get_nothing():
    load = np.arange(1, 9)[None]
    layout = Layout(8, 16, 8)
    placed, up = greedy.place_active(load, layout, [True] * 7 + [False], hierarchical=False)
    assert placed.experts.shape == (1, 14)
    assert up == [True] * 14 + [False] * 2
    assert set(placed.experts[0].tolist()) == set(range(8))


def test_a_map_that_leaves_out_an_expert_is_told():
    layout = Layout(4, 6, 2)
    with pytest.raises(UsageError, match="expert 3 has no slot in layer 1"):
        check_map(np.array([[0, 1, 2, 3, 0, 1], [0, 1, 2, 2, 1, 0]]), layout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((8, 9, 2), "as many experts"), ((8, 6, 2), "needs a slot"), ((8, 8, 0), "1 or more")],
)
def test_layouts_that_cannot_be(arguments, words):
    with pytest.raises(UsageError, match=words):
        Layout(*arguments)


def test_ones_own_policy_comes_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n"
        "def same(load, layout, old):\n    return old\n"
        "def bad(load, layout, old):\n    return old * 0\n"
        "def by_load(load, layout, old):\n"  # as docs/experts.md shows it
        "    order = load.argsort(1)[:, ::-1]\n"
        "    cards = order[:, np.arange(layout.slots) % layout.experts]\n"
        "    return cards.reshape(len(load), layout.slots_per_rank, layout.ranks).swapaxes(1, 2)"
        ".reshape(len(load), -1)\n"
    )
    dealt = policy_named(f"{path}:by_load")(np.arange(8.0)[None, None], Layout(8, 12, 4), np.zeros((1, 12), np.int64))
    assert dealt.experts[0].reshape(4, 3).tolist() == [[7, 3, 7], [6, 2, 6], [5, 1, 5], [4, 0, 4]]
    layout = Layout(4, 4, 2)
    old = layout.first_map(2)
    placed = policy_named(f"{path}:same")(np.ones((1, 2, 4)), layout, old)
    assert np.array_equal(placed.experts, placement_of(old).experts)
    with pytest.raises(UsageError, match="expert 1 has no slot in layer 0"):
        policy_named(f"{path}:bad")(np.ones((1, 2, 4)), layout, old)
    with pytest.raises(UsageError, match="no function 'none'"):
        policy_named(f"{path}:none")
    with pytest.raises(UsageError, match=r"unknown eplb.policy 'greedy'"):
        policy_named("greedy")
