"""Static batching, the baseline: a batch runs to its longest member, and nobody joins it meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import CANCELLED, FINISHED
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import CacheRules, SchedulerRules

from ..reference.cost import Step
from ..reference.engine import Ask
from .compare import as_lists, finish, small_tables
from .workloads import request_table

SYSTEM = EngineSettings(
    SchedulerRules(max_num_seqs=3, max_num_batched_tokens=32),
    CacheRules("none", 60),
    block_tokens=4,
    max_model_len=400,
    batching="static",
    record_steps=True,
    check=True,
)
RUNNING, USED, DECODES = 5, 7, 2
"""Columns of a step."""


def ask(number: int, arrival_ns: int = 0, prompt: int = 10, output: int = 5, cancel_ns: int | None = None) -> Ask:
    own = 500 + number
    return Ask([(10 + number, 0, prompt)], [(own, 0, output)], arrival_ns, output, output, cancel_ns=cancel_ns)


def run(asks: list[Ask], system: EngineSettings = SYSTEM) -> Simulation:
    simulation = Simulation(request_table(asks), system, small_tables())
    finish(simulation)
    return simulation


def naive_times(asks: list[Ask], system: EngineSettings) -> list[tuple[int, int, int]]:
    """(scheduled, first token, finish) of every request, without a cache. No engine: a loop over batches."""
    times: list[list[int]] = [[0, 0, 0] for _ in asks]
    waiting, now, tables = list(range(len(asks))), 0, as_lists(small_tables())
    while waiting:
        now = max(now, asks[waiting[0]].arrival_ns)
        batch = _form_batch(asks, waiting, now, system)
        del waiting[: len(batch)]
        computed, generated = dict.fromkeys(batch, 0), dict.fromkeys(batch, 0)
        for i in batch:
            times[i][0] = now
        while any(generated[i] < asks[i].output_tokens for i in batch):
            chunks = _chunks(asks, batch, computed, system.scheduler.max_num_batched_tokens)
            active = [i for i in batch if generated[i] < asks[i].output_tokens]
            if chunks:
                step = Step(tables, [(tokens, computed[i]) for i, tokens in chunks.items()])
            else:  # who is done is computed along
                step = Step(tables, [], len(batch), sum(computed.values()) + len(active))
                chunks = dict.fromkeys(active, 1)
            now += sum(step.resources())
            for i, tokens in chunks.items():
                computed[i] += tokens
                if computed[i] >= asks[i].num_prompt:
                    generated[i] += 1
                    times[i][1] = times[i][1] or now
                    times[i][2] = now
    return [tuple(row) for row in times]


def _form_batch(asks: list[Ask], waiting: list[int], now: int, system: EngineSettings) -> list[int]:
    batch, free = [], system.cache.num_blocks
    for i in waiting[: system.scheduler.max_num_seqs]:
        need = -(-(asks[i].num_prompt + asks[i].max_tokens) // system.block_tokens)
        if asks[i].arrival_ns > now or need > free:
            break
        free -= need
        batch.append(i)
    return batch


def _chunks(asks: list[Ask], batch: list[int], computed: dict[int, int], budget: int) -> dict[int, int]:
    chunks = {}
    for i in batch:
        tokens = min(max(asks[i].num_prompt - computed[i], 0), budget)
        if tokens > 0:
            chunks[i] = tokens
            budget -= tokens
    return chunks


small_asks = st.lists(
    st.builds(
        lambda gap, prompt, output, surplus: (gap, prompt, output, surplus),
        st.sampled_from([0, 0, 1, 5_000, 60_000]),
        st.integers(1, 70),
        st.integers(1, 30),
        st.integers(0, 10),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=60)
@given(small_asks, st.integers(1, 5), st.sampled_from([9, 32, 200]), st.integers(28, 90), st.sampled_from([1, 4, 16]))
def test_times_are_those_of_a_loop_over_batches(rows, places, budget, blocks, block_tokens):
    rules = SchedulerRules(max_num_seqs=places, max_num_batched_tokens=budget)
    cache = CacheRules("none", blocks * 4 // block_tokens)
    system = replace(SYSTEM, scheduler=rules, cache=cache, block_tokens=block_tokens)
    asks, now = [], 0
    for i, (gap, prompt, output, surplus) in enumerate(rows):
        now += gap
        asks.append(replace(ask(i, now, prompt, output), max_tokens=output + surplus))
    journal = run(asks, system).journal()
    got = [journal.scheduled_ns, journal.first_token_ns, journal.finish_ns]
    assert list(zip(*(column.tolist() for column in got), strict=True)) == naive_times(asks, system)


def test_a_batch_waits_for_its_longest_member():
    journal = run([ask(0, output=3), ask(1, output=20), ask(2, output=7), ask(3, output=2), ask(4, output=2)]).journal()
    assert len(set(journal.scheduled_ns[:3].tolist())) == 1
    assert journal.finish_ns[0] < journal.finish_ns[2] < journal.finish_ns[1]  # tokens come out as they are made
    assert journal.scheduled_ns[3:].tolist() == [journal.finish_ns[1]] * 2


def test_a_client_has_its_last_token_while_the_batch_goes_on():
    """The next turn of its session comes after that token, and a place under a cap is free; the engine is not."""
    asks = [ask(0, output=3), ask(1, output=30), replace(ask(2, output=2), after=0, think_ns=100)]
    journal = run(asks).journal()
    assert journal.arrival_ns[2] == journal.finish_ns[0] + 100 < journal.finish_ns[1]
    assert journal.scheduled_ns[2] == journal.finish_ns[1]
    capped = replace(SYSTEM, concurrency=2, closed_loop=True)
    journal = run([ask(0, output=3), ask(1, output=30), ask(2, output=2)], capped).journal()
    assert journal.arrival_ns[2] == journal.finish_ns[0]
    gone = [ask(0, output=3), ask(1, output=30), replace(ask(2, output=2), after=0, cancel_ns=5)]
    journal = run(gone).journal()
    assert journal.status.tolist() == [FINISHED, FINISHED, CANCELLED]
    assert journal.finish_ns[2] == journal.finish_ns[0] + 5 or journal.finish_ns[2] < journal.finish_ns[1]


def test_nobody_joins_a_batch_and_its_places_stay_taken():
    simulation = run([ask(0, output=12), ask(1, output=2), ask(2, 1_000, output=4)])
    steps, journal = simulation.journal().steps, simulation.journal()
    first = steps[steps[:, 0] < journal.scheduled_ns[2]]
    assert journal.scheduled_ns[2] == journal.finish_ns[0]
    assert set(first[:, RUNNING]) == {2}
    assert set(first[first[:, DECODES] > 0, DECODES]) == {2}  # padding for the one that is done


def test_memory_is_reserved_whole_and_nobody_is_preempted():
    system = replace(SYSTEM, cache=CacheRules("none", 16))
    simulation = run([ask(i, prompt=10, output=12) for i in range(4)], system)
    used = simulation.journal().steps[:, USED]
    assert set(used.tolist()) == {12}  # two of six blocks each; the third does not fit
    assert simulation.counters().preemptions == 0
    starts = simulation.journal().scheduled_ns
    assert starts[0] == starts[1] < starts[2] == starts[3]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_the_next_batch_finds_what_the_last_one_left(kind):
    asks = [replace(ask(i), prompt=[(1, 0, 21)]) for i in range(6)]
    system = replace(SYSTEM, cache=CacheRules(kind, 60, free_order="auto"))
    cached = run(asks, system).journal().cached_tokens
    assert cached[:3].tolist() == [0, 0, 0]
    assert cached[3:].tolist() == [20, 20, 20]


def test_a_cancelled_member_leaves_at_once_and_one_that_is_done_stays_done():
    asks = [ask(0, output=40), ask(1, output=40, cancel_ns=20_000), ask(2, output=2, cancel_ns=20_000), ask(3)]
    journal = run(asks).journal()
    assert journal.status.tolist() == [FINISHED, CANCELLED, FINISHED, FINISHED]
    assert journal.finish_ns[2] < 20_000 <= journal.finish_ns[1] < journal.finish_ns[0]
    assert journal.scheduled_ns[3] == journal.finish_ns[0]


def test_the_batch_is_over_when_its_longest_member_is_cancelled():
    journal = run([ask(0, output=3), ask(1, output=200, cancel_ns=30_000), ask(2, 10, output=3), ask(3, 20)]).journal()
    assert journal.status.tolist() == [FINISHED, CANCELLED, FINISHED, FINISHED]
    assert journal.scheduled_ns[3] == journal.finish_ns[1] < 40_000


def test_continuous_batching_is_faster():
    asks = [ask(i, output=5 + 20 * (i % 3)) for i in range(9)]
    static, continuous = run(asks), run(asks, replace(SYSTEM, batching="continuous"))
    assert continuous.counters().end_ns < static.counters().end_ns
    assert np.mean(continuous.journal().first_token_ns) < np.mean(static.journal().first_token_ns)
