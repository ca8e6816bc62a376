"""The offline optimum against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.prefix.keys import BlockKeys
from kvbench.prefix.optimum import most_hits
from kvbench.prefix.reuse import Reuses, Visits, find_reuses

from ..reference import optimum

Path = tuple[int, ...]

paths = st.lists(st.lists(st.integers(0, 1), max_size=4).map(tuple), min_size=1, max_size=7)


def one_after_another(asked: list[Path], run_length: int = 1) -> Reuses:
    """Reuses of these paths of keys. run_length: keys that stand in one run, where they follow each other."""
    first: list[int] = []
    key: list[int] = []
    offset = [0]
    for path in asked:
        for i, k in enumerate(path):
            if i % run_length == 0 or k != path[i - 1] + 1:
                first.append(i)
                key.append(k)
        offset.append(len(first))
    keys = BlockKeys(np.array(offset), np.array(first, np.int32), np.array(key, np.int64))
    length, rank = np.array([len(path) for path in asked]), np.arange(len(asked))
    return find_reuses(keys, Visits(rank, 0 * rank, length, length, rank, rank, 0 * rank + 1))


@settings(max_examples=300)
@given(paths, st.integers(1, 4))
def test_no_cache_does_better_and_one_does_as_well(asked, capacity):
    reuses = one_after_another(asked)
    assert most_hits(reuses, [capacity]) == [optimum.most_hits(asked, capacity)]
    assert most_hits(reuses, [0]) == [longest_known(asked)]


def longest_known(asked: list[Path]) -> int:
    """Blocks found when nothing is evicted."""
    known: set[Path] = set()
    found = 0
    for path in asked:
        blocks = [path[: i + 1] for i in range(len(path))]
        found += sum(block in known for block in blocks)
        known.update(blocks)
    return found


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=25), st.sampled_from([1, 2, 5]))
def test_more_blocks_never_give_fewer_hits(drawn, run_length):
    asked = [tuple(range(10 * (k // 2), 10 * (k // 2) + n)) + (k,) * (n % 3) for k, n in drawn]
    reuses = one_after_another(asked, run_length)
    assert reuses.total == reuses.found.sum() == longest_known(asked)
    best = most_hits(reuses, list(range(1, 30)))
    assert best == sorted(best)
    assert best[-1] <= reuses.total


@st.composite
def intervals(draw: st.DrawFn) -> Reuses:
    """Up to six groups of blocks between ranks 0 and 6."""
    groups = [sorted(draw(st.sets(st.integers(0, 6), min_size=2, max_size=2))) for _ in range(draw(st.integers(0, 6)))]
    blocks = [draw(st.integers(1, 3)) for _ in groups]
    begin, end = (np.array([group[side] for group in groups], np.int64) for side in (0, 1))
    order = np.argsort(end, kind="stable")
    return Reuses(
        begin[order], end[order], np.array(blocks, np.int64)[order], draw(st.integers(0, 2)), 7, np.zeros(0, np.int64)
    )


@settings(max_examples=200)
@given(intervals(), st.integers(1, 5))
def test_the_most_of_any_choice_of_what_to_keep(reuses, capacity):
    """Every number of blocks of every group, kept from its begin to its end."""
    most = 0
    for kept in product(*(range(blocks + 1) for blocks in reuses.blocks)):
        held = np.zeros(7, np.int64)
        for begin, end, blocks in zip(reuses.begin, reuses.end, kept, strict=True):
            held[begin:end] += blocks
        if held.max() <= capacity:
            most = max(most, sum(kept))
    assert most_hits(reuses, [capacity]) == [reuses.at_once + most]


def test_a_case_worked_out_by_hand():
    """a b c a b c in two blocks: keep one, drop the one that comes back last."""
    reuses = one_after_another([(1,), (2,), (3,), (1,), (2,), (3,)])
    assert most_hits(reuses, [1, 2, 3, 0]) == [1, 2, 3, 3]


def test_a_request_larger_than_the_cache_leaves_a_part():
    assert most_hits(one_after_another([(1, 2, 3, 4)] * 3), [3, 4]) == [6, 8]


@pytest.mark.parametrize("capacity", [1, 5])
def test_blocks_of_a_visit_that_goes_on_need_not_wait(capacity):
    """Three visits with the same four blocks; the first is going on when the second looks them up."""
    keys = BlockKeys(np.arange(4), np.zeros(3, np.int32), np.full(3, 7))
    four = np.full(3, 4)
    visits = Visits(
        np.arange(3), np.zeros(3, np.int64), four, four, np.array([0, 1, 3]), np.array([2, 1, 4]), np.ones(3, np.int64)
    )
    reuses = find_reuses(keys, visits)
    assert (reuses.at_once, reuses.total) == (4, 8)
    assert most_hits(reuses, [capacity]) == [4 + min(capacity, 4)]


def test_a_short_visit_within_a_long_one_does_not_end_it():
    keys = BlockKeys(np.arange(4), np.zeros(3, np.int32), np.full(3, 7))
    four = np.full(3, 4)
    reuses = find_reuses(
        keys,
        Visits(
            np.arange(3),
            np.zeros(3, np.int64),
            four,
            four,
            np.array([0, 1, 3]),
            np.array([5, 2, 4]),
            np.ones(3, np.int64),
        ),
    )
    assert (reuses.at_once, reuses.total) == (8, 8)
