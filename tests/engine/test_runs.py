"""Runs in slices, engines side by side, and the same bytes every time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import PARTIAL, STATUS_NAMES
from kvbench.core.units import NEVER_NS
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules

from ..reference.engine import Ask
from .compare import compare, gap_counts, journal_rows, small_tables
from .workloads import request_table

ROOT = Path(__file__).resolve().parents[2]

VLLM = EngineSettings(
    SchedulerRules(max_num_seqs=16, max_num_batched_tokens=48, self_preemption_ends_step=False),
    CacheRules("hash", 40),
    block_tokens=4,
    max_model_len=400,
    detokenize_ns=50,
    record_steps=True,
)
SGLANG = EngineSettings(
    SchedulerRules(discipline=PREFILL_FIRST, chunked_prefill_size=32, clip_max_new_tokens=4),
    CacheRules("radix", 44, free_order="auto"),
    block_tokens=4,
    max_model_len=400,
    tokenize_ns_per_token=20,
    record_steps=True,
)
SYSTEMS = {
    f"{name}-{path}": replace(system, fast=path == "calendar")
    for name, system in (("vllm", VLLM), ("sglang", SGLANG))
    for path in ("step", "calendar")
}
EACH = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)


def mixed_asks() -> list[Ask]:
    """Chats with two turns, samples, cancels and a request that is refused, in little memory."""
    asks = []
    for i in range(14):
        output = (3, 25, 40, 12)[i % 4]
        prompt = [(1 + i % 2, 0, 20), (20 + i, 0, 3 + 5 * (i % 5))]
        ask = Ask(
            prompt, [(100 + 10 * i, 0, output)], 4_000 * i, output, output + 2 * (i % 3), samples=1 + (i % 5 == 0)
        )
        ask.priority, ask.cancel_ns = i % 3, 30_000 if i % 6 == 5 else None
        asks.append(ask)
        if i % 3 == 0:
            again = [*ask.prompt, *ask.output, (60 + i, 0, 9)]
            asks.append(Ask(again, [(300 + i, 0, 9)], 0, 9, 9, after=len(asks) - 1, think_ns=5_000))
    asks.append(Ask([(9, 0, 500)], [(999, 0, 4)], 60_000, 4, 4))
    return asks


def run(system: EngineSettings) -> Simulation:
    simulation = Simulation(request_table(mixed_asks()), system, small_tables())
    simulation.run()
    return simulation


def digest(simulation: Simulation) -> str:
    """Of every byte of the journal and of all counters but the name of the path."""
    journal = simulation.journal()
    counters = {name: value for name, value in asdict(simulation.counters()).items() if name not in ("path", "tiers")}
    columns = [getattr(journal, f.name) for f in fields(journal)]
    parts = [c.tobytes() if isinstance(c, np.ndarray) else repr(c).encode() for c in (*columns, counters)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@EACH
def test_the_workload_of_this_file_is_not_a_tame_one(system):
    simulation = compare(mixed_asks(), system)
    counters = simulation.counters()
    assert counters.preemptions > 1
    assert counters.evicted_blocks > 10
    assert counters.matched_tokens > 100
    seen = {STATUS_NAMES[status] for status in simulation.journal().status}
    assert seen == {"finished", "cancelled", "refused"}


@EACH
def test_two_runs_give_the_same_bytes(system):
    assert digest(run(system)) == digest(run(system))


def test_two_processes_give_the_same_bytes():
    code = "from tests.engine.test_runs import SYSTEMS, digest, run\nfor s in SYSTEMS.values(): print(digest(run(s)))"
    command = [sys.executable, "-W", "error", "-c", f"import tests.conftest\n{code}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "77"}, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == [digest(run(system)) for system in SYSTEMS.values()]


@EACH
@pytest.mark.parametrize("max_steps", [1, 3, 7])
def test_slices_of_steps_change_nothing(system, max_steps):
    simulation = Simulation(request_table(mixed_asks()), system, small_tables())
    slices = 0
    while not simulation.advance(max_steps=max_steps):
        slices += 1
    assert slices > 10
    assert digest(simulation) == digest(run(system))


@EACH
def test_slices_of_time_change_nothing_and_no_step_starts_after_them(system):
    simulation = Simulation(request_table(mixed_asks()), system, small_tables())
    until = 0
    while not simulation.advance(until):
        started = simulation.journal().steps[:, 0]
        assert started.size == 0 or started.max() < until
        until += 3_700
    assert digest(simulation) == digest(run(system))


@EACH
def test_a_slice_ends_at_a_step_that_begins_at_its_end(system):
    starts = run(system).journal().steps[:, 0]
    for until in starts[[1, 5, -1]].tolist():
        simulation = Simulation(request_table(mixed_asks()), system, small_tables())
        assert not simulation.advance(until)
        assert simulation.journal().steps[:, 0].tolist() == starts[starts < until].tolist()


def in_turn(simulations: list[Simulation], step_ns: int) -> Iterator[int]:
    """Advance all of them to the same times, one after the other."""
    until, left = 0, list(simulations)
    while left:
        until += step_ns
        left = [s for s in left if not s.advance(until)]
        yield until


def test_engines_advanced_in_turn_do_not_see_each_other():
    together = [Simulation(request_table(mixed_asks()), s, small_tables()) for s in (*SYSTEMS.values(), VLLM)]
    assert len(list(in_turn(together, 2_500))) > 50
    alone = [run(system) for system in (*SYSTEMS.values(), VLLM)]
    assert [digest(s) for s in together] == [digest(s) for s in alone]


@EACH
def test_a_run_that_stops_half_way_says_who_is_not_done(system):
    whole = run(system)
    middle = int(np.median(whole.journal().finish_ns))
    half = Simulation(request_table(mixed_asks()), system, small_tables())
    assert not half.advance(middle)
    now, then = half.journal(), whole.journal()
    partial = now.status == PARTIAL
    assert 0 < partial.sum() < partial.size
    assert np.all(then.finish_ns[partial] >= middle)
    for f in ("status", "first_token_ns", "finish_ns", "output_tokens", "cached_tokens"):
        assert np.array_equal(getattr(now, f)[~partial], getattr(then, f)[~partial])
    assert np.all(now.output_tokens[partial] <= then.output_tokens[partial])
    assert np.all(now.finish_ns[partial] == -1)
    assert half.advance(NEVER_NS)
    assert digest(half) == digest(whole)


@EACH
def test_both_paths_give_the_same_rows(system):
    """But for the order of inter-token gaps, which are counted per step."""
    one, other = run(system), run(replace(system, fast=not system.fast))
    assert one.counters().path != other.counters().path
    assert journal_rows(one) == journal_rows(other)
    assert gap_counts(one) == gap_counts(other)
    assert one.journal().steps.tolist() == other.journal().steps.tolist()
    assert replace(one.counters(), path="") == replace(other.counters(), path="")


def test_progress_is_told_between_slices():
    told: list[tuple[int, int]] = []
    simulation = Simulation(request_table(mixed_asks()), VLLM, small_tables())
    simulation.run(lambda done, total: told.append((done, total)))
    assert told[-1] == (simulation.num_sequences, simulation.num_sequences)
