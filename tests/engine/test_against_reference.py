"""Whole runs against plain Python: every timestamp, token count, gap, counter and step equal, on both paths."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from . import systems
from .compare import compare

pytestmark = pytest.mark.skipif("KVBENCH_LONG" not in os.environ, reason="takes half an hour: set KVBENCH_LONG=1")

SYSTEMS = {
    "vllm-0.19": lambda fast: systems.vllm("0.19", fast),
    "vllm-0.33": lambda fast: systems.vllm("0.33", fast),
    "sglang": systems.sglang,
}
PATHS = pytest.mark.parametrize("fast", [False, True], ids=["step", "calendar"])


def check_all(cases: SearchStrategy[systems.Case], fast: bool, num_cases: int) -> None:
    """Integrity is recomputed after every step."""

    @settings(max_examples=num_cases, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check(case: systems.Case) -> None:
        asks, system = case
        simulation = compare(asks, replace(system, check=True, record_steps=True))
        assert simulation.counters().path == ("calendar" if fast else "step")

    check()


@PATHS
@pytest.mark.parametrize("name", SYSTEMS)
def test_small_workloads(name, fast):
    check_all(SYSTEMS[name](fast), fast, num_cases=25)


@pytest.mark.skipif("KVBENCH_LONG" not in os.environ, reason="takes a quarter of an hour: set KVBENCH_LONG=1")
@PATHS
@pytest.mark.parametrize("name", SYSTEMS)
def test_many_small_workloads(name, fast):
    check_all(SYSTEMS[name](fast), fast, num_cases=1000)
