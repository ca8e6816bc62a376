"""What caches tell of their blocks: exactly what they have, at every landing; and what late and lost events do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.fleet import Fleet, Member
from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.prefix.chain_hash import chain, root_hash
from kvbench.prefix.node import LENGTH, OFFSET, PARENT
from kvbench.routing.late import catch_up
from kvbench.routing.settings import RouterSettings
from kvbench.scheduler.state_columns import HASHED

from ..engine.compare import small_tables
from ..engine.test_runs import SGLANG, VLLM, mixed_asks
from ..engine.workloads import request_table
from ..routing.test_block_view import contents


def with_eviction(system, name):
    return replace(system, cache=replace(system.cache, eviction=name))


SYSTEMS = {
    "vllm": replace(VLLM, fast=False),
    "vllm-calendar": VLLM,
    "vllm-lfu": replace(with_eviction(VLLM, "lfu"), fast=False),
    "vllm-unregister": replace(VLLM, fast=False, cache=replace(VLLM.cache, num_blocks=30, unregister_unwritten=True)),
    "sglang": replace(SGLANG, fast=False),
    "sglang-calendar": SGLANG,
    **{f"sglang-{name}": replace(with_eviction(SGLANG, name), fast=False) for name in ("slru", "s3fifo", "mru")},
}


def fleet(system, num=2, **router):
    members = tuple(Member(system, small_tables()) for _ in range(num))
    settings = RouterSettings(**({"policy": "kv-aware"} | router))
    return Simulation(request_table(mixed_asks()), system, small_tables(), Fleet(members, settings))


def cached(engine):
    """Chain hashes of the blocks that an engine has."""
    if engine.rules.cache_kind == HASHED:
        return {int(c) for c in engine.pool.content if c != 0}
    tree, out = engine.tree, set()
    for node in range(1, tree.high_node + 1):
        path, up = [], node
        while up > 0 and tree.nodes[node, LENGTH] > 0:
            offset = tree.nodes[up, OFFSET]
            path = [*tree.keys[offset : offset + tree.nodes[up, LENGTH]], *path]
            up = tree.nodes[up, PARENT]
        content = root_hash(-1 - np.int64(up))
        for key in path:
            content = chain(content, key)
            out.add(int(content))
    return out


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_router_knows_what_every_cache_has(name):
    simulation = fleet(SYSTEMS[name])
    router = simulation.world.router
    seen = 0
    done = False
    while not done:
        done = simulation.advance(max_steps=1)
        catch_up(router, 1 << 62)
        has = contents(router.blocks_told)
        k = simulation.world.at
        if simulation.world.stepping[k] == 0 or done:
            wanted = cached(simulation.engines[k])
            assert {block for block, engines in has.items() if k in engines} == wanted
            seen += len(wanted)
    assert seen > 500
    assert all(e.pool.evicted > 0 for e in simulation.engines)


@pytest.mark.parametrize("name", SYSTEMS)
def test_who_is_told_does_not_change_what_happens(name):
    journals = []
    for belief in ("own", "events"):
        simulation = fleet(SYSTEMS[name], policy="cache-aware", belief=belief, match_threshold=1.0)
        simulation.run()
        journals.append(simulation.journal())
    assert np.array_equal(journals[0].finish_ns, journals[1].finish_ns)
    assert np.array_equal(journals[0].cached_tokens, journals[1].cached_tokens)


@pytest.mark.parametrize("policy", ["kv-aware", "predicted-ttft", "cache-aware", "scorers"])
@pytest.mark.parametrize("name", ["vllm", "sglang", "vllm-calendar"])
def test_instantaneous_events_are_the_truth(name, policy):
    """The last block of a prompt that is all cached is no hit; no prompt here is made of whole blocks."""
    routes = []
    for belief in ("truth", "events"):
        simulation = fleet(SYSTEMS[name], 3, policy=policy, belief=belief)
        prompts = simulation.requests.prompt_tokens
        assert (prompts % 4 != 0).sum() > 10
        simulation.run()
        routes.append(np.asarray(simulation.engine.seqs.engine).tolist())
    assert routes[0] == routes[1]


def test_late_and_lost_events_cost_hits():
    hits = {}
    for name, more in {"now": {}, "late": {"events_delay_ms": 0.05}, "never": {"events_lost": 1.0}}.items():
        simulation = fleet(SYSTEMS["vllm"], 3, policy="predicted-ttft", belief="events", **more)
        simulation.run()
        hits[name] = int(simulation.journal().cached_tokens.sum())
        if name == "never":
            assert simulation.world.router.blocks_told.num == 0
    assert hits["now"] > hits["never"]


def test_a_share_of_the_events_is_lost():
    simulation = fleet(SYSTEMS["vllm"], 2, events_lost=0.5, events_delay_ms=1e9)
    simulation.run()
    whole = fleet(SYSTEMS["vllm"], 2, events_lost=0.0, events_delay_ms=1e9)
    whole.run()
    assert 0.4 < simulation.world.router.num_late / whole.world.router.num_late < 0.6


def test_a_policy_of_one_s_own_has_to_choose_an_engine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def last(load, cached, accepts, prompt_tokens, session, now):\n    return len(accepts) - 1\n"
        "def beyond(load, cached, accepts, prompt_tokens, session, now):\n    return len(accepts)\n"
    )
    simulation = fleet(SYSTEMS["vllm"], 3, policy=f"{file}:last")
    simulation.run()
    assert set(np.asarray(simulation.engine.seqs.engine).tolist()) <= {-1, 2}
    with pytest.raises(UsageError, match=r"returned no engine that takes requests for request 0"):
        fleet(SYSTEMS["vllm"], 3, policy=f"{file}:beyond").run()
