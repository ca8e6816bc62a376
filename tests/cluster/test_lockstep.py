"""Ranks behind a barrier: one rank is a plain engine; waits, steps and tokens add up; padding goes by the widest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cluster.instances import DEALS
from kvbench.cluster.lockstep_simulation import LockstepSimulation, one_instance
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.core.journal import FINISHED
from kvbench.costs.tables import GRAPH_BUCKET, CostTables, Graphs, padding
from kvbench.engine.settings import EngineSettings

from ..engine.compare import small_tables
from ..engine.test_runs import SGLANG, VLLM, mixed_asks
from ..engine.workloads import request_table
from ..reference.engine import Ask

SYSTEMS = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "vllm-overlap": replace(VLLM, overlap=True),
    "sglang-overlap": replace(SGLANG, overlap=True, cache=replace(SGLANG.cache, num_blocks=60)),
}


def run(system: EngineSettings, ranks: int, deal: str = "least-waiting", asks: list[Ask] | None = None):
    requests = request_table(mixed_asks() if asks is None else asks)
    simulation = LockstepSimulation(requests, one_instance(replace(system, check=True), small_tables(), ranks), deal)
    simulation.run()
    return simulation


@pytest.mark.parametrize("name", SYSTEMS)
def test_one_rank_is_a_plain_engine(name):
    alone = Simulation(request_table(mixed_asks()), SYSTEMS[name], small_tables())
    alone.run()
    ranked = run(SYSTEMS[name], 1)
    one, other = alone.journal(), ranked.journal()
    for field in ("status", "scheduled_ns", "first_token_ns", "finish_ns", "itl_gap_ns", "itl_count", "steps"):
        assert np.array_equal(getattr(one, field), getattr(other, field)), field
    assert ranked.barrier().wait_ns.tolist() == [0]
    assert ranked.barrier().dummy_steps.tolist() == [0]


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("ranks", [2, 5])
def test_waits_are_the_steps_without_what_ranks_did(name, ranks, deal):
    simulation = run(SYSTEMS[name], ranks, deal)
    totals = simulation.barrier()
    assert totals.wait_ns.min() >= 0
    assert np.all(totals.wait_ns == totals.step_ns - totals.busy_ns)
    steps = [int(e.num_steps) for e in simulation.engines]
    assert (totals.steps - np.array(steps)).tolist() == totals.dummy_steps.tolist()
    assert max(steps) <= totals.steps[0]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_request_ends_as_it_does_alone(name):
    """Cancels aside, which may come before or after an end."""
    asks = [ask for ask in mixed_asks() if ask.cancel_ns is None and ask.after is None]
    alone = Simulation(request_table(asks), SYSTEMS[name], small_tables())
    alone.run()
    ranked = run(SYSTEMS[name], 3, asks=asks)
    assert np.array_equal(alone.journal().status, ranked.journal().status)
    assert np.array_equal(alone.journal().output_tokens, ranked.journal().output_tokens)
    parts = ranked.journal()
    done = parts.status == FINISHED
    assert np.array_equal(parts.parts_ns.sum(1)[done], (parts.finish_ns - parts.arrival_ns)[done])


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_with_equal_work_are_as_many_plain_engines(name, ranks):
    """Every request comes once for each rank, with tokens of its own: nobody waits, and each rank runs as if alone."""
    shapes = [(9 + 7 * (i % 4), (3, 25, 12)[i % 3], 3_000 * i) for i in range(12)]
    one = [Ask([(100 + i, 0, n)], [(500 + i, 0, m)], at, m, m) for i, (n, m, at) in enumerate(shapes)]
    many = [
        Ask([(1000 * (r + 1) + i, 0, n)], [(1000 * (r + 1) + 500 + i, 0, m)], at, m, m)
        for i, (n, m, at) in enumerate(shapes)
        for r in range(ranks)
    ]
    alone = Simulation(request_table(one), SYSTEMS[name], small_tables())
    alone.run()
    simulation = run(SYSTEMS[name], ranks, "round-robin", many)
    assert simulation.barrier().wait_ns.tolist() == [0] * ranks
    want, got = alone.journal(), simulation.journal()
    for field in ("scheduled_ns", "first_token_ns", "finish_ns", "cached_tokens"):
        for rank in range(ranks):
            assert np.array_equal(getattr(got, field)[rank::ranks], getattr(want, field)), (field, rank)


def burst(count: int, prompt: int = 12, output: int = 5) -> list[Ask]:
    return [Ask([(i + 50, 0, prompt)], [(i + 500, 0, output)], 0, output, output) for i in range(count)]


def test_least_waiting_and_turns_deal_a_burst_evenly():
    for deal in ("least-waiting", "round-robin", "shortest-queue", "fewest-tokens"):
        simulation = run(VLLM, 4, deal, burst(12))
        assert np.bincount(simulation.engine.seqs.engine, minlength=4).tolist() == [3, 3, 3, 3]


def test_fewest_tokens_looks_at_lengths():
    asks = [Ask([(9, 0, 40)], [(90, 0, 3)], 0, 3, 3), *burst(4, 10)]
    dealt = run(VLLM, 2, "fewest-tokens", asks).engine.seqs.engine.tolist()
    assert dealt == [0, 1, 1, 1, 1]
    assert run(VLLM, 2, "shortest-queue", asks).engine.seqs.engine.tolist() == [0, 1, 0, 1, 0]


def test_all_ranks_are_padded_to_the_widest():
    """One rank decodes five sequences, the other four: both take the graph of eight."""
    tables = small_tables()
    values = {**tables.read(), "graph_sizes": padding(Graphs((1, 2, 4, 8, 16)))}
    padded = CostTables(*(values[name] for name in CostTables.fields))
    simulation = LockstepSimulation(request_table(burst(9, 4, 20)), one_instance(VLLM, padded, 2), "round-robin")
    seen = set()
    while not simulation.advance(max_steps=1):
        rows = tuple(int(e.decode_seqs) for e in simulation.engines)
        seen.add((rows, *(float(e.query[GRAPH_BUCKET]) for e in simulation.engines)))
    assert ((5, 4), 8.0, 8.0) in seen
    assert all(one == other for _, one, other in seen)


def test_a_rank_without_work_runs_dummies():
    simulation = run(VLLM, 3, asks=burst(1))
    totals = simulation.barrier()
    assert totals.dummy_steps.tolist() == [0, totals.steps[1], totals.steps[2]]
    assert totals.dummy_ns[1] == totals.busy_ns[1] > 0


def test_no_rank_admits_while_one_is_full():
    """Two long requests fill rank 0 (turns: 0, 1, 0, ...); rank 1 has ended its own and waits with the third."""
    system = replace(VLLM, scheduler=replace(VLLM.scheduler, max_num_seqs=2))
    outputs = [40, 2, 40, 2, 3, 3]
    asks = [Ask([(i + 50, 0, 6)], [(i + 500, 0, n)], 0, n, n) for i, n in enumerate(outputs)]
    free, held = (
        LockstepSimulation(request_table(asks), one_instance(system, small_tables(), 2), "round-robin", balance=balance)
        for balance in (False, True)
    )
    for simulation in (free, held):
        simulation.run()
    first, second = free.journal(), held.journal()
    assert np.all(second.status == FINISHED)
    assert first.scheduled_ns[5] < first.finish_ns[0]
    assert second.scheduled_ns[5] >= min(second.finish_ns[0], second.finish_ns[2]) - VLLM.detokenize_ns


def test_an_unknown_rule_is_told():
    with pytest.raises(UsageError, match="unknown rule 'luck'"):
        run(VLLM, 2, "luck")


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 20_000)), min_size=1, max_size=12),
    st.sampled_from(DEALS),
    st.booleans(),
)
def test_whatever_comes_it_ends_and_adds_up(ranks, shapes, deal, overlap):
    asks = [
        Ask([(i + 50, 0, prompt)], [(i + 500, 0, output)], at, output, output)
        for i, (prompt, output, at) in enumerate(sorted(shapes, key=lambda shape: shape[2]))
    ]
    simulation = run(replace(VLLM, overlap=overlap), ranks, deal, asks)
    totals, journal = simulation.barrier(), simulation.journal()
    assert np.all(journal.status == FINISHED)
    assert journal.output_tokens.tolist() == [ask.output_tokens for ask in asks]
    assert np.all(totals.wait_ns == totals.step_ns - totals.busy_ns)
