"""Bounds of hits: no run and no replay finds more, whatever the rules; worked out again from single blocks."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.cluster.admissions import Admissions
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError, UsageError
from kvbench.core.journal import NEVER
from kvbench.engine.settings import EngineSettings
from kvbench.offline.bounds import id_reuses, run_bounds, visits_of
from kvbench.offline.warm import prepared
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.prefix.optimum import most_hits
from kvbench.scheduler.rules import PREFILL_FIRST, BeamRules, CacheRules, SchedulerRules

from ..engine import systems
from ..engine.compare import small_tables
from ..engine.workloads import request_table
from ..reference.engine import Ask
from ..reference.timed import block_contents
from ..runs import ints, requests
from .test_replay import random_asks, replayed

SYSTEMS = {
    "vllm-0.19": lambda fast: systems.vllm("0.19", fast),
    "vllm-0.33": lambda fast: systems.vllm("0.33", fast),
    "sglang": systems.sglang,
}
NUM_CASES = 2000 if "KVBENCH_LONG" in os.environ else 40
SEARCH = settings(max_examples=NUM_CASES, suppress_health_check=list(HealthCheck))


def without_last_token(output: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Its KV is computed by nobody."""
    *before, (stream, start, length) = output
    return [*before, *([(stream, start, length - 1)] if length > 1 else [])]


def known_before(simulation: Simulation, asks: list[Ask]) -> int:
    """Prompt tokens that an infinite cache finds, block by block: looked up when somebody had them who was admitted
    before, or at the same time as one who is let pass first."""
    journal, bt = simulation.journal(), simulation.settings.block_tokens
    seen: set[tuple[object, ...]] = set()
    admitted = [i for i in range(journal.status.size) if journal.scheduled_ns[i] != NEVER]
    found = 0
    for i in sorted(admitted, key=lambda i: (journal.scheduled_ns[i], asks[journal.request_index[i]].num_prompt)):
        ask = asks[journal.request_index[i]]
        output = [(s + journal.sample[i] if s else s, start, n) for s, start, n in without_last_token(ask.output)]
        contents = block_contents(ask.prompt + output, bt)
        prefixes = [(ask.namespace, *contents[: k + 1]) for k in range(len(contents))]
        found += sum(prefix in seen for prefix in prefixes[: (ask.num_prompt - 1) // bt])
        seen.update(prefixes)
    return found * bt


def with_rules(case: systems.Case, state: str, policy: str, overlap: bool, batching: str) -> systems.Case:
    """The same under other rules, where they go together."""
    asks, system = case
    ranked = policy if system.cache.kind != "none" else ""
    cache = replace(system.cache, state=state, eviction=ranked)
    fast = system.fast and not overlap and not ranked
    static = batching == "static" and system.scheduler.discipline != PREFILL_FIRST and not overlap
    return asks, replace(system, cache=cache, overlap=overlap, fast=fast, batching="static" if static else "continuous")


def forking(case: systems.Case, samples: list[int], width: int, state: str) -> systems.Case:
    """The same under copy on write: with beams, or with samples of each request."""
    asks, system = case
    samples = [1] if width else samples
    asks = [replace(ask, samples=samples[i % len(samples)]) for i, ask in enumerate(asks)]
    cache = replace(system.cache, copy_on_write=True, state=state)
    beams = BeamRules(width) if width else system.beam
    rules = systems.together(system.scheduler, 8)
    return asks, replace(system, cache=cache, beam=beams, scheduler=rules, fast=False)


def ran(asks: list[Ask], system: EngineSettings) -> Simulation | None:
    """None where the engine itself would end."""
    simulation = prepared(Simulation(request_table(asks), system, small_tables()))
    try:
        simulation.run()
    except KvbenchError as error:
        if "out of KV memory" in str(error):
            return None
        raise
    counters, bounds = simulation.counters(), run_bounds(simulation)
    assert counters.matched_tokens <= bounds.optimum <= bounds.infinite <= counters.admitted_prompt_tokens
    return simulation


STATES = st.sampled_from(["cold", "cold", "warm", "prefilled"])


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_run_finds_more(name):
    @SEARCH
    @given(
        st.booleans().flatmap(SYSTEMS[name]),
        STATES,
        st.sampled_from(["", "", *POLICIES]),
        st.booleans(),
        st.sampled_from(["continuous", "continuous", "static"]),
    )
    def check(case: systems.Case, state: str, policy: str, overlap: bool, batching: str) -> None:
        asks, system = with_rules(case, state, policy, overlap, batching)
        simulation = ran(asks, system)
        if state == "cold" and simulation is not None:
            assert run_bounds(simulation).infinite == known_before(simulation, asks)

    check()


@SEARCH
@given(
    systems.vllm("0.33", False),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sampled_from([0, 0, 2, 4]),
    STATES,
)
def test_no_run_whose_sequences_fork_finds_more(case, samples, width, state):
    ran(*forking(case, samples, width, state))


@SEARCH
@given(
    systems.vllm("0.19", False), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from([0, 0, 3]), STATES
)
def test_no_replay_whose_sequences_fork_finds_more(case, samples, width, state):
    asks, system = forking(case, samples, width, state)
    system = replace(system, cache=replace(system.cache, kind="hash"))
    try:
        found = replayed(request_table(asks), system)
    except UsageError as error:
        assume("no request could run" not in str(error))
        raise
    rates = [found[f"hit_rate_tokens{bound}"] for bound in ("", "_optimum", "_infinite")]
    assert 0 <= rates[0] <= rates[1] <= rates[2] <= 1


def admissions(**changed: np.ndarray) -> Admissions:
    """Four sequences of 100 to 400 tokens; one was refused, one is going on at the end; two begin at one time."""
    columns = {
        "sequence": ints(0, 1, 3),
        "request": ints(0, 1, 3),
        "prompt": ints(100, 200, 400),
        "asked": ints(1, 1, 1),
        "scheduled_ns": ints(8, 8, 2),
        "finish_ns": ints(9, 12, NEVER),
        "engine": ints(0, 1, 0),
    }
    return Admissions(**(columns | changed), request_of=np.arange(4))


def test_visits_of_a_run():
    visits = visits_of(requests(), admissions(), 100, "cold")
    assert visits.sequence.tolist() == [3, 0, 1]  # by admission, then the one that looks up less
    assert visits.looked_up.tolist() == [3, 0, 1]
    assert visits.blocks.tolist() == [4, 1, 2]
    assert visits.start.tolist() == [0, 1, 1]
    assert visits.end.tolist() == [4, 2, 3]
    assert visits.counted.tolist() == [1, 1, 1]


def test_who_waits_for_the_prompt_of_another_asks_for_nothing():
    visits = visits_of(requests(), admissions(asked=ints(0, 1, 1)), 100, "cold")
    assert visits.sequence.tolist() == [3, 1, 0]  # behind those that ask, which would find what is their own
    assert visits.looked_up.tolist() == [3, 1, 0]
    assert visits.counted.tolist() == [1, 1, 0]


def test_what_prepared_the_cache_came_before():
    visits = visits_of(requests(), admissions(), 100, "warm")
    assert visits.sequence.tolist() == [0, 1, 2, 3, 3, 0, 1]
    assert visits.looked_up.tolist() == [0, 0, 0, 0, 3, 0, 1]
    assert visits.blocks.tolist()[:4] == [1, 2, 3, 4]
    assert visits.start.tolist()[:5] == [*visits.end.tolist()[:4], 1] == [0, 0, 0, 0, 1]
    assert visits.counted.tolist() == [0, 0, 0, 0, 1, 1, 1]


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
    bounds = run_bounds(simulation)
    matched = simulation.counters().matched_tokens
    assert matched == bounds.optimum == bounds.infinite == 4 * (8 + 11)


def test_without_a_prefix_cache_it_is_what_one_could_have_given():
    asks = random_asks(3, 30)
    with_cache, without = one_at_a_time(asks, "hash", 60), one_at_a_time(asks, "none", 60)
    bounds = [run_bounds(s) for s in (with_cache, without)]
    assert bounds[0] == bounds[1]
    assert bounds[0].optimum > with_cache.counters().matched_tokens > without.counters().matched_tokens == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block_tokens", [1, 4])
def test_no_replay_finds_more(seed, block_tokens):
    table = request_table(random_asks(seed, 60))
    for capacity, kind, policy in product((41, 60, 0), ("hash", "radix"), POLICIES):
        rules = CacheRules(kind, capacity, policy, free_order="auto")
        found = replayed(table, EngineSettings(SchedulerRules(), rules, block_tokens))
        rates = [found[f"hit_rate_tokens{bound}"] for bound in ("", "_optimum", "_infinite")]
        assert 0 < rates[0] <= rates[1] <= rates[2] < 1
        assert capacity or rates[0] == rates[1] == rates[2]


def test_ids_are_bounded_too():
    asks = [Ask([(i, 0, 4) for i in row], [(90 + n, 0, 1)]) for n, row in enumerate([[1, 2, 3], [4], [1, 2], [4], [5]])]
    reuses = id_reuses(request_table(asks), np.arange(5), np.ones(5, np.int64))
    assert reuses.total == 3
    assert most_hits(reuses, [1, 2, 3]) == [1, 2, 3]
    assert np.all(np.diff(reuses.end) >= 0)


def test_engines_apart_find_what_was_routed_to_them():
    """Six requests of one prefix dealt over three engines: each computes it, one endless cache would once."""
    configured = configure(
        None,
        changes=[
            ("test", text)
            for text in (
                *("num_prompts=6", "arrivals.rate=1", "lengths.prompt=1", "lengths.output=2", "sharing.groups=1"),
                *("sharing.prefix=320", "fleet.replicas=3", "router.policy=round-robin"),
            )
        ],
    )
    scalars = run(configured).record.summary
    assert scalars["hit_rate_infinite"] == pytest.approx(5 * 320 / (6 * 321))
    assert scalars["hit_rate_routed"] == pytest.approx(3 * 320 / (6 * 321))
    assert scalars["hit_rate"] == scalars["hit_rate_routed"]
    alone = configure(None, changes=[("test", "num_prompts=2")])
    assert "hit_rate_routed" not in run(alone).record.summary.scalars
