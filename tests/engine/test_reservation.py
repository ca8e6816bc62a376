"""Reservation baselines: a stretch of memory for each sequence, and where its slots go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.core.journal import FINISHED
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.scheduler.state_columns import BLOCKS, FREE_SLOT, PHASE, SEQ

from ..reference.engine import Ask
from .compare import finish, small_tables
from .workloads import request_table, workloads

ALLOCATIONS = ("contiguous", "buddy", "oracle")
EACH = pytest.mark.parametrize("allocation", ALLOCATIONS)


def system(allocation: str, blocks: int = 64, block_tokens: int = 4, max_model_len: int = 120) -> EngineSettings:
    rules = SchedulerRules(max_num_seqs=16, max_num_batched_tokens=64)
    cache = CacheRules("none", blocks, allocation=allocation)
    return EngineSettings(rules, cache, block_tokens, max_model_len, record_steps=True, check=True)


def ask(number: int, prompt: int = 20, output: int = 13, **more: Any) -> Ask:
    return Ask([(10 + number, 0, prompt)], [(500 + number, 0, output)], 0, output, output, **more)


def size_of(allocation: str, a: Ask, s: EngineSettings) -> int:
    """Blocks of a request's stretch."""
    tokens = {
        "contiguous": s.max_model_len,
        "buddy": a.num_prompt + a.max_tokens,
        "oracle": a.num_prompt + min(a.output_tokens, a.max_tokens, s.max_model_len - a.num_prompt) - 1,
    }[allocation]
    blocks = -(-tokens // s.block_tokens)
    return 1 << (blocks - 1).bit_length() if allocation == "buddy" else blocks


def check_stretches(e: Any, asks: list[Ask], s: EngineSettings, of_request: list[int]) -> None:
    taken: list[int] = []
    for slot in np.flatnonzero(e.slots.rec[:, PHASE] != FREE_SLOT).tolist():
        n = int(e.slots.rec[slot, BLOCKS])
        row = e.slots.table[slot, :n].tolist()
        assert row == list(range(row[0], row[0] + n))
        assert n == size_of(s.cache.allocation, asks[of_request[int(e.slots.rec[slot, SEQ])]], s)
        assert s.cache.allocation != "buddy" or (row[0] - 1) % n == 0
        taken += row
    assert len(set(taken)) == len(taken) == e.pool.num_blocks - e.pool.num_free


@settings(max_examples=60)
@given(workloads(), st.sampled_from(ALLOCATIONS), st.sampled_from([1, 4, 16]), st.integers(0, 60))
def test_every_sequence_has_one_stretch_and_the_parts_add_up(asks, allocation, block_tokens, more):
    s = system(allocation, -(-160 // block_tokens) + more, block_tokens, max_model_len=150)
    simulation = Simulation(request_table(asks), s, small_tables())
    e = simulation.engine
    of_request = [i for i, a in enumerate(asks) for _ in range(a.samples)]
    for _ in range(4000):
        done = simulation.advance(max_steps=1)
        check_stretches(e, asks, s, of_request)
        if done:
            break
    assert done
    assert e.pool.num_free == e.pool.num_blocks
    journal, counters = simulation.journal(), simulation.counters()
    ended = journal.status == FINISHED
    expected = np.array([min(a.output_tokens, a.max_tokens) for a in asks])[journal.request_index]
    assert np.array_equal(journal.output_tokens[ended], expected[ended])
    assert counters.preemptions == 0
    parts = (counters.kv_tokens_mean, counters.kv_reserved_mean, counters.kv_internal_mean)
    assert min(*parts, counters.kv_external_mean) >= 0
    assert sum(parts) == pytest.approx(counters.used_blocks_mean * block_tokens)
    assert sum(parts) + counters.kv_external_mean <= e.pool.num_blocks * block_tokens + 1e-6
    if allocation == "oracle" and not any(a.cancel_ns is not None for a in asks) and block_tokens == 1:
        assert counters.kv_internal_mean == 0


@EACH
def test_the_parts_of_one_request_by_hand(allocation):
    """20 tokens of prompt, 3 of output, of which the last has no KV: 22 in all; steps hold 20, 21, 22 tokens."""
    s = system(allocation)
    simulation = Simulation(request_table([ask(0, 20, 3)]), s, small_tables())
    finish(simulation)
    steps = simulation.journal().steps
    weight = np.diff(np.append(steps[:, 0], steps[-1, 0] + steps[-1, 1]) // 1000)
    granted = {"contiguous": 120, "buddy": 32, "oracle": 24}[allocation]
    counters = simulation.counters()
    assert counters.kv_tokens_mean == pytest.approx((np.array([20, 21, 22]) * weight).sum() / weight.sum())
    assert counters.kv_reserved_mean == pytest.approx((np.array([2, 1, 0]) * weight).sum() / weight.sum())
    assert counters.kv_internal_mean == granted - 22
    assert counters.kv_external_mean == 0


def test_free_blocks_that_nobody_can_use_are_external_waste():
    """64 blocks hold two stretches of 30; four are left over while a third request waits."""
    simulation = Simulation(request_table([ask(i, output=40) for i in range(3)]), system("contiguous"), small_tables())
    assert not simulation.advance(max_steps=3)
    assert simulation.engine.external_slots == 4 * 4
    finish(simulation)
    assert simulation.engine.external_slots == 0


def test_better_knowledge_lets_more_run_at_once():
    running = []
    for allocation in ALLOCATIONS:
        simulation = Simulation(request_table([ask(i) for i in range(12)]), system(allocation), small_tables())
        finish(simulation)
        running.append(int(simulation.journal().steps[:, 5].max()))
    assert running == [2, 4, 8]  # 64 blocks: 30, 16, 8 each


def test_a_request_that_is_larger_than_the_largest_buddy_is_refused():
    simulation = Simulation(request_table([ask(0, 60, 10), ask(1)]), system("buddy", blocks=31), small_tables())
    finish(simulation)
    assert simulation.journal().status.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": CacheRules("hash", 64, allocation="buddy")}, "shares no blocks"),
        ({"cache": CacheRules("none", 64, allocation="buddy", copy_on_write=True)}, "shares no blocks"),
        ({"cache": CacheRules("none", 20, allocation="contiguous")}, "reserves max_model_len = 120 tokens"),
        ({"scheduler": SchedulerRules(discipline=PREFILL_FIRST)}, "shares no blocks"),
        ({"batching": "static"}, "shares no blocks"),
    ],
)
def test_what_cannot_be_reserved(change, message):
    with pytest.raises(UsageError, match=message) as caught:
        Simulation(request_table([ask(0)]), replace(system("buddy"), **change), small_tables())
    assert "\n" not in str(caught.value)
