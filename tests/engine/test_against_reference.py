"""Whole runs against plain Python: every timestamp, token count, gap, counter and step equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from kvbench.engine.settings import EngineSettings

from ..reference.engine import Ask
from . import systems
from .compare import compare
from .workloads import workloads

slowly = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(asks: list[Ask], system: EngineSettings) -> None:
    """Both paths of the engine against the reference; the step path with integrity checked after every step."""
    compare(asks, replace(system, check=True, record_steps=True))


@pytest.mark.parametrize("version", ["0.19", "0.33"])
def test_vllm(version):
    @slowly
    @given(workloads(), systems.vllm(version))
    def run(asks, system):
        check(asks, system)

    run()


@slowly
@given(workloads(), systems.sglang())
def test_sglang(asks, system):
    check(asks, system)
