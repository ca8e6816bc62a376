"""Planted causes of several engines, ranks and tiers; levers that mislead there are told to hurt."""

from __future__ import annotations

import os

import pytest

from kvbench.advise.evidence import ranks_wait
from kvbench.advise.fleet_levers import expert_balance, separation, storage_tier, streams
from kvbench.advise.symptoms import find_symptoms
from kvbench.bench.system import build_system

from .planted import FLEETS, HEALTHY, PLANTED, planted
from .test_advice import advice
from .test_symptoms import evidence

LONG = pytest.mark.skipif(not os.environ.get("KVBENCH_LONG"), reason="twenty seconds; KVBENCH_LONG=1 runs it")


@pytest.mark.parametrize("name", [name for name in FLEETS if " " not in name])
def test_a_planted_cause_is_a_symptom(name):
    found = {s.name: s for s in find_symptoms([evidence(FLEETS[name])], [])}
    assert name in found
    assert found[name].signal >= found[name].threshold


@pytest.mark.parametrize(
    ("name", "lever"),
    [
        ("routing-imbalance", "router"),
        ("exchange-exposed", "two-batch overlap"),
        pytest.param("prefixes-again", "router", marks=LONG),
    ],
)
def test_the_right_lever_comes_first(name, lever):
    found = advice(FLEETS[name], budget=3)
    assert found.best is not None
    assert lever in found.best.lever
    assert found.best.devices == 1


@LONG
def test_kv_that_arrives_late_is_answered_by_less_of_it():
    """Without the host tier, or with a cache that needs none: the slow link is out of the way in both."""
    found = advice(FLEETS["transfers-exposed"], budget=6)
    assert {"no host tier", "more blocks"} <= {line.lever for line in found.levers if line.verdict == "better"}
    assert found.best.devices == 1


@LONG
def test_a_tier_behind_a_slow_link_is_told_to_hurt():
    """Prefixes do not fit the device, and the host is too slow to help."""
    without = tuple(text for text in FLEETS["transfers-exposed"] if not text.startswith("tiers."))
    found = advice(without, budget=12)
    assert "prefixes-again" in {s.name for s in found.symptoms}
    tiers = [line for line in found.levers if line.lever == "host tier"]
    assert tiers
    assert all(line.verdict == "worse" for line in tiers)


def test_separation_at_low_load_is_told_to_hurt():
    found = advice(FLEETS["separated at low load"], budget=1)
    assert found.symptoms[0].name == "transfers-exposed"
    assert found.best.lever == "no separation"


def test_prefill_apart_takes_as_many_devices_where_there_are_two():
    system = build_system(planted(("fleet.replicas=4",)).config)
    splits = separation(system, evidence(HEALTHY))
    assert [option.changes[1:] for option in splits] == [
        ("pd.prefill=2", "pd.decode=2"),
        ("pd.prefill=1", "pd.decode=3"),
        ("pd.prefill=3", "pd.decode=1"),
    ]
    assert {option.devices for option in splits} == {1}
    alone = separation(build_system(planted(()).config), evidence(HEALTHY))
    assert [option.devices for option in alone] == [2]


@LONG
def test_the_price_of_prefill_apart_is_told():
    found = advice((*PLANTED["prefill-stalls"], "fleet.replicas=2"), budget=4)
    apart = next(line for line in found.levers if line.lever == "prefill apart")
    assert any(text.startswith("TTFT") for text in apart.worse)
    assert apart is not found.best


def test_what_ranks_wait_for_is_counted():
    barrier = {"wait_ns": [10, 40], "busy_ns": [90, 60], "step_ns": 1000}
    assert ranks_wait(barrier) == 0.25
    layers = [{"before": 0.9, "after": 0.5}, {"before": 0.5, "after": None}]
    assert ranks_wait({**barrier, "experts_ns": 800, "balancedness": layers}) == 0.4
    assert ranks_wait({}) == 0.0


def test_levers_of_ranks_fit_the_model_and_the_ranks():
    ranks = build_system(planted(FLEETS["ranks-wait"]).config)
    e = evidence(HEALTHY)
    assert [o.changes for o in streams(ranks, e)] == [("streams.two_batch=on",)]  # no shared expert
    deepseek = build_system(
        planted(("model=deepseek-v3", "device=h200", "tp=8", "dtype=fp8", "max_model_len=4000")).config
    )
    assert [o.changes for o in streams(deepseek, e)] == [("streams.shared_expert=on",)]  # no ranks
    assert [len(o.changes) for o in expert_balance(ranks, e)] == [1, 2, 2]
    assert streams(build_system(planted(HEALTHY).config), e) == []


def test_a_store_comes_with_a_host_tier_unless_there_is_one():
    e = evidence(FLEETS["prefixes-again"])
    assert e.needless > 0
    alone, behind = (
        storage_tier(build_system(planted((*FLEETS["prefixes-again"], *more)).config), e)
        for more in ((), ("tiers.host.ratio=2",))
    )
    assert alone[0].changes[0] == "tiers.host.ratio=2"
    assert alone[0].changes[1:] == behind[0].changes
    assert storage_tier(build_system(planted(HEALTHY).config), evidence(HEALTHY)) == []


@LONG
def test_eplb_helps_skewed_experts_and_hurts_even_ones():
    skewed = advice((*FLEETS["ranks-wait"], "experts.exponent=1.2"), budget=6)
    assert skewed.symptoms[0].name == "ranks-wait"
    assert "EPLB" in skewed.best.lever
    uneven = 'lengths.prompt={distribution="mixture", parts=[50, 3000], weights=[0.8, 0.2]}'  # prompts, not experts
    even = advice((*FLEETS["ranks-wait"], "experts.exponent=0", uneven), budget=8)
    assert even.symptoms[0].name == "ranks-wait"
    moves = [line for line in even.levers if line.lever == "EPLB"]
    assert len(moves) == 3
    assert {line.verdict for line in moves} <= {"no difference", "worse"}
    assert max(line.ratio for line in moves) > 1.005
