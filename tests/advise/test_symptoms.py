"""A planted cause is the first symptom, two causes are both found, a healthy run has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.advise.evidence import Evidence, evidence_of, waiting_by_cause
from kvbench.advise.levers import OF_SYMPTOM
from kvbench.advise.symptoms import RULES, find_symptoms, prefixes_again
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.core.journal import STEP_COLUMNS

from .planted import BOTH, FLEETS, HEALTHY, PLANTED, planted


def evidence(changes: tuple[str, ...], seed: int = 0) -> Evidence:
    configured = planted(changes, ("--seed", f"seed={seed}"))
    return evidence_of(run(configured, None, True), build_system(configured.config, True))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_the_first_symptom(name):
    found = find_symptoms([evidence(PLANTED[name])], [])
    assert [s.name for s in found][:1] == [name]
    assert found[0].signal >= found[0].threshold > 0
    assert 0 < found[0].weight <= 1
    assert all(text.strip() for text in found[0].evidence)


@pytest.mark.parametrize("names", BOTH)
def test_two_causes_are_both_found(names):
    found = {s.name for s in find_symptoms([evidence(BOTH[names])], [])}
    assert set(names) <= found


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_a_healthy_run_has_none(preset):
    assert find_symptoms([evidence((*HEALTHY, f"preset={preset}"))], []) == []


def test_a_symptom_that_few_seeds_show_is_none():
    ill, well = evidence(PLANTED["places-limit"]), evidence(HEALTHY)
    assert find_symptoms([ill, well, well], []) == []
    assert [s.name for s in find_symptoms([ill, ill, well], [])] == ["places-limit"]


def test_symptoms_of_a_broken_promise_come_first():
    both = evidence(BOTH["places-limit", "prefill-stalls"])
    order = {broken: [s.name for s in find_symptoms([both], [broken])] for broken in ("ttft", "itl")}
    assert order["ttft"][0] == "places-limit"
    assert order["itl"][0] == "prefill-stalls"


def test_what_is_computed_needlessly_is_no_stall_of_its_own():
    e = evidence(PLANTED["prefill-stalls"])
    assert e.needless == 0
    spared = replace(e, cached=(0.0, 0.9, 0.99))
    assert "prefill-stalls" not in {s.name for s in find_symptoms([spared], [])}


def test_every_symptom_has_levers():
    names = {rule.__name__.replace("_", "-") for rule in RULES}
    assert names == set(OF_SYMPTOM)


def test_waiting_is_told_by_what_held_the_head_back():
    config = build_system(planted(("scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=512")).config).config

    def row(running: int, waiting: int, prefill: int, decode: int) -> list[int]:
        values = {"duration_ns": 10, "running": running, "waiting": waiting, "prefill_tokens": prefill}
        return [({**values, "decode_seqs": decode}).get(name, 0) for name in STEP_COLUMNS]

    steps = np.array([row(4, 2, 0, 4), row(3, 3, 509, 3), row(3, 5, 0, 3), row(2, 0, 0, 2)], np.int64)
    assert waiting_by_cause(steps, config) == {"places": 20, "device": 30, "memory": 50}
    # prefill goes first: beside one nobody waits for memory
    config = config.replaced({"scheduler.discipline": "prefill-first", "scheduler.max_running_requests": 4}, "test")
    steps = np.array([row(3, 3, 100, 0), row(3, 5, 0, 3)], np.int64)
    assert waiting_by_cause(steps, config) == {"places": 0, "device": 30, "memory": 50}


def test_the_gap_is_told_apart():
    """Of 90 points that an endless cache finds: 20 lost by spreading, 30 by memory, 15 by policy."""
    e = replace(evidence(FLEETS["prefixes-again"]), cached=(0.25, 0.4, 0.9), routed=0.7)
    again = prefixes_again(e)
    assert again.evidence[-1] == (
        "of the gap 20.0 % points are routing, 30.0 % memory, 15.0 % policy: 40.0 % here with the future known"
    )
    # what the whole memory could have found is no more than what the engines can
    again = prefixes_again(replace(e, cached=(0.25, 0.8, 0.9)))
    assert "20.0 % points are routing, 0.0 % memory, 45.0 % policy" in again.evidence[-1]
