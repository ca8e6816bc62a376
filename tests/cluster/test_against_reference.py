"""A fleet against its plain reference: every time and count of every sequence, and which engine it was given to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet
from kvbench.cluster.lockstep_simulation import LockstepSimulation, one_instance
from kvbench.routing.settings import RouterSettings

from ..engine.compare import as_lists, gap_counts, journal_rows, judge, reference_scheduler, small_tables
from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import request_table, workloads
from ..reference.barrier import Ranks
from ..reference.engine import Options
from ..reference.router import ReferenceRouter
from ..reference.world import World
from .test_fleet import fleet_run, members

POLICIES = ("round-robin", "random", "least-loaded", "power-of-two", "cache-aware", "kv-aware")


def options_of(settings) -> Options:
    return Options(
        num_blocks=settings.cache.num_blocks,
        judge=judge(settings),
        tokenize_ns_per_token=settings.tokenize_ns_per_token,
        detokenize_ns=settings.detokenize_ns,
        concurrency=settings.concurrency,
        closed_loop=settings.closed_loop,
    )


def reference(asks, settings, n: int, policy: str, load_by: str) -> World:
    router = ReferenceRouter(policy, n, settings.block_tokens, load_by=load_by)
    tables = small_tables()
    schedulers = [reference_scheduler(settings, tables) for _ in range(n)]
    world = World(asks, schedulers, as_lists(tables), options_of(settings), router)
    world.run()
    return world


def check_rows(simulation, world: World, column: str) -> None:
    """Every sequence's times and counts, and where it was; and all gaps between tokens."""
    where = simulation.journal().columns[column].tolist()
    for i, got in enumerate(journal_rows(simulation)):
        expected = {name: getattr(world.rows[i], name) for name in got}
        differing = {name: (got[name], expected[name]) for name in got if got[name] != expected[name]}
        assert not differing, f"sequence {i}: (engine, reference) {differing}"
        assert where[i] == world.engine_of.get(i, -1)
    assert gap_counts(simulation) == world.gaps


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
    own = {"belief": "own"} if policy in ("cache-aware", "kv-aware") else {}  # the reference hears no events here
    router = RouterSettings(policy, load_by=load_by, **own)
    simulation = fleet_run(asks, Fleet(members(*[settings] * n), router))
    world = reference(asks, settings, n, policy, load_by)
    check_rows(simulation, world, "engine")
    for counters, lane in zip(simulation.counters_by_engine(), world.lanes, strict=True):
        assert counters.num_steps == lane.totals.num_steps
        assert counters.busy_ns == lane.totals.busy_ns
        assert counters.evicted_blocks == lane.totals.evicted_blocks


@given(
    asks=workloads(),
    ranks=st.integers(1, 4),
    settings=st.sampled_from([VLLM, SGLANG]),
    deal=st.sampled_from(["least-waiting", "round-robin", "shortest-queue"]),
    cap=st.sampled_from([(0, False), (3, False), (2, True)]),
)
def test_ranks_behind_a_barrier_are_what_the_reference_says(asks, ranks, settings, deal, cap):
    asks = [replace(ask, namespace=0) for ask in asks]
    settings = replace(settings, record_steps=False, check=True, concurrency=cap[0], closed_loop=cap[1])
    tables = small_tables()
    simulation = LockstepSimulation(request_table(asks), one_instance(settings, tables, ranks), deal)
    simulation.run()
    schedulers = [reference_scheduler(settings, tables) for _ in range(ranks)]
    world = Ranks(asks, schedulers, as_lists(tables), options_of(settings), deal)
    world.run()
    check_rows(simulation, world, "rank")
    totals = simulation.barrier()
    assert totals.wait_ns.tolist() == world.wait_ns
    assert totals.busy_ns.tolist() == world.busy_ns
    assert totals.dummy_ns.tolist() == world.dummy_ns
    assert totals.dummy_steps.tolist() == world.dummy_steps
    assert sum(world.wait_ns) == ranks * world.step_ns - sum(world.busy_ns)
    assert set(totals.step_ns.tolist()) == {world.step_ns}
    assert set(totals.steps.tolist()) == {world.num_steps}
