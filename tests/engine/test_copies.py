"""Copies to host memory beside the compute queue: blocks wait for them, and check mode sees it when they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import FAILED, FINISHED
from kvbench.engine.settings import EngineSettings
from kvbench.memory.operations import MOVING, OP_END, OP_NUMBER, OP_STATE

from . import systems
from .compare import finish, small_tables
from .test_against_reference import SYSTEMS
from .test_clients import plain
from .test_runs import EACH, SGLANG, VLLM
from .workloads import request_table

VIOLATION = r"shadow: block \d+ is written while an operation of another queue .*step \d+, request [1-3]"
SLOW = 40_000
"""ns to copy a block: many steps."""


def run(asks, system: EngineSettings) -> Simulation:
    simulation = Simulation(request_table(asks), system, small_tables())
    finish(simulation)
    return simulation


def with_blocks(system: EngineSettings, num_blocks: int, **more) -> EngineSettings:
    return replace(system, cache=replace(system.cache, num_blocks=num_blocks), check=True, **more)


# Who lets go of blocks that are being copied, and who takes them then.
CASES = {
    "finished": [plain(0, output=4, prompt=60), plain(1, arrival_ns=60_000, prompt=60, output=20)],
    "cancelled": [plain(0, output=300, prompt=60, cancel_ns=40_000), plain(1, arrival_ns=60_000, prompt=60, output=20)],
}


@EACH
@pytest.mark.parametrize("case", CASES)
def test_blocks_that_are_let_go_wait_for_their_copy(system, case):
    tight = with_blocks(system, 110 // system.block_tokens + 20, backup_ns_per_block=SLOW)
    waits = run(CASES[case], tight).journal()
    free = run(CASES[case], replace(tight, backup_ns_per_block=0)).journal()
    assert waits.scheduled_ns[0] == free.scheduled_ns[0]
    assert (waits.status == free.status).all()


@EACH
def test_without_the_fence_the_check_names_block_step_and_request(system):
    """One after the other through a cache that holds one of them: each takes the blocks of the one before."""
    asks = [plain(i, arrival_ns=70_000 * i, prompt=60, output=4) for i in range(4)]
    tight = with_blocks(system, -(-66 // system.block_tokens) + 3, backup_ns_per_block=SLOW)
    assert run(asks, tight).counters().num_steps > 0
    with pytest.raises(KvbenchError, match=VIOLATION):
        run(asks, replace(tight, faults=("no_fence",)))
    waits, free = (run(asks, s).journal().scheduled_ns for s in (tight, replace(tight, backup_ns_per_block=0)))
    assert (waits[1:] > free[1:]).all()


def test_without_the_fence_a_preempted_sequence_loses_blocks_that_are_copied():
    system = with_blocks(VLLM, 36, backup_ns_per_block=SLOW)
    asks = [plain(i, prompt=40, output=60) for i in range(3)]
    run(asks, system)
    assert run(asks, system).counters().preemptions > 0
    with pytest.raises(KvbenchError, match="is written while an operation of another queue"):
        run(asks, replace(system, faults=("no_fence",)))


def test_the_next_turn_comes_after_one_that_was_given_up_for_want_of_memory():
    """Alone, and without memory for its next token while copies hold the rest: SGLang gives it up in an empty step."""
    asks = [plain(0, prompt=56, output=2), plain(1, prompt=4, output=130), plain(2, prompt=4, output=4, after=1)]
    ended = run(asks, with_blocks(SGLANG, 36, backup_ns_per_block=50_000)).journal()
    assert ended.status.tolist() == [FINISHED, FAILED, FINISHED]
    assert ended.arrival_ns[2] == ended.finish_ns[1]


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_random_workloads_with_copies(name, overlap):
    """Integrity and shadow after every step; every copy gives back what it held."""

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(SYSTEMS[name](False), st.sampled_from([50, 3_000, 200_000]))
    def check(case: systems.Case, backup_ns: int) -> None:
        asks, system = case
        if system.cache.kind == "none":  # nothing of it could be found again
            return
        simulation = Simulation(
            request_table(asks),
            replace(system, check=True, overlap=overlap, backup_ns_per_block=backup_ns),
            small_tables(),
        )
        try:
            finish(simulation, 40_000)
        except KvbenchError as error:
            if "did not get the blocks" in str(error):  # SGLang dies there too
                return
            raise
        counters = simulation.counters()
        assert counters.backup_ns == counters.backup_blocks * backup_ns
        rows = simulation.engine.operations.rows
        moving = rows[rows[:, OP_STATE] == MOVING]
        assert np.all(np.diff(moving[np.argsort(moving[:, OP_NUMBER]), OP_END]) >= 0)

    check()
