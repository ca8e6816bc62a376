"""What the recordings do not show: aborts, out of memory, random / priority order, virtual keys, broken trees."""

import functools
import operator
import random

import pytest

from .radix import RadixIntegrityError, RadixTree
from .sglang_memory import OutOfKvMemory, Request, TokenContent, VirtualContent
from .sglang_scheduler import SchedulerConfig, SglangScheduler

POLICIES = ["fcfs", "lpm", "dfs-weight", "lof", "random", "priority"]
SMALL = {
    "max_running_requests": 6,
    "max_prefill_tokens": 120,
    "init_new_token_ratio": 0.05,
    "min_new_token_ratio": 0.01,
}


def random_requests(rng, num_requests, page_size):
    """Prompts from few segments, so that prefixes are shared, split and evicted."""
    segments = [[rng.randrange(9) for _ in range(rng.randrange(8, 40))] for _ in range(4)]
    for i in range(num_requests):
        prompt = functools.reduce(operator.iadd, rng.sample(segments, rng.randrange(1, 3)), [])
        prompt += [rng.randrange(9) for _ in range(rng.randrange(1, 9))]
        outputs = [rng.randrange(9) for _ in range(rng.randrange(1, 50))]
        content = TokenContent(prompt + outputs, page_size)
        yield Request(i, len(prompt), len(outputs), content, rng.choice([None, "A"]), rng.randrange(3))


def drain(scheduler, rng, arrivals, abort_chance=0.0):
    """Run to the end with integrity checks; returns the requests that ended, with their reason."""
    arrivals, ended = list(arrivals), {}
    while arrivals or not scheduler.is_idle:
        for _ in range(min(len(arrivals), rng.randrange(3))):
            scheduler.add(arrivals.pop(0))
        live = [*scheduler.waiting, *scheduler.memory.holders]
        if live and rng.random() < abort_chance:
            victim = rng.choice(live)
            assert scheduler.abort(victim.id)
            if victim.finish_reason:
                ended[victim.id] = victim
        outcome = scheduler.step()
        ended.update((r.id, r) for r in [*outcome.result.finished, *outcome.plan.oom_aborted])
        scheduler.check_integrity()
    return ended


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("variant", ["radix", "no-radix", "no-radix-ignore-eos", "mixed"])
def test_every_request_ends_and_every_block_comes_back(policy, page_size, variant):
    rng = random.Random(f"{policy} {page_size} {variant}")
    is_radix = not variant.startswith("no-radix")
    config = SchedulerConfig(
        num_kv_tokens=240, page_size=page_size, schedule_policy=policy, chunked_prefill_size=24,
        disable_radix_cache=not is_radix, ignore_eos=variant.endswith("eos"), enable_mixed_chunk=variant == "mixed",
        eviction_policy=rng.choice(["lru", "slru", "lfu"]), **SMALL,
    )  # fmt: skip
    scheduler = SglangScheduler(config)
    ended = drain(scheduler, rng, random_requests(rng, 60, page_size), abort_chance=0.1)
    assert len(ended) == 60
    assert {"abort", "length"} <= {r.finish_reason for r in ended.values()}
    assert scheduler.memory.num_protected == 0
    assert scheduler.memory.num_free + scheduler.memory.num_evictable == 240


def test_a_lone_request_that_outgrows_memory_is_aborted():
    scheduler = SglangScheduler(SchedulerConfig(num_kv_tokens=48, **SMALL))
    scheduler.add(Request(0, 20, 19, TokenContent(range(39), 1)))
    scheduler.step()
    squatted = scheduler.memory.allocator.take(16)  # memory lent to another component
    while not scheduler.is_idle:
        aborted = scheduler.step().plan.oom_aborted
    assert [r.id for r in aborted] == [0]
    assert aborted[0].finish_reason == "oom"
    scheduler.memory.allocator.free(squatted)
    scheduler.check_integrity()


def test_virtual_keys_and_tokens_behave_alike():
    """fcfs never compares tokens in the batch, so both contents give the same run."""

    def run(content_of):
        rng = random.Random(7)
        config = SchedulerConfig(num_kv_tokens=320, page_size=4, chunked_prefill_size=24, **SMALL)
        scheduler, log = SglangScheduler(config), []
        arrivals = [
            Request(r.id, r.num_prompt, r.max_new_tokens, content_of(r.content), r.namespace)
            for r in random_requests(rng, 40, 4)
        ]
        while arrivals or not scheduler.is_idle:
            if arrivals:
                scheduler.add(arrivals.pop(0))
            plan = scheduler.step().plan
            log.append((plan.batch and plan.batch.rows, plan.sizes, plan.evicted))
        return log

    def virtual(content):
        names = [f"block {key}" for key in content.block_keys(len(content.tokens))]
        return VirtualContent(names, 4)

    assert run(lambda content: content) == run(virtual)


BREAKERS = {
    "size": lambda tree, node: setattr(tree, "num_evictable", tree.num_evictable + 1),
    "lock": lambda tree, node: setattr(node.children[(None, 4)], "lock_ref", node.lock_ref + 1),
    "child table": lambda tree, node: node.children.update({(None, 99): node.children.pop((None, 4))}),
    "parent": lambda tree, node: setattr(node.children[(None, 4)], "parent", tree.root),
    "value": lambda tree, node: node.children[(None, 4)].values.__setitem__(0, node.values[0]),
    "length": lambda tree, node: node.values.append(77),
    "namespace": lambda tree, node: setattr(node, "namespace", "B"),
}


@pytest.mark.parametrize("broken", BREAKERS)
def test_integrity_check_sees(broken):
    tree = RadixTree()
    tree.insert([1, 2, 3, 4, 5], [10, 11, 12, 13, 14])
    tree.insert([1, 2, 3, 6], [20, 21, 22, 23])
    tree.lock(tree.match_and_split([1, 2, 3, 4]).node)
    tree.check_integrity()
    BREAKERS[broken](tree, tree.match_and_split([1, 2, 3]).node)
    with pytest.raises(RadixIntegrityError):
        tree.check_integrity()


def test_integrity_check_sees_a_lost_block():
    scheduler = SglangScheduler(SchedulerConfig(num_kv_tokens=8))
    scheduler.check_integrity()
    scheduler.memory.allocator.take(1)
    with pytest.raises(OutOfKvMemory, match=r"without an owner: \[1\]"):
        scheduler.check_integrity()
