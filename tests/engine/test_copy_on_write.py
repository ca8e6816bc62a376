"""Whole runs with forks: samples, beams and turns, in little memory, every text read back in every step."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.journal import CANCELLED, FINISHED, REFUSED, STATUS_NAMES
from kvbench.engine.lineage import common_tokens, lineage_table
from kvbench.engine.settings import PREFILL_FIRST, BeamRules, CacheRules, EngineSettings, SchedulerRules
from kvbench.engine.simulation import Simulation
from kvbench.scheduler.state_columns import COMMON, PARENT, WANTED

from ..reference.engine import Ask
from .compare import finish, small_tables
from .systems import vllm
from .texts import Texts, run_with_texts
from .workloads import request_table

pytestmark = pytest.mark.skipif(os.environ.get("KVBENCH_TEST_JIT") == "1", reason="verbs are wrapped in Python")

SYSTEM = EngineSettings(
    SchedulerRules(max_num_seqs=16, max_num_batched_tokens=64),
    CacheRules("none", 60, copy_on_write=True, block_bytes=1000),
    block_tokens=4,
    max_model_len=400,
    record_steps=True,
)
HASHED = replace(SYSTEM, cache=replace(SYSTEM.cache, kind="hash"))
BOTH = pytest.mark.parametrize("system", [SYSTEM, HASHED], ids=["none", "hash"])


def with_beams(system: EngineSettings, width: int, skew: float = 0.5, seed: int = 3) -> EngineSettings:
    return replace(system, beam=BeamRules(width, skew, seed))


def ask(number: int, prompt: int = 22, output: int = 9, **more) -> Ask:
    return Ask([(10 + number, 0, prompt)], [(500 + 20 * number, 0, output)], 0, output, output, **more)


def all_given_back(simulation: Simulation) -> None:
    e = simulation.engine
    assert e.pool.num_free == e.pool.num_blocks
    assert e.table_blocks == e.context == e.slots.holders == e.slots.running == 0
    assert e.slots.num_free == e.slots.rec.shape[0]


# ---------------------------------------------------------------- anything at all


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[Ask], EngineSettings]:
    asks, system = draw(vllm(draw(st.sampled_from(["0.19", "0.33"])), fast=False))
    width = draw(st.sampled_from([0, 0, 1, 2, 4]))
    most = max(width, *(a.samples for a in asks))
    rules = replace(system.scheduler, max_num_seqs=max(system.scheduler.max_num_seqs, most))
    if width:
        asks = [replace(a, samples=1) for a in asks]
    asks = [replace(a, output=[(500 + 20 * i, 0, a.output_tokens)]) for i, a in enumerate(asks)]
    cache = replace(system.cache, copy_on_write=True)
    return asks, replace(
        system, scheduler=rules, cache=cache, beam=BeamRules(width, draw(st.sampled_from([0.0, 0.5, 1.0])), 1)
    )


@settings(max_examples=60)
@given(systems())
def test_every_sequence_reads_its_own_text(case):
    asks, system = case
    simulation, texts = run_with_texts(asks, system)
    journal = simulation.journal()
    assert journal.status.size == sum(a.samples for a in asks)
    done = journal.status == FINISHED
    expected = np.array([min(a.output_tokens, a.max_tokens) for a in asks])[journal.request_index]
    assert np.array_equal(journal.output_tokens[done], expected[done])
    assert simulation.counters().copied_blocks == texts.num_copies
    e = simulation.engine
    while e.kept_head >= 0:  # of turns that were cancelled before they were admitted
        from kvbench.scheduler.forks import drop

        drop(e, int(e.kept_head))
    all_given_back(simulation)
