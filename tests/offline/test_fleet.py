"""Caches behind a router without a clock: one engine is no fleet, turns are a split, affinity keeps hits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.cluster.fleet import Fleet, Member
from kvbench.core.errors import UsageError
from kvbench.engine.settings import EngineSettings
from kvbench.offline.fleet import replay_fleet
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.routing.settings import POLICIES, RouterSettings

from ..engine.compare import small_tables
from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import request_table
from ..reference.engine import Ask

SYSTEMS = {"vllm": VLLM, "sglang": SGLANG}


def asks(n: int = 60) -> list[Ask]:
    """Documents of 28 tokens with a question of their own."""
    return [Ask([(1 + i * 7 % 5, 0, 28), (50 + i, 0, 3 + i % 4)], [(200 + i, 0, 4)], i, 4, 4) for i in range(n)]


def fleet_of(systems: list[EngineSettings], router: RouterSettings) -> Fleet:
    return Fleet(tuple(Member(system, small_tables()) for system in systems), router)


def offline(some: list[Ask]) -> Offline:
    return Offline(request_table(some), 4)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "session"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_one_engine_behind_a_router_is_no_fleet(name, policy):
    alone = replay_cache(offline(asks()), SYSTEMS[name], small_tables())
    fleet = replay_fleet(offline(asks()), fleet_of([SYSTEMS[name]], RouterSettings(policy=policy)))
    for figure in ("hit_tokens", "prompt_tokens", "evicted_blocks", "requests", "refused"):
        assert fleet[figure] == alone[figure], figure


@pytest.mark.parametrize("name", SYSTEMS)
def test_turns_are_separate_replays_of_a_split(name):
    fleet = replay_fleet(offline(asks()), fleet_of([SYSTEMS[name]] * 3, RouterSettings()))
    parts = [replay_cache(offline(asks()[i::3]), SYSTEMS[name], small_tables()) for i in range(3)]
    assert fleet["hit_tokens"] == sum(p["hit_tokens"] for p in parts)
    assert fleet["evicted_blocks"] == sum(p["evicted_blocks"] for p in parts)
    for rate, part in zip(fleet["hit_rate_engines"], parts, strict=True):
        assert rate == pytest.approx(part["hit_rate_tokens"])
    assert fleet["requests_engines"] == [20, 20, 20]


@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware", "prefix-hash", "oracle", "scorers"])
def test_affinity_keeps_what_turns_lose(policy):
    system = replace(VLLM, cache=replace(VLLM.cache, num_blocks=24))  # room for two or three documents
    hits = {}
    for name in ("round-robin", policy):
        router = RouterSettings(policy=name, bound=3.0) if name == "prefix-hash" else RouterSettings(policy=name)
        hits[name] = replay_fleet(offline(asks(200)), fleet_of([system] * 3, router))["hit_rate_tokens"]
    assert hits[policy] > 1.3 * hits["round-robin"]


def test_what_it_refuses():
    none = replace(VLLM, cache=replace(VLLM.cache, kind="none"))
    with pytest.raises(UsageError, match="has nothing to replay"):
        replay_fleet(offline(asks()), fleet_of([VLLM, none], RouterSettings()))


@pytest.mark.parametrize("policy", ["kv-aware", "scorers", "predicted-ttft"])
def test_what_is_true_now_is_asked_before_every_decision(policy):
    """Events come at once here, so they and the truth agree; caches are so small that what was true is not for long."""
    system = replace(VLLM, cache=replace(VLLM.cache, num_blocks=24))
    told, true = (
        replay_fleet(offline(asks(120)), fleet_of([system] * 3, RouterSettings(policy, belief=belief, seed=2)))
        for belief in ("events", "truth")
    )
    assert told == true
    assert told["evicted_blocks"] > 0
