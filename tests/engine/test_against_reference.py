"""Whole runs against plain Python: every timestamp, token count, gap, counter and step equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from kvbench.engine.settings import EngineSettings

from ..reference.engine import Ask
from . import systems
from .compare import compare

slowly = settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(case: tuple[list[Ask], EngineSettings]) -> None:
    """Both paths of the engine against the reference; the step path with integrity checked after every step."""
    asks, system = case
    compare(asks, replace(system, check=True, record_steps=True))


@pytest.mark.parametrize("version", ["0.19", "0.33"])
def test_vllm(version):
    @slowly
    @given(systems.vllm(version))
    def run(case):
        check(case)

    run()


@slowly
@given(systems.sglang())
def test_sglang(case):
    check(case)
