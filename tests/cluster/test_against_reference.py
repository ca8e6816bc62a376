"""A fleet against its plain reference: every time and count of every sequence, and which engine it was given to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet
from kvbench.routing.settings import RouterSettings

from ..engine.compare import as_lists, gap_counts, journal_rows, judge, reference_scheduler, small_tables
from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import workloads
from ..reference.engine import Options
from ..reference.router import ReferenceRouter
from ..reference.world import World
from .test_fleet import fleet_run, members

POLICIES = ("round-robin", "random", "least-loaded", "power-of-two", "cache-aware", "kv-aware")


def reference(asks, settings, n: int, policy: str, load_by: str) -> World:
    options = Options(
        num_blocks=settings.cache.num_blocks,
        judge=judge(settings),
        tokenize_ns_per_token=settings.tokenize_ns_per_token,
        detokenize_ns=settings.detokenize_ns,
        concurrency=settings.concurrency,
        closed_loop=settings.closed_loop,
    )
    router = ReferenceRouter(policy, n, settings.block_tokens, load_by=load_by)
    tables = small_tables()
    schedulers = [reference_scheduler(settings, tables) for _ in range(n)]
    world = World(asks, schedulers, as_lists(tables), options, router)
    world.run()
    return world


@given(
    asks=workloads(),
    n=st.integers(1, 3),
    settings=st.sampled_from([VLLM, SGLANG]),
    policy=st.sampled_from(POLICIES),
    load_by=st.sampled_from(["requests", "queued-tokens"]),
    cap=st.sampled_from([(0, False), (3, False), (2, True)]),
)
def test_a_fleet_is_what_the_reference_says(asks, n, settings, policy, load_by, cap):
    asks = [replace(ask, namespace=0) for ask in asks]
    settings = replace(settings, record_steps=False, check=True, concurrency=cap[0], closed_loop=cap[1])
    router = RouterSettings(policy, load_by=load_by)
    simulation = fleet_run(asks, Fleet(members(*[settings] * n), router))
    world = reference(asks, settings, n, policy, load_by)
    engines = simulation.journal().columns["engine"].tolist()
    for i, got in enumerate(journal_rows(simulation)):
        expected = {name: getattr(world.rows[i], name) for name in got}
        differing = {name: (got[name], expected[name]) for name in got if got[name] != expected[name]}
        assert not differing, f"sequence {i}: (engine, reference) {differing}"
        assert engines[i] == world.engine_of.get(i, -1)
    assert gap_counts(simulation) == world.gaps
    for counters, lane in zip(simulation.counters_by_engine(), world.lanes, strict=True):
        assert counters.num_steps == lane.totals.num_steps
        assert counters.busy_ns == lane.totals.busy_ns
        assert counters.evicted_blocks == lane.totals.evicted_blocks
