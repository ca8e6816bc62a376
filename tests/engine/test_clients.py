"""What clients do: cancel at any moment, ask for what cannot be had, keep to a cap, come back for a next turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import CANCELLED, FINISHED, REFUSED
from kvbench.core.requests import NONE
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST

from ..reference.engine import Ask
from .compare import compare, finish, small_tables
from .test_runs import EACH, SGLANG, VLLM, mixed_asks
from .workloads import request_table


def plain(number: int, arrival_ns: int = 0, prompt: int = 20, output: int = 10, **more: Any) -> Ask:
    """A request that shares nothing."""
    return Ask([(10 + number, 0, prompt)], [(500 + number, 0, output)], arrival_ns, output, output, **more)


# ---------------------------------------------------------------- cancels


@EACH
def test_a_cancel_at_any_moment(system):
    """One request of the mixed workload is cancelled at ever later moments, from before it is seen to after its end."""
    system = replace(system, check=True, tokenize_ns_per_token=60)
    ends = set()
    for cap, cancel_ns in [(cap, t) for cap in (0, 6) for t in range(0, 400_000, 16_300)]:
        asks = mixed_asks()
        asks[10].cancel_ns = cancel_ns
        journal = compare(asks, replace(system, concurrency=cap)).journal()
        row = int(np.flatnonzero(journal.request_index == 10)[0])
        times = (journal.queued_ns[row], journal.scheduled_ns[row], journal.first_token_ns[row])
        ends.add((int(journal.status[row]), *(bool(t >= 0) for t in times)))
    assert (CANCELLED, False, False, False) in ends  # at the client, or while it was tokenised
    assert (CANCELLED, True, False, False) in ends  # waiting
    assert (CANCELLED, True, True, True) in ends  # decoding
    assert (FINISHED, True, True, True) in ends


@EACH
def test_everybody_is_cancelled_at_one_moment(system):
    for cancel_ns in (0, 5_000, 25_000, 60_000):
        asks = [plain(i, cancel_ns=cancel_ns, output=60) for i in range(9)]
        simulation = compare(asks, replace(system, check=True))
        assert set(simulation.journal().status) == {CANCELLED}
        assert simulation.counters().end_ns < 200_000


def test_a_cancelled_sequence_that_loses_its_memory_does_not_go_on():
    """SGLang ends it with its next token, also where it has to be prefilled again for that."""
    rules = replace(SGLANG.scheduler, clip_max_new_tokens=1, chunked_prefill_size=0)
    tight = replace(SGLANG, scheduler=rules, cache=replace(SGLANG.cache, num_blocks=30), check=True)
    cut_short = 0
    for cancel_ns in range(0, 160_000, 3_100):
        asks = [plain(i, output=60 - 9 * i) for i in range(4)]
        asks[3].cancel_ns = cancel_ns
        journal = compare(asks, tight).journal()
        cut_short += int(journal.status[3] == CANCELLED and journal.preemptions[3] > 0 and journal.output_tokens[3] > 0)
    assert cut_short > 0


# ---------------------------------------------------------------- refusals


@EACH
def test_what_can_never_run_is_refused_and_the_rest_is_as_without_it(system):
    good = [plain(i, 1_000 * i) for i in range(4)]
    bad = [
        plain(50, 500, prompt=longest_prompt(system) + 1, output=1),
        plain(51, 2_500, prompt=20, output=system.max_model_len - 19),
        plain(52, 2_600, prompt=system.max_model_len, output=1),
        Ask([(70, 0, 5)], [(570, 0, 1)], 2_700, output_tokens=0, max_tokens=9),
    ]
    asks = sorted(good + bad, key=lambda ask: ask.arrival_ns)
    simulation, without = compare(asks, system), compare(good, system)
    is_bad = np.array([ask in bad for ask in asks])
    now, then = simulation.journal(), without.journal()
    assert np.array_equal(now.status == REFUSED, is_bad)
    assert np.array_equal(now.finish_ns[~is_bad], then.finish_ns)
    assert np.all(now.scheduled_ns[is_bad] == NONE)
    assert simulation.counters().num_steps == without.counters().num_steps


def longest_prompt(system: EngineSettings) -> int:
    """With an output of one token."""
    pool, context = system.cache.num_blocks * system.block_tokens, system.max_model_len
    if system.scheduler.discipline == PREFILL_FIRST:
        return min(pool - 7, pool - system.block_tokens - 1, context - 7)
    return min(pool, context) - 1


@EACH
def test_exactly_what_fits_is_taken(system):
    for surplus, status in ((0, FINISHED), (1, REFUSED)):
        asks = [plain(0, prompt=longest_prompt(system) + surplus, output=1)]
        assert compare(asks, replace(system, check=True)).journal().status.tolist() == [status]


def test_what_a_step_without_chunks_cannot_take_keeps_nobody_waiting():
    """The case of never-fits-a-step.jsonl: refused at arrival, and the innocent one after it is served at once."""
    rules = replace(VLLM.scheduler, enable_chunked_prefill=False, max_num_batched_tokens=64)
    asks = [plain(0, prompt=70, output=4), plain(1, 1_000, prompt=40, output=4)]
    journal = compare(asks, replace(VLLM, scheduler=rules)).journal()
    assert journal.status.tolist() == [REFUSED, FINISHED]
    assert journal.scheduled_ns[1] == journal.queued_ns[1]


@pytest.mark.parametrize("output", [23, 24])
def test_sglang_clips_what_context_and_pool_leave(output):
    """1000 + 24 of 1024 is what its front end lets through; 22 tokens come out."""
    for blocks, kept in ((200, 22), (65, 15), (64, 1)):  # of 16 tokens
        system = replace(SGLANG, cache=replace(SGLANG.cache, num_blocks=blocks), block_tokens=16, max_model_len=1024)
        journal = compare([plain(0, prompt=1000, output=output)], system).journal()
        assert journal.output_tokens.tolist() == [kept], blocks


@EACH
def test_a_turn_comes_after_a_refused_one_too(system):
    asks = [plain(0, prompt=5_000), plain(1, after=0, think_ns=7_000), plain(2, 1_000)]
    journal = compare(asks, system).journal()
    assert journal.status.tolist() == [REFUSED, FINISHED, FINISHED]
    assert journal.arrival_ns[1] == 7_000


@EACH
def test_all_refused_takes_no_time(system):
    simulation = compare([plain(0, 5, prompt=5_000), plain(1, 9, prompt=5_000)], system)
    assert simulation.counters().num_steps == 0
    assert simulation.counters().end_ns == 9


# ---------------------------------------------------------------- the cap on what is in flight


def in_flight(simulation: Simulation) -> int:
    """The most sequences between the client's sending and their last token, at any moment."""
    journal = simulation.journal()
    ran = journal.scheduled_ns >= 0
    sent = (journal.queued_ns - simulation.settings.tokenize_ns_per_token * simulation.requests.prompt_tokens)[ran]
    moments = sorted([(t, 1) for t in sent.tolist()] + [(t, -1) for t in journal.finish_ns[ran].tolist()])
    most = now = 0
    for _, change in moments:  # at one moment ends come first
        now += change
        most = max(most, now)
    return most


@EACH
@pytest.mark.parametrize("cap", [1, 3])
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_never_more_in_flight_than_the_cap(system, cap, closed):
    asks = [plain(i, 900 * i) for i in range(12)]
    simulation = compare(asks, replace(system, concurrency=cap, closed_loop=closed))
    assert in_flight(simulation) == cap
    journal = simulation.journal()
    if closed:  # the client asks when it may: what it waited for is not latency
        sent = journal.queued_ns - system.tokenize_ns_per_token * simulation.requests.prompt_tokens
        assert np.array_equal(journal.arrival_ns, sent)
    else:  # an intended arrival stays what it was
        assert journal.arrival_ns.tolist() == [ask.arrival_ns for ask in asks]


@EACH
def test_a_cap_that_never_binds_is_no_cap(system):
    system = replace(system, tokenize_ns_per_token=37, detokenize_ns=900)
    capped = compare(mixed_asks(), replace(system, concurrency=1000))
    free = compare(mixed_asks(), system)
    for name in ("queued_ns", "scheduled_ns", "first_token_ns", "finish_ns"):
        assert np.array_equal(getattr(capped.journal(), name), getattr(free.journal(), name)), name


@EACH
def test_one_at_a_time_is_a_queue(system):
    """With a cap of one, each is sent the moment the one before it has ended."""
    system = replace(system, concurrency=1, tokenize_ns_per_token=0, detokenize_ns=0)
    journal = compare([plain(i) for i in range(6)], system).journal()
    assert np.array_equal(journal.queued_ns[1:], journal.finish_ns[:-1])


# ---------------------------------------------------------------- sessions and samples


@EACH
def test_a_turn_comes_when_the_last_sample_before_it_is_out(system):
    """Samples of one request that end at different times: by length and by cancel."""
    system = replace(system, detokenize_ns=9_000)
    asks = [plain(0, samples=3, cancel_ns=24_000), plain(1, after=0, think_ns=500), plain(2, after=1)]
    journal = compare(asks, system).journal()
    assert journal.arrival_ns[3] == journal.finish_ns[:3].max() + 500
    assert journal.arrival_ns[4] == journal.finish_ns[3]


@EACH
def test_sessions_that_end_together_come_back_in_the_order_of_their_ends(system):
    rules = replace(system.scheduler, max_prefill_tokens=40, chunked_prefill_size=40, max_num_batched_tokens=40)
    first = [plain(i, output=9, prompt=4) for i in range(4)]
    again = [plain(10 + i, prompt=24, output=4, after=i) for i in range(4)]
    journal = compare(first + again, replace(system, scheduler=rules)).journal()
    assert len(set(journal.finish_ns[:4].tolist())) == 1
    admitted = journal.scheduled_ns[4:].tolist()
    assert admitted == sorted(admitted)
    assert admitted[0] < admitted[-1]


@EACH
def test_samples_share_their_prompt(system):
    """The first one computes it; the others find its whole blocks, unless they are prefilled in the same step."""
    asks = [Ask([(1, 0, 42)], [(500, 0, 12)], 0, 12, 12, samples=4)]
    simulation = compare(asks, replace(system, check=True))
    assert simulation.num_sequences == 4
    assert simulation.journal().sample.tolist() == [0, 1, 2, 3]
    assert simulation.journal().output_tokens.tolist() == [12] * 4
    assert simulation.journal().cached_tokens[0] == 0


def test_the_declared_output_is_not_the_true_one():
    """The scheduler is told 60 tokens, 7 come: admission reserves for what it is told."""
    told = [replace(plain(i), output_tokens=7, output=[(500 + i, 0, 7)], max_tokens=60) for i in range(6)]
    known = [replace(ask, max_tokens=7) for ask in told]
    rules = replace(SGLANG.scheduler, clip_max_new_tokens=4096)
    system: EngineSettings = replace(SGLANG, scheduler=rules)
    long, short = compare(told, system), compare(known, system)
    assert set(long.journal().output_tokens) == set(short.journal().output_tokens) == {7}
    assert long.journal().scheduled_ns.max() > short.journal().scheduled_ns.max()


def test_nothing_is_held_at_the_end():
    for system in (VLLM, SGLANG):
        simulation = Simulation(request_table(mixed_asks()), system, small_tables())
        finish(simulation)
        e = simulation.engine
        assert e.slots.holders == e.slots.running == e.num_waiting == simulation.world.clients.events.size == 0
        assert e.tree.protected == 0
        assert int(e.pool.refs.sum()) == 0
        assert e.pool.num_free + e.tree.evictable == e.pool.num_blocks
        assert int((e.slots.rec[:, 0] >= 0).sum()) == e.slots.rec.shape[0]


# ---------------------------------------------------------------- the client's own clock


@EACH
def test_a_client_sends_when_it_has_its_last_token(system):
    """Not at the end of a later step: a closed loop of three, among which one always runs."""
    system = replace(system, concurrency=3, closed_loop=True, detokenize_ns=700, check=True)
    journal = compare([plain(i, output=5 + 7 * (i % 3)) for i in range(12)], system).journal()
    last_tokens = set(journal.finish_ns.tolist())
    assert set(journal.arrival_ns[3:].tolist()) <= last_tokens
    assert len(last_tokens & set(journal.arrival_ns.tolist())) >= 6


@EACH
def test_a_place_is_taken_when_it_becomes_free_and_not_before(system):
    """Under a cap a request that comes while nobody's last token is out waits for it, also within a step."""
    system = replace(system, concurrency=1, detokenize_ns=700, check=True)
    journal = compare([plain(i, 100 * i, output=4) for i in range(5)], system).journal()
    tokenised = journal.queued_ns[1:] - 20 * system.tokenize_ns_per_token
    assert tokenised.tolist() == journal.finish_ns[:-1].tolist()
