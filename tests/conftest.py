"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.fakes import FakeSimulation, fake_replay

# No deadline: the first example may compile. Under CI the same examples every time.
settings.register_profile("kvbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kvbench")


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeSimulation]:
    """The real path from command line to files, without compiling an engine."""

    class Simulation(FakeSimulation):
        interrupt_after = None

    monkeypatch.setattr("kvbench.bench.run.Simulation", Simulation)
    monkeypatch.setattr("kvbench.bench.replay.replay_cache", fake_replay)
    return Simulation
