"""The calendar path gives what the step-by-step path gives: every journal row and every counter."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.workload.build import build_workload

SYSTEMS = {
    "vllm": EngineSettings(SchedulerRules(max_num_seqs=16, max_num_batched_tokens=128), CacheRules("hash", 60)),
    "vllm-0.19": EngineSettings(
        SchedulerRules(max_num_seqs=16, max_num_batched_tokens=128), CacheRules("hash", 60, free_order="tail")
    ),
    "vllm-none": EngineSettings(SchedulerRules(max_num_batched_tokens=1024), CacheRules("none", 60)),
    "vllm-radix": EngineSettings(SchedulerRules(max_num_batched_tokens=1024), CacheRules("radix", 60)),
    "sglang": EngineSettings(
        SchedulerRules(discipline=PREFILL_FIRST, chunked_prefill_size=64, schedule_conservativeness=0.1),
        CacheRules("radix", 60),
    ),
}


@pytest.fixture(scope="module")
def costs():
    return roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b"))).tables


@pytest.fixture(scope="module")
def requests():
    found, _ = build_workload(
        {
            "num_prompts": 40,
            "arrivals": {"process": "poisson", "rate": 60.0, "cancel_share": 0.1, "cancel_after_s": 0.3},
            "lengths": {"prompt": {"distribution": "uniform", "min": 5, "max": 200}, "output": 90},
            "sharing": {"groups": 3, "prefix": 64},
            "sessions": {"turns": 2, "think_s": 0.1},
        }
    )
    return found


def run(requests, settings, costs):
    simulation = Simulation(requests, replace(settings, record_steps=True), costs)
    assert simulation.run()
    return simulation


@pytest.mark.parametrize("name", SYSTEMS)
def test_both_paths_are_equal(name, requests, costs):
    step = run(requests, replace(SYSTEMS[name], fast=False), costs)
    fast = run(requests, SYSTEMS[name], costs)
    assert (step.counters().path, fast.counters().path) == ("step", "calendar")
    a, b = step.journal(), fast.journal()
    for field in fields(a):
        if not field.name.startswith("itl"):
            assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name
    for one, other in zip(_gaps(a), _gaps(b), strict=True):
        assert np.array_equal(one, other)
    counters = {f.name for f in fields(step.counters())} - {"path", "metadata_bytes"}
    assert {n: getattr(step.counters(), n) for n in counters} == {n: getattr(fast.counters(), n) for n in counters}
    assert step.counters().preemptions > 0, "the case is meant to be short of memory"


def test_two_engines_in_turn_do_what_each_does_alone(requests, costs):
    alone = {name: run(requests, SYSTEMS[name], costs).counters() for name in ("vllm", "sglang")}
    pair = {name: Simulation(requests, replace(SYSTEMS[name], record_steps=True), costs) for name in alone}
    until, done = 0, False
    while not done:
        until += 200_000_000
        ended = [simulation.advance(until) for simulation in pair.values()]  # each in turn, whoever is done
        done = all(ended)
    assert {name: simulation.counters() for name, simulation in pair.items()} == alone


def _gaps(journal):
    gaps, which = np.unique(journal.itl_gap_ns, return_inverse=True)
    return gaps, np.bincount(which, journal.itl_count)
