"""Prefill and decode engines: whatever clients do, both sides come back to where they began, and times add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cluster.fleet import Fleet, Member
from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import FINISHED, NEVER, PARTIAL
from kvbench.core.units import NEVER_NS
from kvbench.engine.settings import EngineSettings
from kvbench.metrics.pairs import ttft_parts
from kvbench.pairs.settings import LAYERWISE, PairRules
from kvbench.routing.settings import RouterSettings
from kvbench.scheduler.rules import PREFILL_FIRST
from kvbench.scheduler.state_columns import HASHED, STATE_NAMES

from ..engine.compare import small_tables
from ..engine.systems import sglang, vllm
from ..engine.workloads import Ask, request_table

MOST_STEPS = 4000


def rules(settings: EngineSettings, **more) -> PairRules:
    push = settings.scheduler.discipline == PREFILL_FIRST
    values = {
        "num_prefill": 1,
        "num_decode": 1,
        "protocol": "push" if push else "pull",
        "layers": 1 if push else 0,
        "hands_out": False,
        "lease_ns": 200_000_000,
        "heartbeat_ns": 0,
        "bootstrap_ns": 10**12,
        "arrival_ns": 10**12,
        "block_bytes": 100,
        "block_fragments": 2,
        "setup_ns": 300.0,
        "fragment_ns": 2.0,
        "ns_per_byte": 1.0,
    }
    return PairRules(**values | more)


def paired(
    asks: list[Ask], settings: EngineSettings, rules: PairRules, incidents=(), again=False, **decode
) -> Simulation:
    settings = replace(settings, overlap=False, batching="continuous", check=True)
    sides = [replace(settings, role="prefill"), replace(settings, role="decode", **decode)]
    if rules.protocol == "push" and settings.cache.kind != "radix":
        sides[1] = replace(sides[1], cache=replace(sides[1].cache, kind="none"))
    prefill, decode_ = (Member(side, small_tables(), side.role) for side in sides)
    members = (prefill,) * rules.num_prefill + (decode_,) * rules.num_decode
    fleet = Fleet(members, RouterSettings(policy="round-robin"), rules, incidents=tuple(incidents), sends_again=again)
    return Simulation(request_table(asks), sides[0], prefill.tables, fleet)


def watched(simulation: Simulation, visited: Counter[str] | None = None) -> None:
    """Run to the end; after every step every engine that is at a boundary adds up."""
    for _ in range(MOST_STEPS):
        done = simulation._advance(NEVER_NS, 1)
        simulation._check_landed()
        if visited is not None:
            pairs = simulation.world.pairs
            visited.update("prefill " + STATE_NAMES[s] for s in pairs.legs.state)
            visited.update("decode " + STATE_NAMES[s] for s in simulation.seqs.state)
        if done:
            return
    pytest.fail(f"not done after {MOST_STEPS} steps")


def assert_baseline(simulation: Simulation) -> None:
    """Nothing is held, nothing moves, and every block is free or only cached."""
    for engine in simulation.engines:
        free = engine.pool.num_free + (0 if engine.rules.cache_kind == HASHED else engine.tree.evictable)
        assert free == engine.pool.num_blocks
        assert engine.slots.holders == engine.side.num_holding == engine.side.num_retracted == 0
        assert engine.side.num_queued == engine.side.num_ended == 0
        assert engine.side.num_marks == engine.side.marks.size
        assert not engine.pool.in_flight.any()
    assert simulation.world.operations.open == 0
    assert simulation.world.pairs.held == 0
    assert not simulation.world.pairs.load.any()


def assert_times_add_up(simulation: Simulation) -> None:
    journal = simulation.journal()
    assert not (journal.status == PARTIAL).any()
    over = journal.finish_ns != NEVER
    np.testing.assert_array_equal(journal.parts_ns.sum(1)[over], (journal.finish_ns - journal.arrival_ns)[over])
    done = journal.status == FINISHED
    tokens = journal.output_tokens
    assert (tokens[done] == simulation.seqs.output[done]).all()
    assert journal.itl_count.sum() == (tokens - 1)[tokens > 0].sum(), "a token was handed out twice, or never"
    assert (journal.parts_ns[done] >= 0).all()
    parts = ttft_parts(journal, simulation.pair_times())
    heard = journal.first_token_ns != NEVER
    if not simulation.fleet.pairs.hands_out:
        ttft = (journal.first_token_ns - journal.arrival_ns)[heard]
        assert Counter(sum(parts.values()).tolist()) <= Counter(ttft.tolist())
    assert all((part >= 0).all() for part in parts.values())


@given(data=st.data(), split=st.sampled_from([(1, 1), (1, 2), (2, 1)]), hands_out=st.booleans(), fast=st.booleans())
def test_pull_gives_everything_back(data, split, hands_out, fast):
    asks, settings = data.draw(vllm("0.33", fast))
    pair = rules(settings, num_prefill=split[0], num_decode=split[1], hands_out=hands_out)
    simulation = paired(asks, settings, pair)
    watched(simulation)
    assert_baseline(simulation)
    assert_times_add_up(simulation)


@given(data=st.data(), split=st.sampled_from([(1, 1), (2, 2)]), layers=st.sampled_from([0, 1, 4]), fast=st.booleans())
def test_a_push_under_a_token_budget_gives_everything_back(data, split, layers, fast):
    asks, settings = data.draw(vllm("0.33", fast))
    pair = rules(settings, protocol=LAYERWISE, num_prefill=split[0], num_decode=split[1], layers=layers)
    simulation = paired(asks, settings, pair)
    watched(simulation)
    assert_baseline(simulation)
    assert_times_add_up(simulation)


@given(data=st.data(), layers=st.sampled_from([0, 1, 4]), hands_out=st.booleans(), fast=st.booleans())
def test_push_gives_everything_back(data, layers, hands_out, fast):
    asks, settings = data.draw(sglang(fast))
    pair = rules(settings, layers=layers, hands_out=hands_out)
    reserved = data.draw(st.sampled_from([0, 4, 20]))
    simulation = paired(asks, settings, pair, reserved_decode_tokens=reserved, preallocated_requests=3)
    watched(simulation)
    assert_baseline(simulation)
    assert_times_add_up(simulation)
