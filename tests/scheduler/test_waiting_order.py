"""Orders of the waiting list, by hand. Whole runs under each are compared with the reference in tests/engine."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.engine import probe, probe_admission
from kvbench.engine.settings import EngineSettings
from kvbench.prefix.node import LENGTH
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.scheduler.waiting_order import FCFS, LPM, order_of
from kvbench.verify.content import Asked
from kvbench.verify.stream import EngineStream, follow

from ..reference.splitmix import SplitMix, shuffled


def engine(policy: str, asked: list[Asked], block_tokens: int = 1, seed: int = 0, **rules: int) -> EngineStream:
    settings = EngineSettings(
        SchedulerRules(discipline=PREFILL_FIRST, policy=policy, **rules),
        CacheRules("radix", 400, free_order="auto"),
        block_tokens,
        1000,
        seed=seed,
    )
    return EngineStream([str(i) for i in range(len(asked))], asked, settings)


def wait(stream: EngineStream, *seqs: int) -> None:
    for seq in seqs:
        probe.arrive(stream.engine, seq, seq)


def cache(stream: EngineStream, seq: int, tokens: int) -> None:
    """The first tokens of a sequence's prompt enter the tree."""
    probe_admission.insert(stream.engine, seq, tokens // stream.block_tokens)


def order(stream: EngineStream) -> list[int]:
    probe_admission.sort(stream.engine)
    forwards = list(follow(stream.view().queue_head, stream.seqs["queue_next"], -1))
    backwards = list(follow(int(stream.engine.queue_tail), stream.seqs["queue_prev"], -1))
    assert forwards == backwards[::-1]
    return forwards


def asked(*max_tokens: int, priorities: tuple[int, ...] = ()) -> list[Asked]:
    priorities = priorities or (0,) * len(max_tokens)
    return [
        Asked([i + 1], [0], most, priority=urgency)
        for i, (most, urgency) in enumerate(zip(max_tokens, priorities, strict=True))
    ]


def test_lof_takes_the_largest_declared_output_first_and_is_stable():
    stream = engine("lof", asked(5, 9, 5, 30, 9))
    wait(stream, 0, 1, 2, 3, 4)
    assert order(stream) == [3, 1, 4, 0, 2]


def test_priority_takes_the_smallest_number_first_and_is_stable():
    stream = engine("priority", asked(1, 1, 1, 1, priorities=(2, 0, 2, -1)))
    wait(stream, 0, 1, 2, 3)
    assert order(stream) == [3, 1, 0, 2]


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 3])
def test_random_is_the_shuffle_of_the_seed_and_goes_on_from_there(seed):
    stream = engine("random", asked(*[1] * 9), seed=seed)
    wait(stream, *range(9))
    draws = SplitMix(seed)
    first = shuffled(list(range(9)), draws)
    assert order(stream) == first
    assert order(stream) == shuffled(first, draws)


def prompts(*all_tokens: list[int], namespaces: dict[int, str] | None = None) -> list[Asked]:
    return [Asked(tokens, [0], 1, (namespaces or {}).get(i)) for i, tokens in enumerate(all_tokens)]


def test_lpm_takes_the_longest_cached_prefix_first_its_last_token_included():
    long, short, none = [1, 2, 3, 4, 5], [1, 2, 3, 9, 9], [7, 7, 7, 7, 7]
    stream = engine("lpm", prompts(long, none, short, long))
    cache(stream, 0, 5)
    wait(stream, 1, 2, 3)
    assert order(stream) == [3, 2, 1]
    assert stream.seqs["matched"].tolist() == [0, 0, 3, 5]


@pytest.mark.parametrize(
    ("block_tokens", "shared", "expected"), [(1, 5, [0, 2, 1]), (1, 4, [0, 1, 2]), (3, 5, [0, 2, 1])]
)
def test_lpm_puts_back_who_will_find_what_an_earlier_one_computes(block_tokens, shared, expected):
    """Compared token by token, whatever the size of a block."""
    head = list(range(1, 9))
    other = [*head[:shared], 90, 91, 92]
    rules = {"in_batch_check_threshold": 3, "in_batch_deprioritize_threshold": 5}
    stream = engine("lpm", prompts(head, other, [50] * 8), block_tokens, **rules)
    wait(stream, 0, 1, 2)
    assert order(stream) == expected


def test_equal_tokens_of_two_namespaces_are_not_shared():
    same = list(range(1, 40))
    stream = engine("lpm", prompts(same, same, [3], namespaces={1: "other"}))
    wait(stream, 0, 1, 2)
    assert order(stream) == [0, 1, 2]


def test_lpm_neither_looks_nor_sorts_while_too_many_wait():
    long, none = [1, 2, 3, 4, 5], [7, 7, 7, 7, 7]
    stream = engine("lpm", prompts(none, long, none), lpm_fallback_waiting=2)
    cache(stream, 1, 5)
    clock = stream.engine.tree.clock
    wait(stream, 0, 1, 2)
    assert order(stream) == [0, 1, 2]
    assert stream.engine.tree.clock == clock
    stream.leave(2)
    assert order(stream) == [1, 0]


def test_dfs_weight_walks_the_heaviest_subtree_first_and_leaves_a_node_last():
    #        1 2 ── 3 (cached by 0)      two wait below 1 2 3, one at 1 2, one at 8 (cached by 4), one nowhere
    a, b = [1, 2, 3, 4], [8, 8, 8, 8]
    stream = engine("dfs-weight", prompts(a, [1, 2, 3, 5], [1, 2, 9, 9], [1, 2, 3, 6], b, [8, 8, 8, 1], [6, 6]))
    cache(stream, 0, 4)
    cache(stream, 4, 4)
    wait(stream, 6, 5, 2, 1, 3)
    assert order(stream) == [1, 3, 2, 5, 6]


def test_dfs_weight_takes_children_of_equal_weight_in_the_order_in_which_they_came():
    a, b, c = [1, 1, 1], [2, 2, 2], [3, 3, 3]
    stream = engine("dfs-weight", prompts(a, b, c, [2, 2, 5], [1, 1, 5], [3, 3, 5], namespaces={2: "x", 5: "x"}))
    for seq in (1, 2, 0):
        cache(stream, seq, 3)
    wait(stream, 4, 3, 5)
    assert order(stream) == [3, 5, 4]  # a split leaves its place to the upper part


def test_without_a_radix_tree_there_is_no_prefix_to_be_aware_of():
    assert order_of("lpm", "radix") == LPM
    for kind in ("none", "hash"):
        assert order_of("lpm", kind) == order_of("dfs-weight", kind) == FCFS


def test_one_waiting_sequence_is_matched_too():
    stream = engine("lpm", prompts([1, 2, 3, 4], [1, 2, 9]))
    cache(stream, 0, 4)
    wait(stream, 1)
    assert order(stream) == [1]
    assert np.count_nonzero(stream.engine.tree.nodes[:, LENGTH]) == 2  # the match has split the node


def test_seeds_differ():
    orders = []
    for seed in range(3):
        stream = engine("random", asked(*[1] * 12), seed=seed)
        wait(stream, *range(12))
        orders.append(order(stream))
    assert len({tuple(o) for o in orders}) == 3


def test_an_unknown_policy_is_refused():
    with pytest.raises(UsageError, match="does not fit; try one of fcfs, lof, priority, random, lpm, dfs-weight"):
        engine("longest", asked(1))
