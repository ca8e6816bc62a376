"""Whole runs against plain Python: every timestamp, token count, gap, counter and step equal, on both paths.

KVBENCH_LONG=1 tries sixty times as many workloads (a quarter of an hour) and makes a failing one small.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import systems
from .compare import compare

LONG = "KVBENCH_LONG" in os.environ
NUM_CASES = 1000 if LONG else 15
PHASES = tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate)

SYSTEMS = {
    "vllm-0.19": lambda fast: systems.vllm("0.19", fast),
    "vllm-0.33": lambda fast: systems.vllm("0.33", fast),
    "sglang": systems.sglang,
}
WITHOUT_CALENDAR = {"vllm-by-time": lambda fast: systems.by_time()}


@pytest.mark.parametrize(
    ("name", "fast"), [*((name, fast) for name in SYSTEMS for fast in (False, True)), ("vllm-by-time", False)]
)
def test_small_workloads(name, fast):
    """Integrity is recomputed after every step."""

    @settings(max_examples=NUM_CASES, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given((SYSTEMS | WITHOUT_CALENDAR)[name](fast), st.sampled_from([0] if fast else [0, 0, 40_000]))
    def check(case: systems.Case, output_ns: int) -> None:
        asks, system = case
        simulation = compare(asks, replace(system, check=True, record_steps=True, output_ns_per_token=output_ns))
        assert simulation.counters().path == ("calendar" if fast else "step")

    check()


@pytest.mark.parametrize("name", [*SYSTEMS, *WITHOUT_CALENDAR])
def test_overlapped(name):
    """Planning beside the device: late results, ends that are foreseen or not, and the clock of both."""

    @settings(max_examples=NUM_CASES, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given((SYSTEMS | WITHOUT_CALENDAR)[name](False))
    def check(case: systems.Case) -> None:
        asks, system = case
        compare(asks, replace(system, check=True, record_steps=True, overlap=True))

    check()
