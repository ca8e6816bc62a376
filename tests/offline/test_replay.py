"""Hit rates of a trace without a clock: the published ones of its ids, and those of both caches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.core.requests import Requests
from kvbench.engine.settings import CacheRules, EngineSettings, SchedulerRules
from kvbench.offline.replay import replay_cache
from kvbench.workload.trace import load_trace

from ..engine.workloads import TRACE, request_table
from ..reference.block_hash import BlockPool, BlockTables
from ..reference.engine import Ask
from ..reference.radix import RadixTree
from ..reference.timed import block_contents

UNBOUND = 0
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000, UNBOUND)
IDS = (0.0445, 0.2112, 0.3257, 0.3546, 0.3637, 0.3664)
BLOCKS = {
    "hash": (0.0470, 0.2243, 0.3448, 0.3715, 0.3795, 0.3819),
    "radix": (0.0468, 0.2227, 0.3431, 0.3706, 0.3795, 0.3819),  # whole nodes leave, so a little less is left
}

on_the_trace = pytest.mark.skipif(
    not TRACE.exists() or PLAIN, reason="needs the conversation trace and compiled code (tests/test_jitted.py)"
)


def settings(kind: str, num_blocks: int, block_tokens: int = 512) -> EngineSettings:
    return EngineSettings(SchedulerRules(), CacheRules(kind, num_blocks, free_order="auto"), block_tokens)


@cache
def trace() -> Requests:
    return load_trace(TRACE)[0]


@on_the_trace
@pytest.mark.parametrize("kind", BLOCKS)
def test_known_rates_of_the_conversation_trace(kind):
    rows = [replay_cache(trace(), settings(kind, capacity)) for capacity in CAPACITIES]
    assert [round(row["hit_rate_ids"], 4) for row in rows] == list(IDS)
    assert [round(row["hit_rate_blocks"], 4) for row in rows] == list(BLOCKS[kind])
    assert round(rows[-1]["hit_rate_tokens"], 4) == 0.3734
    assert rows[-1]["evicted_blocks"] == 0 < rows[0]["evicted_blocks"]


@on_the_trace
def test_ids_are_opaque_only_at_the_block_size_of_the_trace():
    assert "hit_rate_ids" not in replay_cache(trace(), settings("hash", UNBOUND, block_tokens=16))


def test_without_a_cache_there_is_nothing_to_replay():
    with pytest.raises(UsageError, match="nothing to replay"):
        replay_cache(request_table([Ask([(1, 0, 4)], [(9, 0, 1)])]), settings("none", 3))


# ---------------------------------------------------------------- against plain caches


def random_asks(seed: int, num: int = 120) -> list[Ask]:
    """Prompts of a few documents and tails of their own, in two namespaces, of up to 40 tokens."""
    random = np.random.default_rng(seed)
    asks = []
    for i in range(num):
        document, start = int(random.integers(1, 5)), int(random.choice([0, 0, 0, 4, 3]))
        prompt = [(document, start, int(random.integers(1, 30))), (100 + i, 0, int(random.integers(1, 10)))]
        asks.append(Ask(prompt, [(500 + i, 0, 1)], namespace=int(random.integers(0, 2)), arrival_ns=i))
    return asks


def hash_hits(asks: list[Ask], num_blocks: int, block_tokens: int, pool: BlockPool | None = None) -> tuple[int, int]:
    """(blocks found, evicted) in a plain block-hash cache through which one request goes after another."""
    pool = pool or BlockPool(num_blocks + 1, frees_unhashed_to_front=True)
    tables = BlockTables(pool, block_tokens, 10**9, enable_caching=True)
    found = evicted = 0
    for ask in asks:
        keys = block_contents(ask.prompt, block_tokens)
        content = tables.new_content(ask.namespace, keys)
        hits = pool.match(content.chain_ids(len(keys)))
        pool.share(hits)
        fitting = min(len(keys), len(hits) + pool.num_free)
        taken = pool.take(fitting - len(hits))
        for i, block in enumerate(taken, len(hits)):
            pool.publish(block, content.chain_ids(fitting)[i], i, -ask.priority)
        pool.give_back(hits + taken)
        pool.check_integrity([])
        found += len(hits)
        evicted += len(pool.drain_evicted())
    return found, evicted


def radix_hits(asks: list[Ask], num_blocks: int, block_tokens: int, tree: RadixTree | None = None) -> tuple[int, int]:
    """The same in a plain radix tree. Blocks are numbers that nobody uses twice."""
    tree = tree or RadixTree("lru")
    found = evicted = used = next_block = 0
    for ask in asks:
        keys = block_contents(ask.prompt, block_tokens)
        match = tree.match_and_split(keys, ask.namespace)
        hits = len(match.values)
        tree.hit(match.node)
        tree.lock(match.node)
        missing = len(keys) - hits
        if num_blocks - used < missing:
            gone = sum(map(len, tree.evict(missing - (num_blocks - used))))
            evicted += gone
            used -= gone
        fitting = min(len(keys), hits + num_blocks - used)
        values = match.values + list(range(next_block, next_block + fitting - hits))
        next_block += fitting - hits
        used += fitting - hits
        tree.insert(keys[:fitting], values, ask.namespace)
        tree.unlock(match.node)
        tree.check_integrity()
        found += hits
    return found, evicted


@pytest.mark.parametrize("num_blocks", [3, 17, 60, 400])
@pytest.mark.parametrize("block_tokens", [1, 4])
@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_hits_are_those_of_a_plain_cache(kind, block_tokens, num_blocks):
    asks = random_asks(seed=num_blocks)
    got = replay_cache(request_table(asks), settings(kind, num_blocks, block_tokens))
    plain = {"hash": hash_hits, "radix": radix_hits}[kind]
    assert (got["hit_blocks"], got["evicted_blocks"]) == plain(asks, num_blocks, block_tokens)
    assert got["blocks"] == sum(ask.num_prompt // block_tokens for ask in asks)
    assert got["hit_blocks"] > 0


def test_ids_in_a_small_lru():
    """Whole units, the partial last one too; leading ones are hits; all are touched or inserted; then the oldest go."""
    ids = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3]]
    asks = [Ask([(i, 0, 4) for i in row[:-1]] + [(row[-1], 0, 2)], [(90 + n, 0, 1)]) for n, row in enumerate(ids)]
    requests = replace(request_table(asks), block_hint=4)
    expected = {UNBOUND: 0 + 2 + 2 + 3, 3: 0 + 2 + 1 + 0, 4: 0 + 2 + 2 + 3}
    for capacity, hits in expected.items():
        assert replay_cache(requests, settings("hash", capacity, 4))["hit_rate_ids"] == hits / 11


@pytest.mark.parametrize(("rule", "value"), [("copy_on_write", True), ("allocation", "buddy")])
def test_what_needs_requests_side_by_side_is_refused(rule, value):
    given = settings("hash", 3)
    asks = request_table([Ask([(1, 0, 4)], [(9, 0, 1)])])
    with pytest.raises(UsageError, match=f"{rule} is about requests that run side by side"):
        replay_cache(asks, replace(given, cache=replace(given.cache, **{rule: value})))
