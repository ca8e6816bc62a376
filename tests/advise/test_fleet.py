"""Planted causes of several engines, ranks and tiers; levers that mislead there are told to hurt."""

from __future__ import annotations

import os

import pytest

from kvbench.advise.evidence import _ranks_wait
from kvbench.advise.symptoms import find_symptoms
from kvbench.report.experts import ExpertReport, RankRow

from .planted import FLEETS
from .test_advice import advice
from .test_symptoms import evidence

LONG = pytest.mark.skipif(not os.environ.get("KVBENCH_LONG"), reason="twenty seconds; KVBENCH_LONG=1 runs it")


@pytest.mark.parametrize("name", FLEETS)
def test_a_planted_cause_is_a_symptom(name):
    found = {s.name: s for s in find_symptoms([evidence(FLEETS[name])], [])}
    assert name in found
    assert found[name].signal >= found[name].threshold


@pytest.mark.parametrize(
    ("name", "lever"),
    [
        ("routing-imbalance", "router"),
        ("prefixes-again", "router"),
        pytest.param("transfers-exposed", "no host tier", marks=LONG),
    ],
)
def test_the_right_lever_comes_first(name, lever):
    found = advice(FLEETS[name], budget=3 if name != "transfers-exposed" else 6)
    assert found.best is not None
    assert lever in found.best.lever
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


def test_what_ranks_wait_for_is_counted():
    ranks = (RankRow(0, 10, 90, 10, 0, 0), RankRow(1, 10, 60, 40, 0, 0))
    assert _ranks_wait(ExpertReport(10, 1000, ranks)) == 0.25
    assert _ranks_wait(None) == 0.0
