"""Hit rates of a trace without a clock: the published ones of its ids, and those of both caches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.core.requests import Requests
from kvbench.costs.tables import CostTables
from kvbench.engine.settings import EngineSettings
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.scheduler.rules import CacheRules, SchedulerRules
from kvbench.workload.trace import load_trace

from ..engine.compare import small_tables
from ..engine.workloads import TRACE, request_table
from ..reference.block_hash import BlockPool, BlockTables
from ..reference.engine import Ask
from ..reference.radix import RadixTree
from ..reference.timed import block_contents

UNBOUND = 0
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000, UNBOUND)
IDS = (0.0445, 0.2112, 0.3257, 0.3546, 0.3637, 0.3664)
BLOCKS = {
    "hash": (0.0466, 0.2215, 0.3408, 0.3697, 0.3795, 0.3819),
    "radix": (0.0464, 0.2210, 0.3404, 0.3697, 0.3791, 0.3819),  # whole nodes leave, so a little less is left
}

on_the_trace = pytest.mark.skipif(
    not TRACE.exists() or PLAIN, reason="needs the conversation trace and compiled code (tests/test_jitted.py)"
)


def replayed(
    requests: Requests, system: EngineSettings, costs: CostTables | None = None, **counted: Any
) -> dict[str, Any]:
    """Figures of a replay. counted: answers, warm_up."""
    return replay_cache(Offline(requests, system.block_tokens, **counted), system, costs or small_tables())


def settings(kind: str, num_blocks: int, block_tokens: int = 512) -> EngineSettings:
    return EngineSettings(SchedulerRules(), CacheRules(kind, num_blocks, free_order="auto"), block_tokens)


@cache
def trace() -> Requests:
    return load_trace(TRACE)[0]


@on_the_trace
@pytest.mark.parametrize("kind", BLOCKS)
def test_known_rates_of_the_conversation_trace(kind):
    rows = [replayed(trace(), settings(kind, capacity)) for capacity in CAPACITIES]
    assert [round(row["hit_rate_ids"], 4) for row in rows] == list(IDS)
    assert [round(row["hit_rate_blocks"], 4) for row in rows] == list(BLOCKS[kind])
    assert round(rows[-1]["hit_rate_tokens"], 4) == 0.3734
    assert rows[-1]["evicted_blocks"] == 0 < rows[0]["evicted_blocks"]
    assert [round(row["hit_rate_blocks_optimum"], 4) for row in rows] == [0.1988, *(0.3819,) * 5]


@on_the_trace
def test_ids_are_opaque_only_at_the_block_size_of_the_trace():
    assert "hit_rate_ids" not in replayed(trace(), settings("hash", UNBOUND, block_tokens=16))


def test_without_a_cache_there_is_nothing_to_replay():
    with pytest.raises(UsageError, match="nothing to replay"):
        replayed(request_table([Ask([(1, 0, 4)], [(9, 0, 1)])]), settings("none", 3))


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


def fits(ask: Ask, num_blocks: int, block_tokens: int) -> bool:
    """Whether an engine takes it; others are refused and leave nothing."""
    return ask.num_prompt + ask.max_tokens <= num_blocks * block_tokens


def hash_hits(asks: list[Ask], num_blocks: int, block_tokens: int, pool: BlockPool | None = None) -> tuple[int, int]:
    """(blocks found, evicted) in a plain block-hash cache, one request of one output token after another.

    All but the last token of a prompt is looked up; what is computed again of a full hit lies beside what is there.
    """
    pool = pool or BlockPool(num_blocks + 1, frees_unhashed_to_front=True)
    tables = BlockTables(pool, block_tokens, 10**9, enable_caching=True)
    found = evicted = 0
    for ask in asks:
        if not fits(ask, num_blocks, block_tokens):
            continue
        keys = block_contents(ask.prompt, block_tokens)
        content = tables.new_content(ask.namespace, keys)
        hits = pool.match(content.chain_ids((ask.num_prompt - 1) // block_tokens))
        pool.share(hits)
        table = hits + pool.take(-(-ask.num_prompt // block_tokens) - len(hits))
        for i in range(len(hits), len(keys)):
            pool.publish(table[i], content.chain_ids(len(keys))[i], i, -ask.priority)
        pool.give_back(table)
        pool.check_integrity([])
        found += len(hits)
        evicted += len(pool.drain_evicted())
    return found, evicted


def radix_hits(asks: list[Ask], num_blocks: int, block_tokens: int, tree: RadixTree | None = None) -> tuple[int, int]:
    """The same in a plain radix tree, which has a block of each content once. Blocks are numbers nobody uses twice."""
    tree = tree or RadixTree("lru")
    found = evicted = used = next_block = 0
    for ask in asks:
        if not fits(ask, num_blocks, block_tokens):
            continue
        keys = block_contents(ask.prompt, block_tokens)
        match = tree.match_and_split(keys[: (ask.num_prompt - 1) // block_tokens], ask.namespace)
        hits = len(match.values)
        tree.hit(match.node)
        tree.lock(match.node)
        missing = -(-ask.num_prompt // block_tokens) - hits
        if num_blocks - used < missing:  # the engine asks for all of it, not for the difference
            gone = sum(map(len, tree.evict(missing)))
            evicted += gone
            used -= gone
        assert num_blocks - used >= missing
        values = match.values + list(range(next_block, next_block + len(keys) - hits))
        next_block += len(keys) - hits
        used += len(keys) - tree.insert(keys, values, ask.namespace)
        tree.unlock(match.node)
        tree.check_integrity()
        found += hits
    return found, evicted


@pytest.mark.parametrize("num_blocks", [17, 41, 60, 400])
@pytest.mark.parametrize("block_tokens", [1, 4])
@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_hits_are_those_of_a_plain_cache(kind, block_tokens, num_blocks):
    asks = random_asks(seed=num_blocks)
    got = replayed(request_table(asks), settings(kind, num_blocks, block_tokens))
    plain = {"hash": hash_hits, "radix": radix_hits}[kind]
    assert (got["hit_blocks"], got["evicted_blocks"]) == plain(asks, num_blocks, block_tokens)
    taken = [ask for ask in asks if fits(ask, num_blocks, block_tokens)]
    assert got["refused"] == len(asks) - len(taken)
    assert got["blocks"] == sum(ask.num_prompt // block_tokens for ask in taken)
    assert got["hit_blocks"] > 0


def test_ids_in_a_small_lru():
    """Whole units, the partial last one too; leading ones are hits; all are touched or inserted; then the oldest go."""
    ids = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3]]
    asks = [Ask([(i, 0, 4) for i in row[:-1]] + [(row[-1], 0, 2)], [(90 + n, 0, 1)]) for n, row in enumerate(ids)]
    requests = replace(request_table(asks), block_hint=4)
    expected = {UNBOUND: 0 + 2 + 2 + 3, 3: 0 + 2 + 1 + 0, 4: 0 + 2 + 2 + 3}
    for capacity, hits in expected.items():
        assert replayed(requests, settings("hash", capacity or 100, 4))["hit_rate_ids"] == hits / 11


# ---------------------------------------------------------------- what is counted


def chat(num_turns: int, prompt: int = 64, output: int = 320) -> list[Ask]:
    """One conversation: every turn quotes all that was said before."""
    asks: list[Ask] = []
    said: list[tuple[int, int, int]] = []
    for i in range(num_turns):
        answer = [(900 + i, 0, output)]
        asks.append(Ask([*said, (100 + i, 0, prompt)], answer, output_tokens=output, max_tokens=output, arrival_ns=i))
        said = [*asks[-1].prompt, *answer]
    return asks


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_answers_are_found_by_the_next_turn(kind):
    """64 + 320 - 1 tokens of the first turn have KV: 23 blocks of 16."""
    requests, system = request_table(chat(2)), settings(kind, 1000, 16)
    found = replayed(requests, system)
    assert (found["hit_tokens"], found["prompt_tokens"]) == (368, 512)
    assert found["prompts_with_answers"] == 1
    alone = replayed(requests, system, answers=False)
    assert (alone["hit_tokens"], alone["prompt_tokens"], alone["prompts_with_answers"]) == (64, 512, 1)
    assert alone["hit_rate_tokens_infinite"] == alone["hit_rate_tokens_optimum"] == 0.125


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_a_prompt_that_is_all_there_is_found_but_for_its_last_token(kind):
    requests = request_table([Ask([(1, 0, 16)], [(9 + i, 0, 1)], arrival_ns=i) for i in range(10)])
    for block_tokens, hits in ((16, 0), (4, 12), (1, 15)):
        assert replayed(requests, settings(kind, 1000, block_tokens))["hit_tokens"] == 9 * hits


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_the_first_part_fills_the_cache_and_is_not_counted(kind):
    asks = random_asks(seed=3)
    requests, system = replace(request_table(asks), block_hint=4), settings(kind, 40, 4)
    whole, second = replayed(requests, system), replayed(requests, system, warm_up=0.5)
    first = replayed(request_table(asks[:60]), system)
    assert (second["requests"], second["counted"]) == (120, 60)
    for name in ("hit_tokens", "prompt_tokens", "hit_blocks", "blocks", "evicted_blocks"):
        assert second[name] == whole[name] - first[name]
    assert 0 < second["hit_rate_tokens"] <= second["hit_rate_tokens_optimum"] < second["hit_rate_tokens_infinite"] < 1
    assert 0 < second["hit_rate_ids"] <= second["hit_rate_ids_optimum"] <= second["hit_rate_ids_infinite"]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_a_flush_comes_between_two_requests(kind):
    requests = request_table([Ask([(1, 0, 16)], [(9 + i, 0, 1)], arrival_ns=10 * i) for i in range(6)])
    at = np.array([15, 40, 99], np.int64)
    flushed = replace(requests, flush_ns=at, flush_namespace=np.zeros(3, np.int64))
    assert replayed(requests, settings(kind, 1000, 4))["hit_tokens"] == 5 * 12
    assert replayed(flushed, settings(kind, 1000, 4))["hit_tokens"] == 3 * 12


def test_of_samples_each_is_a_sequence():
    ask = Ask([(1, 0, 16)], [(9, 0, 8)], output_tokens=8, max_tokens=8, samples=3)
    found = replayed(request_table([ask]), settings("hash", 100, 4))
    assert (found["hit_tokens"], found["prompt_tokens"]) == (24, 48)


def test_copy_on_write_takes_over_what_a_later_turn_repeats():
    """A whole table with its partial block: 383 tokens, not 368."""
    asks = [replace(ask, after=i - 1 if i else None, think_ns=5) for i, ask in enumerate(chat(2))]
    system = settings("hash", 1000, 16)
    found = replayed(request_table(asks), replace(system, cache=replace(system.cache, copy_on_write=True)))
    assert found["hit_tokens"] == 64 + 320 - 1
    assert found["hit_rate_tokens"] == found["hit_rate_tokens_optimum"] == found["hit_rate_tokens_infinite"]


def test_nobody_who_can_run():
    requests = request_table([Ask([(1, 0, 40)], [(9, 0, 1)])])
    with pytest.raises(UsageError, match="no request could run"):
        replayed(requests, settings("hash", 3, 4))
