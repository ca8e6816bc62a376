"""Parallel calls: the next turn comes after the last of them, and the thinking."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import CacheRules, SchedulerRules

from ..reference.engine import Ask
from .compare import compare, small_tables
from .workloads import request_table


def ask(number, output, **more):
    return Ask(prompt=[(1, 0, 40)], output=[(100 + number, 0, output)], output_tokens=output, max_tokens=output, **more)


ASKS = [
    ask(0, 3),
    ask(1, 5, after=0),
    ask(2, 60, after=0, joins=1),
    ask(3, 20, after=0, joins=1),
    ask(4, 2, after=1, think_ns=7_000),
]
SYSTEM = EngineSettings(SchedulerRules(), CacheRules(num_blocks=100), 16, 1000, record_steps=True)


def test_the_slowest_call_decides():
    simulation = Simulation(request_table(ASKS), SYSTEM, small_tables())
    simulation.run()
    journal = simulation.journal()
    assert journal.finish_ns[2] > journal.finish_ns[3] > journal.finish_ns[1]
    assert journal.arrival_ns.tolist()[1:4] == [journal.finish_ns[0]] * 3
    assert journal.arrival_ns[4] == journal.finish_ns[2] + 7_000


@pytest.mark.parametrize("fast", [False, True], ids=["step", "calendar"])
@pytest.mark.parametrize("samples", [1, 2])
def test_as_the_reference(fast, samples):
    asks = [replace(a, samples=samples) for a in ASKS]
    compare(asks, replace(SYSTEM, fast=fast))


def test_a_call_that_is_cancelled_or_refused_keeps_nobody_waiting():
    asks = [
        *ASKS[:2],
        replace(ASKS[2], cancel_ns=1_000),
        replace(ASKS[3], output_tokens=0, output=[(103, 0, 1)]),
        ASKS[4],
    ]
    simulation = compare(asks, SYSTEM)
    assert simulation.journal().finish_ns[4] > 0


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (3, {"joins": 2}, "request 3 joins a request that joins another one"),
        (4, {"after": 2}, "request 4 waits for one call of several; it has to wait for the first"),
    ],
)
def test_tables_in_which_somebody_would_wait_for_ever(number, change, expected):
    asks = [replace(a, **change) if i == number else a for i, a in enumerate(ASKS)]
    with pytest.raises(UsageError, match=expected):
        request_table(asks).check()
