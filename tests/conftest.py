"""Fixtures that tests of several rooms share.

Tests run the product as plain Python: compiling every variant of the engine takes minutes, and the code is the
same. `test_jitted.py` starts a second run of some of them with the code compiled (KVBENCH_TEST_JIT=1).
"""

from __future__ import annotations

import os

if os.environ.get("KVBENCH_TEST_JIT") != "1":
    os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np
import pytest
from hypothesis import settings

from tests.fakes import FakeSimulation, fake_replay

np.seterr(over="ignore")  # without jit, the hash mixing wraps around loudly

# No deadline: the first example may compile. The same examples every time, so that a test fails because of a change;
# the long run looks for new ones.
LONG = os.environ.get("KVBENCH_LONG") == "1"
settings.register_profile("kvbench", deadline=None, derandomize=not LONG, max_examples=200 if LONG else 40)
settings.load_profile("kvbench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What compiles goes first: at the end, one worker would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_jitted.py")


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeSimulation]:
    """The real path from command line to files, without compiling an engine."""

    class Simulation(FakeSimulation):
        interrupt_after = None

    monkeypatch.setattr("kvbench.bench.run.Simulation", Simulation)
    monkeypatch.setattr("kvbench.bench.run.prepared", lambda simulation: simulation)
    monkeypatch.setattr("kvbench.bench.replay.replay_cache", fake_replay)
    return Simulation
