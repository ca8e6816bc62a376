"""Bounds of hits: no run and no replay finds more, whatever the rules; worked out again from single blocks."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import NEVER, HitBounds
from kvbench.engine.settings import PREFILL_FIRST, CacheRules, EngineSettings, SchedulerRules
from kvbench.offline.bounds import id_reuses, replay_reuses, run_bounds, run_visits
from kvbench.offline.curve import Offline, lru_curve
from kvbench.offline.replay import replay_cache
from kvbench.offline.warm import prepared
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.prefix.keys import block_keys
from kvbench.prefix.optimum import lru_hits, most_hits

from ..engine import systems
from ..engine.compare import small_tables
from ..engine.workloads import request_table
from ..reference.engine import Ask
from ..reference.timed import block_contents
from ..runs import ints, journal, requests
from .test_replay import BLOCKS, CAPACITIES, on_the_trace, random_asks, trace
from .test_replay import settings as cache

SYSTEMS = {
    "vllm-0.19": lambda fast: systems.vllm("0.19", fast),
    "vllm-0.33": lambda fast: systems.vllm("0.33", fast),
    "sglang": systems.sglang,
}
NUM_CASES = 2000 if "KVBENCH_LONG" in os.environ else 40
SEARCH = settings(max_examples=NUM_CASES, suppress_health_check=list(HealthCheck))


def bounds_of(simulation: Simulation) -> HitBounds:
    """As a run has them."""
    return run_bounds(simulation.requests, simulation.block_keys(), simulation.journal(), simulation.settings)


def known_before(simulation: Simulation, asks: list[Ask]) -> int:
    """Prompt tokens that an infinite cache finds, block by block: looked up when somebody had them who was admitted
    before, or at the same time as one who is let pass first."""
    journal, bt = simulation.journal(), simulation.settings.block_tokens
    seen: set[tuple[object, ...]] = set()
    admitted = [i for i in range(journal.status.size) if journal.scheduled_ns[i] != NEVER]
    found = 0
    for i in sorted(admitted, key=lambda i: (journal.scheduled_ns[i], asks[journal.request_index[i]].num_prompt)):
        ask = asks[journal.request_index[i]]
        output = [(s + journal.sample[i] if s else s, start, n) for s, start, n in ask.output]
        contents = block_contents(ask.prompt + output, bt)
        prefixes = [(ask.namespace, *contents[: k + 1]) for k in range(len(contents))]
        found += sum(prefix in seen for prefix in prefixes[: (ask.num_prompt - 1) // bt])
        seen.update(prefixes)
    return found * bt


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_run_finds_more(name):
    @SEARCH
    @given(st.booleans().flatmap(SYSTEMS[name]), st.sampled_from(["cold", "cold", "warm", "prefilled"]))
    def check(case: systems.Case, state: str) -> None:
        asks, system = case
        system = replace(system, cache=replace(system.cache, state=state))
        simulation = prepared(Simulation(request_table(asks), system, small_tables()))
        try:
            simulation.run()
        except KvbenchError as error:
            if "out of KV memory" in str(error):  # where the engine itself would end
                return
            raise
        counters = simulation.counters()
        bounds = bounds_of(simulation)
        assert counters.matched_tokens <= bounds.optimum <= bounds.infinite <= counters.admitted_prompt_tokens
        if state == "cold":
            assert bounds.infinite == known_before(simulation, asks)

    check()


def test_visits_of_a_run():
    """Four sequences of 100 to 400 tokens; one was refused, one is going on at the end; two begin at one time."""
    rows = journal(scheduled_ns=ints(8, 8, NEVER, 2), finish_ns=ints(9, 12, NEVER, NEVER))
    system = EngineSettings(SchedulerRules(), CacheRules("hash", 50), 100)
    visits = run_visits(requests(), rows, system)
    assert visits.sequence.tolist() == [3, 0, 1]  # by admission, then the one that looks up less
    assert visits.looked_up.tolist() == [3, 0, 1]
    assert visits.blocks.tolist() == [4, 1, 2]
    assert visits.start.tolist() == [0, 1, 1]
    assert visits.end.tolist() == [4, 2, 3]


def test_what_prepared_the_cache_came_before():
    rows = journal(scheduled_ns=ints(8, 8, NEVER, 2), finish_ns=ints(9, 12, NEVER, NEVER))
    system = EngineSettings(SchedulerRules(), CacheRules("hash", 50, state="warm"), 100)
    visits = run_visits(requests(), rows, system)
    assert visits.sequence.tolist() == [0, 1, 2, 3, 3, 0, 1]
    assert visits.looked_up.tolist() == [0, 0, 0, 0, 3, 0, 1]
    assert visits.blocks.tolist()[:4] == [1, 2, 3, 4]
    assert visits.start.tolist()[:5] == [*visits.end.tolist()[:4], 1] == [0, 0, 0, 0, 1]


def one_at_a_time(asks: list[Ask], kind: str, num_blocks: int) -> Simulation:
    """A run whose sequences do not overlap."""
    apart = [replace(ask, arrival_ns=10**9 * i) for i, ask in enumerate(asks)]
    discipline = PREFILL_FIRST if kind == "radix" else SchedulerRules().discipline
    system = EngineSettings(SchedulerRules(discipline), CacheRules(kind, num_blocks, free_order="auto"), 4)
    simulation = Simulation(request_table(apart), system, small_tables())
    simulation.run()
    return simulation


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_the_bound_is_reached_where_nothing_is_in_the_way(kind):
    """One sequence at a time in a cache that holds everything: outputs are found in later prompts too."""
    asks = [Ask([(1, 0, 21)], [(50, 0, 12)]), Ask([(1, 0, 21), (50, 0, 12), (2, 0, 9)], [(51, 0, 4)])]
    asks.append(Ask([*asks[1].prompt, *asks[1].output, (3, 0, 5)], [(52, 0, 4)]))
    asks = [replace(ask, output_tokens=ask.output[0][2], max_tokens=ask.output[0][2]) for ask in asks]
    simulation = one_at_a_time(asks, kind, 200)
    bounds = bounds_of(simulation)
    matched = simulation.counters().matched_tokens
    assert matched == bounds.optimum == bounds.infinite == 4 * (8 + 11)


def test_without_a_prefix_cache_it_is_what_one_could_have_given():
    asks = random_asks(3, 30)
    with_cache, without = one_at_a_time(asks, "hash", 60), one_at_a_time(asks, "none", 60)
    bounds = [bounds_of(s) for s in (with_cache, without)]
    assert bounds[0] == bounds[1]
    assert bounds[0].optimum > with_cache.counters().matched_tokens > without.counters().matched_tokens == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block_tokens", [1, 4])
def test_no_replay_finds_more(seed, block_tokens):
    requests = request_table(random_asks(seed))
    keys = block_keys(requests, block_tokens)
    reuses = replay_reuses(requests, keys, block_tokens)
    capacities = [3, 17, 60, 0]
    best = most_hits(reuses, capacities)
    lru = lru_hits(reuses, requests.prompt_tokens // block_tokens, capacities)
    for i, capacity in enumerate(capacities):

        def hits(kind: str, policy: str, capacity: int = capacity) -> int:
            rules = CacheRules(kind, capacity, policy, free_order="auto")
            system = EngineSettings(SchedulerRules(), rules, block_tokens)
            return replay_cache(requests, system, small_tables())["hit_blocks"]

        assert hits("hash", "lru") == lru[i] <= best[i] <= reuses.total
        assert max(hits("radix", policy) for policy in POLICIES) <= best[i]
    assert best[-1] == lru[-1] == reuses.total
    assert best[0] > lru[0]


OPTIMUM = (0.1988, 0.3819, 0.3819, 0.3819, 0.3819, 0.3819)
"""Whole blocks of 512 tokens of the conversation trace, at CAPACITIES. It has at most 9,000 or so to keep at a time."""


@on_the_trace
def test_one_pass_over_the_conversation_trace():
    offline = Offline(trace(), 512)
    rows = lru_curve(offline, [cache("hash", capacity) for capacity in CAPACITIES])
    for row, capacity in zip(rows, CAPACITIES, strict=True):
        alone = replay_cache(trace(), cache("hash", capacity))
        assert row == {name: alone[name] for name in row}
    assert tuple(round(row["hit_rate_blocks"], 4) for row in rows) == BLOCKS["hash"]
    bounds = offline.bounds(CAPACITIES)
    assert tuple(round(row["hit_rate_blocks_optimum"], 4) for row in bounds) == OPTIMUM
    assert {round(row["hit_rate_ids_infinite"], 4) for row in bounds} == {0.3664}


def test_ids_are_bounded_too():
    asks = [Ask([(i, 0, 4) for i in row], [(90 + n, 0, 1)]) for n, row in enumerate([[1, 2, 3], [4], [1, 2], [4], [5]])]
    reuses = id_reuses(request_table(asks))
    assert reuses.total == 3
    assert most_hits(reuses, [1, 2, 3]) == [1, 2, 3]
    assert np.all(np.diff(reuses.end) >= 0)
