"""A clock that can be had again: what is measured on it is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.measured import copies, run, worker
from kvbench.measured.copies import Copies


class Clock:
    """Stands for `time`: whoever looks at it finds that a little has passed."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random, self._now = random, 0

    def perf_counter_ns(self) -> int:
        self._now += int(self._random.integers(100, 3_000))
        return self._now


def set_clock(monkeypatch: pytest.MonkeyPatch, random: np.random.Generator, longest_copy: int) -> None:
    """Copies take up to so many ns."""
    for module in (copies, run, worker):
        monkeypatch.setattr(module, "time", Clock(random))
    monkeypatch.setattr(
        Copies, "_timed", lambda self, move: self._launch(move) or int(random.integers(1, longest_copy))
    )
