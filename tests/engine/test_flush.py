"""Flushes: nothing of before is hit afterwards, only in that namespace, and no block is lost over it."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvbench.cluster.flush import Flushes
from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import NEVER
from kvbench.engine.lineage import common_tokens
from kvbench.engine.settings import EngineSettings
from kvbench.offline.warm import prepared
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules

from . import systems
from .compare import small_tables
from .workloads import Ask, request_table

LONG = "KVBENCH_LONG" in os.environ
NUM_CASES = 500 if LONG else 8
PHASES = tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate)


def flushed(requests, *when):
    """The table with flushes at (ns, namespace)."""
    when = sorted(when)
    return replace(
        requests,
        flush_ns=np.array([ns for ns, _ in when], np.int64),
        flush_namespace=np.array([namespace for _, namespace in when], np.int64),
    )


def simulate(requests, system):
    simulation = prepared(Simulation(requests, system, small_tables()))
    simulation.run()
    return simulation


def empty_all(simulation):
    """Flush every root that ever was."""
    engine = simulation.engine
    last = flushed(simulation.requests, *((0, int(n)) for n in np.unique(engine.seqs.namespace)))
    flushes = Flushes(last, replace(simulation.settings, cache=replace(simulation.settings.cache, state="warm")))
    for index in range(len(flushes.times)):
        flushes.carry_out(engine, index)


SYSTEMS = {
    "vllm": lambda fast: systems.vllm("0.33", fast),
    "vllm-0.19": lambda fast: systems.vllm("0.19", fast),
    "sglang": systems.sglang,
    "copy-on-write": lambda fast: systems.vllm("0.33", False).map(forking),
}


def forking(case):
    """The same under copy on write: samples fork, later turns go on from tables that are kept."""
    asks, system = case
    rules = systems.together(system.scheduler, 3)
    return asks, replace(system, scheduler=rules, cache=replace(system.cache, copy_on_write=True), fast=False)


@pytest.mark.parametrize("fast", [False, True], ids=["step", "calendar"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_of_before_is_hit(name, fast):
    """Integrity and the shadow of every block are looked at after every step."""

    @settings(max_examples=NUM_CASES, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(SYSTEMS[name](fast), st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 1)), min_size=1, max_size=4))
    def check(case, when):
        asks, system = case
        requests = flushed(request_table(asks), *when)
        simulation = simulate(requests, replace(system, check=True))
        journal = simulation.journal()
        for namespace in (0, 1):
            _check_hits(requests, journal, namespace, [ns for ns, which in when if which == namespace], system)
        empty_all(simulation)
        engine = simulation.engine
        assert engine.pool.num_free == engine.pool.num_blocks
        assert engine.pool.cached == engine.hashes.distinct == engine.tree.evictable == engine.tree.protected == 0

    check()


def _check_hits(requests, journal, namespace, when, system):
    """What a sequence found has been scheduled by another one since the last flush before it."""
    scheduled = journal.scheduled_ns
    mine = np.flatnonzero((requests.namespace[journal.request_index] == namespace) & (scheduled != NEVER))
    for s in mine:
        since = max((ns for ns in when if ns <= scheduled[s]), default=0)
        request = int(journal.request_index[s])
        found = 0
        for other in mine:
            if since <= journal.finish_ns[other] or journal.finish_ns[other] == NEVER:
                before = int(journal.request_index[other])
                whole = 1 if system.cache.copy_on_write else system.block_tokens
                found = max(found, common_tokens(requests, before, request) // whole * whole)
        if journal.cached_tokens[s] > found:
            raise AssertionError(f"request {request} found {journal.cached_tokens[s]} of {found} tokens at most")


def one_after_another(count, namespaces=(0,)):
    """The same prompt of four blocks again and again, a millisecond apart."""
    return [
        Ask(
            prompt=[(1, 0, 65)],
            output=[(100 + i, 0, 2)],
            output_tokens=2,
            max_tokens=2,
            arrival_ns=i * 10_000_000,
            namespace=namespaces[i % len(namespaces)],
        )
        for i in range(count)
    ]


def plain(kind, **more):
    """A cache of a hundred blocks and nothing else that could matter."""
    rules = SchedulerRules(discipline=PREFILL_FIRST) if kind == "radix" else SchedulerRules()
    return EngineSettings(rules, CacheRules(kind=kind, num_blocks=100), 16, 1000, **more)


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_one_namespace_only(kind):
    requests = flushed(request_table(one_after_another(8, (0, 1))), (35_000_000, 0))
    cached = simulate(requests, plain(kind)).journal().cached_tokens
    assert cached.tolist() == [0, 0, 64, 64, 0, 64, 64, 64]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_twice(kind):
    requests = flushed(request_table(one_after_another(6)), (15_000_000, 0), (35_000_000, 0))
    assert simulate(requests, plain(kind)).journal().cached_tokens.tolist() == [0, 64, 0, 64, 0, 64]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_a_warm_cache_is_emptied_too(kind):
    requests = flushed(request_table(one_after_another(3)), (5_000_000, 0))
    system = plain(kind)
    system = replace(system, cache=replace(system.cache, state="warm"))
    assert simulate(requests, system).journal().cached_tokens.tolist() == [64, 0, 64]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_what_is_in_use_stays_and_goes_when_it_is_released(kind):
    long = Ask(prompt=[(1, 0, 65)], output=[(90, 0, 400)], output_tokens=400, max_tokens=400)
    asks = [long, replace(long, output=[(95, 0, 2)], output_tokens=2, max_tokens=2, arrival_ns=200_000)]
    simulation = Simulation(flushed(request_table(asks), (100_000, 0)), plain(kind, check=True), small_tables())
    simulation.advance(until_ns=150_000)
    engine = simulation.engine
    assert engine.pool.num_free < engine.pool.num_blocks  # the first one runs on
    simulation.run()
    journal = simulation.journal()
    assert journal.cached_tokens.tolist() == [0, 0]
    assert journal.finish_ns[0] > journal.scheduled_ns[1] > 100_000
    kept = engine.tree.evictable + engine.pool.cached
    assert kept == 4  # of the second one; nothing of the first


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "sieve", "s3fifo"])
@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_policies_go_on_after_it(kind, policy):
    """A cache too small for all, emptied twice: what a policy remembers of blocks that are gone does no harm."""
    asks = [
        replace(a, prompt=[(1, 0, 30), (2 + i % 3, 0, 40 + i)], namespace=i % 2, arrival_ns=i * 60_000)
        for i, a in enumerate(one_after_another(40))
    ]
    system = plain(kind, check=True)
    system = replace(system, cache=replace(system.cache, eviction=policy, num_blocks=16))
    requests = flushed(request_table(asks), (500_000, 0), (1_100_000, 1), (1_500_000, 0))
    simulation = simulate(requests, system)
    assert simulation.counters().evicted_blocks > 0
    assert (simulation.journal().finish_ns > 0).all()
    empty_all(simulation)
    assert simulation.engine.pool.num_free == 16


@pytest.mark.parametrize("kind", ["hash", "none"])
def test_tables_that_are_kept_for_a_later_turn_go_too(kind):
    """The same turn with and without a flush while the user thinks."""
    first = Ask([(1, 0, 33)], [(90, 0, 12)], 0, 12, 12)
    turn = Ask([*first.prompt, *first.output, (2, 0, 5)], [(91, 0, 2)], 0, 2, 2, after=0, think_ns=50_000_000)
    system = plain(kind, check=True)
    system = replace(system, cache=replace(system.cache, copy_on_write=True))
    requests = request_table([first, turn])
    assert simulate(requests, system).journal().cached_tokens.tolist() == [0, 33 + 12 - 1]
    assert simulate(flushed(requests, (30_000_000, 0)), system).journal().cached_tokens.tolist() == [0, 0]
    assert simulate(flushed(requests, (30_000_000, 1)), system).journal().cached_tokens.tolist() == [0, 33 + 12 - 1]
