"""Nobody waits for what can never run: it is refused at arrival, with a reason, or else it runs alone."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import FAILED, FINISHED, REFUSED
from kvbench.core.requests import NONE
from kvbench.engine.arrival import TAKEN, Arrivals, arrivals

from . import systems
from .compare import small_tables
from .test_clients import plain
from .test_copy_on_write import systems as forking
from .test_reservation import system as reserving
from .test_runs import SGLANG, VLLM
from .workloads import request_table, workloads

NUM_CASES = 2000 if "KVBENCH_LONG" in os.environ else 25
SEARCH = settings(max_examples=NUM_CASES, suppress_health_check=list(HealthCheck), deadline=None)


@st.composite
def unpaged(draw: st.DrawFn) -> systems.Case:
    """Static batches, and memory that is reserved in one piece."""
    allocation = draw(st.sampled_from(["paged", "contiguous", "buddy", "oracle"]))
    longest = draw(st.sampled_from([30, 60, 200]))
    least = -(-longest // 4) if allocation == "contiguous" else 4
    system = reserving(allocation, draw(st.integers(least, 60)), 4, longest)
    return draw(workloads()), replace(system, batching="static" if allocation == "paged" else "continuous")


SYSTEMS = {
    "vllm-0.19": systems.vllm("0.19", False),
    "vllm-0.33": systems.vllm("0.33", False),
    "sglang": systems.sglang(False),
    "copy-on-write": forking(),
    "unpaged": unpaged(),
}


@pytest.mark.parametrize("system", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_a_head_that_nobody_foresaw_goes_as_soon_as_nothing_runs(system, monkeypatch):
    """Whoever comes behind it, and however much later, is not kept waiting for that."""

    def taken(requests, fleet):
        return Arrivals(np.full(len(requests), TAKEN), requests.max_tokens, requests.output_tokens)

    monkeypatch.setattr("kvbench.cluster.simulation.taken_by", taken)
    tokens = system.cache.num_blocks * system.block_tokens
    first, large, small = plain(0, output=9), plain(1, 1_000, prompt=tokens + 1), plain(2, 2_000, prompt=10)
    requests = request_table([first, large, small, plain(3, 10**12)])
    for more in ({}, {"overlap": True}):
        simulation = Simulation(requests, replace(system, check=True, record_steps=True, **more), small_tables())
        simulation.run()
        rows = simulation.journal()
        assert rows.status.tolist() == [FINISHED, FAILED, FINISHED, FINISHED]
        over = rows.finish_ns[0] - system.detokenize_ns
        assert rows.scheduled_ns[2] <= rows.finish_ns[1] <= over + 20_000
        assert rows.scheduled_ns[3] == rows.queued_ns[3]


@pytest.mark.parametrize("name", SYSTEMS)
def test_who_is_taken_can_run_alone(name):
    @SEARCH
    @given(SYSTEMS[name], st.integers(0, 30), st.booleans())
    def check(case: systems.Case, which: int, overlap: bool) -> None:
        asks, system = case
        one = replace(asks[which % len(asks)], after=None, joins=None, cancel_ns=None, arrival_ns=0, samples=1)
        system = replace(system, overlap=overlap and not system.cache.copy_on_write and name != "unpaged")
        requests = request_table([one])
        simulation = Simulation(requests, system, small_tables())
        simulation.run()
        rows, taken = simulation.journal(), arrivals(requests, system).reason[0] == TAKEN
        assert set(rows.status.tolist()) == {FINISHED if taken else REFUSED}
        assert not taken or rows.scheduled_ns.tolist() == rows.queued_ns.tolist()

    check()


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_request_waits_for_one_that_can_never_run(name):
    """Among others, too, everybody who is taken is scheduled some time, or cancelled."""

    @SEARCH
    @given(SYSTEMS[name])
    def check(case: systems.Case) -> None:
        asks, system = case
        simulation = Simulation(request_table(asks), system, small_tables())
        try:
            simulation.run()
        except KvbenchError as error:
            if "did not get the blocks" in str(error):  # SGLang dies there too
                return
            raise
        rows = simulation.journal()
        assert not ((rows.status == FAILED) & (rows.scheduled_ns == NONE)).any()

    check()
