"""Whole runs with forks: samples, beams and turns, in little memory, every text read back in every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError, UsageError
from kvbench.core.journal import CANCELLED, FINISHED, REFUSED, STATUS_NAMES
from kvbench.engine.integrity import check_integrity
from kvbench.engine.lineage import common_tokens, lineage_table
from kvbench.engine.settings import EngineSettings
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.scheduler.forks import drop
from kvbench.scheduler.rules import PREFILL_FIRST, BeamRules, CacheRules, SchedulerRules
from kvbench.scheduler.state_columns import COMMON, NO_SLOT, PARENT, WANTED

from ..reference.engine import Ask
from .compare import finish, small_tables
from .systems import together, vllm
from .texts import run_with_texts
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


def give_kept_back(simulation: Simulation) -> None:
    """Tables that were kept for turns which ended before they could be admitted."""
    while simulation.engine.kept_head != NO_SLOT:
        drop(simulation.engine, simulation.engine.kept_head)


# ---------------------------------------------------------------- anything at all


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[Ask], EngineSettings]:
    asks, system = draw(vllm(draw(st.sampled_from(["0.19", "0.33"])), fast=False))
    width = draw(st.sampled_from([0, 0, 1, 2, 4]))
    most = max(width, *(a.samples for a in asks))
    rules = together(system.scheduler, most)
    if width:
        asks = [replace(a, samples=1) for a in asks]
    asks = [replace(a, output=[(500 + 20 * i, 0, a.output_tokens)]) for i, a in enumerate(asks)]
    hashed = [name for name in POLICIES if name != "tlru"]  # that one is of the radix tree
    eviction = draw(st.sampled_from(["lru", *hashed])) if system.cache.kind == "hash" else "lru"
    cache = replace(system.cache, copy_on_write=True, eviction=eviction)
    return asks, replace(
        system, scheduler=rules, cache=cache, beam=BeamRules(width, draw(st.sampled_from([0.0, 0.5, 1.0])), 1)
    )


@settings(max_examples=40)
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
    give_kept_back(simulation)
    all_given_back(simulation)


# ---------------------------------------------------------------- samples


@BOTH
@pytest.mark.parametrize(("prompt", "copies"), [(22, 3), (24, 0), (25, 3)])
def test_samples_share_the_prompt_and_copy_its_partial_block(system, prompt, copies):
    """The last one to write has the block for itself."""
    simulation, texts = run_with_texts([ask(0, prompt, samples=4)], system)
    counters, journal = simulation.counters(), simulation.journal()
    assert texts.num_copies == counters.copied_blocks == copies
    assert counters.copied_bytes == 1000 * copies
    assert counters.prefill_tokens == prompt  # computed once
    assert len(set(journal.first_token_ns.tolist())) == 1
    assert journal.output_tokens.tolist() == [9] * 4
    assert counters.matched_tokens == 0  # a fork within a request is no hit of the cache
    assert counters.admitted_prompt_tokens == prompt
    all_given_back(simulation)


def test_what_is_saved_is_the_entries_of_all_tables_minus_the_blocks():
    """One step of prefill, then two decodes; by hand, each weighted by its microseconds."""
    simulation, _ = run_with_texts([ask(0, 6, 3, samples=3)], SYSTEM)
    steps = simulation.journal().steps
    weight = np.diff(np.append(steps[:, 0], steps[-1, 0] + steps[-1, 1]) // 1000)
    assert steps[:, 7].tolist() == [2, 4, 4]
    entries = np.array([2, 6, 6])
    counters = simulation.counters()
    assert counters.saved_blocks_mean == ((entries - [2, 4, 4]) * weight).sum() / weight.sum()
    assert counters.saved_blocks_share == ((entries - [2, 4, 4]) * weight).sum() / (entries * weight).sum()
    assert steps[:, 9].tolist() == [2, 3, 0]  # 8 - 6 with both blocks planned full; one's own tails, 7 then 8 tokens


def test_copies_take_time():
    """In the step that they come before, and in none else."""
    free = replace(SYSTEM, cache=replace(SYSTEM.cache, block_bytes=0))
    with_copies, without = (run_with_texts([ask(0, samples=4)], s)[0].journal().steps for s in (SYSTEM, free))
    extra = with_copies[:, 1] - without[:, 1]
    assert extra.tolist() == [0, 300, *[0] * (len(extra) - 2)]  # 3 blocks of 1,000 bytes at 0.1 ns a byte


@BOTH
def test_samples_that_lose_their_memory_fork_again(system):
    small = replace(system, cache=replace(system.cache, num_blocks=34))
    simulation, _ = run_with_texts([ask(i, 30, 40, samples=3) for i in range(3)], small)
    counters = simulation.counters()
    assert counters.preemptions > 3
    assert set(simulation.journal().status) == {FINISHED}
    assert counters.recomputed_tokens < counters.preemptions * 30
    all_given_back(simulation)


@BOTH
def test_a_cancel_at_any_moment_hands_the_prompt_over(system):
    """The first sample of three goes alone; a prompt of several chunks is not computed again for it."""
    small = replace(system, scheduler=replace(system.scheduler, max_num_batched_tokens=16))
    plain, _ = run_with_texts([ask(0, 60, 12, samples=3)], small)
    ends = set()
    for moment in range(0, int(plain.counters().end_ns), 1_700):
        simulation = Simulation(request_table([ask(0, 60, 12, samples=3)]), replace(small, check=True), small_tables())
        simulation.engine.seqs.cancel_after[0] = moment
        finish(simulation)
        journal, counters = simulation.journal(), simulation.counters()
        assert journal.status.tolist()[1:] == [FINISHED, FINISHED]
        assert counters.prefill_tokens <= 60 + 15  # what a step that nobody needed any more had computed
        ends.add((int(journal.status[0]), bool(journal.first_token_ns[0] >= 0)))
        all_given_back(simulation)
    assert {(CANCELLED, False), (CANCELLED, True), (FINISHED, True)} == ends | {(FINISHED, True)}


# ---------------------------------------------------------------- beams


@BOTH
def test_a_request_of_beams_has_one_result(system):
    simulation, texts = run_with_texts([ask(i, output=30) for i in range(2)], with_beams(system, 4))
    journal, counters = simulation.journal(), simulation.counters()
    assert journal.request_index.tolist() == [0, 1]
    assert journal.sample.tolist() == [0, 0]
    assert journal.output_tokens.tolist() == [30, 30]
    assert int(journal.itl_count.sum()) == 2 * 29  # gaps of what is handed out
    assert counters.decode_tokens == 2 * 4 * 29  # work on all beams
    assert texts.num_copies > 4
    all_given_back(simulation)


@pytest.mark.parametrize("width", [1, 3])
def test_beams_that_all_descend_from_the_best_share_all_but_their_last_block(width):
    """At a skew of 0 every survivor draws the best: at rest all tables are one."""
    simulation, _ = run_with_texts([ask(0, 24, 17)], with_beams(SYSTEM, width, skew=0.0))
    used = simulation.journal().steps[:, 7]
    assert np.all(used[1:] - (24 + np.arange(1, 17) - 1) // 4 == width)
    assert simulation.counters().copied_blocks == (width - 1) * 12  # of 16 decodes, 4 open a block


def test_more_skew_more_sharing_and_a_seed_of_its_own():
    ample = replace(SYSTEM, cache=replace(SYSTEM.cache, num_blocks=200))
    shares = []
    for skew in (1.0, 0.5, 0.0):
        simulation, _ = run_with_texts([ask(i, output=60) for i in range(2)], with_beams(ample, 4, skew))
        shares.append(simulation.counters().saved_blocks_share)
    assert shares[0] < shares[1] < shares[2]
    copies = {run_with_texts([ask(0, output=60)], with_beams(ample, 4, seed=s))[1].num_copies for s in range(6)}
    assert len(copies) > 1


def test_beams_grow_alike_under_every_schedule():
    """What is drawn does not depend on time, blocks or preemptions: only on seed, request and token."""
    asks = [ask(i, output=40) for i in range(3)]
    tight = replace(SYSTEM, cache=replace(SYSTEM.cache, num_blocks=52))
    ample = replace(HASHED, cache=replace(HASHED.cache, num_blocks=900), detokenize_ns=900)
    grown = [run_with_texts(asks, with_beams(s, 4)) for s in (tight, ample)]
    assert grown[0][0].counters().preemptions > 0 == grown[1][0].counters().preemptions
    assert grown[0][1].grown == grown[1][1].grown


def test_beams_that_could_never_run_together_are_refused():
    system = with_beams(replace(SYSTEM, cache=replace(SYSTEM.cache, num_blocks=30)), 8)
    simulation, _ = run_with_texts([ask(0), ask(1, 8, 40)], system)
    assert [STATUS_NAMES[s] for s in simulation.journal().status] == ["finished", "refused"]
    assert simulation.journal().status[1] == REFUSED


@BOTH
def test_a_turn_goes_on_from_the_best_beam(system):
    first = ask(0, output=30)
    turn = Ask([*first.prompt, *first.output, (90, 0, 7)], [(900, 0, 9)], 0, 9, 9, after=0, think_ns=100)
    simulation, _ = run_with_texts([first, turn], with_beams(system, 3))
    assert simulation.journal().cached_tokens.tolist() == [0, 51]
    all_given_back(simulation)


# ---------------------------------------------------------------- conversations


def branches(count: int, shared: int = 31, samples: int = 1) -> list[Ask]:
    """A first request and turns that go on from it at once, after `shared` tokens of what it said."""
    first = ask(0)
    told = [*first.prompt, (500, 0, shared - 22)]
    turns = [Ask([*told, (90 + i, 0, 6)], [(900 + 20 * i, 0, 9)], 0, 9, 9, after=0) for i in range(count)]
    return [first, *(replace(t, samples=samples) for t in turns)]


@BOTH
def test_a_turn_goes_on_from_the_table_of_the_one_before(system):
    """The last output token has no KV yet; the partial block is its own by then, so nothing is copied."""
    simulation, texts = run_with_texts(branches(1), system)
    assert simulation.journal().cached_tokens.tolist() == [0, 30]
    assert simulation.counters().prefill_tokens == 22 + 7
    assert texts.num_copies == 0
    all_given_back(simulation)


@BOTH
@pytest.mark.parametrize("shared", [24, 26, 31])
def test_turns_that_branch_share_what_was_said(system, shared):
    simulation, texts = run_with_texts(branches(3, shared), system)
    same = min(shared, 30)
    assert simulation.journal().cached_tokens.tolist() == [0, same, same, same]
    assert simulation.counters().prefill_tokens == 22 + 3 * (shared + 6 - same)
    assert texts.num_copies == (0 if same % 4 == 0 else 3 if (system is HASHED and shared == 26) else 2)
    all_given_back(simulation)


@BOTH
def test_a_turn_of_several_samples_forks_twice(system):
    simulation, texts = run_with_texts(branches(1, samples=3), system)
    assert simulation.journal().cached_tokens.tolist() == [0, 30, 0, 0]
    assert texts.num_copies == 2
    all_given_back(simulation)


def test_kept_tables_go_when_memory_is_short():
    """Another request needs the memory while the user thinks; the turn computes all of its prompt then."""
    asks = [*branches(1), ask(5, 200, 30)]
    asks[1].think_ns, asks[2].arrival_ns = 200_000, 30_000
    for blocks, cached in ((66, 30), (59, 0)):
        system = replace(SYSTEM, cache=replace(SYSTEM.cache, num_blocks=blocks))
        simulation, _ = run_with_texts(asks, system)
        assert simulation.journal().cached_tokens.tolist() == [0, cached, 0]
        assert simulation.counters().preemptions == 0
        all_given_back(simulation)


def test_common_tokens_are_compared_by_content():
    first = ask(0)
    told = [(10, 0, 5), (10, 5, 17), (500, 0, 4)]  # cut differently, the same tokens
    turns = [
        Ask([*told, (90, 0, 6)], [(900, 0, 1)], after=0),
        Ask([(10, 0, 22), (500, 1, 4)], [(901, 0, 1)], after=0),
        Ask([(11, 0, 22)], [(902, 0, 1)], after=0),
        Ask([*first.prompt, *first.output], [(903, 0, 1)], after=0, namespace=1),
        Ask([(10, 0, 9)], [(904, 0, 1)], after=0),
    ]
    table = request_table([first, *turns])
    assert [common_tokens(table, 0, i) for i in range(1, 6)] == [26, 22, 0, 31, 9]
    rows = lineage_table(table)
    assert rows[:, PARENT].tolist() == [-1, 0, 0, -1, -1, 0]
    assert rows[:, COMMON].tolist() == [0, 26, 22, 0, 0, 9]
    assert rows[0, WANTED] == 3


def test_explicit_ids_are_compared_one_by_one():
    ids = [(0, token, 1) for token in (1, 2, 0, 1, 2)]
    turns = [Ask([*ids, (0, 2, 1), (0, k, 1)], [(900 + k, 0, 1)], after=0) for k in range(3)]
    table = request_table([Ask(ids, [(0, 2, 1), (0, 1, 1)], output_tokens=2, max_tokens=2), *turns])
    assert [common_tokens(table, 0, i) for i in (1, 2, 3)] == [6, 7, 6]


# ---------------------------------------------------------------- integrity


def tampered(change: Callable[[Any], None], steps: int, asks: list[Ask]) -> str:
    """What the check says when one number of a run in its middle is changed."""
    simulation = Simulation(request_table(asks), replace(SYSTEM, check=True), small_tables())
    assert not simulation.advance(max_steps=steps)
    change(simulation.engine)
    with pytest.raises(KvbenchError, match=r"^integrity: ") as caught:
        check_integrity(simulation.engine)
    return str(caught.value)


def test_a_wrong_reference_of_a_shared_block_is_found():
    def one_more(e: Any) -> None:
        e.pool.refs[e.slots.table[e.slots.head, 0]] += 1

    assert "references of block 1 is kept as 5, counted 4" in tampered(one_more, 3, [ask(0, samples=4)])


def test_a_table_that_nobody_wants_is_found():
    asks = branches(1)
    asks[1].think_ns = 300_000

    def unwanted(e: Any) -> None:
        e.lineage[0, WANTED] = 0

    def torn(e: Any) -> None:
        e.kept_head = NO_SLOT

    waiting = [*asks, ask(7, output=30)]
    assert "nobody wants the table" in tampered(unwanted, 12, waiting)
    assert "kept tables is kept as 0, counted 1" in tampered(torn, 12, waiting)


# ---------------------------------------------------------------- what does not go together


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (replace(SYSTEM, scheduler=SchedulerRules(discipline=PREFILL_FIRST)), "a rule of vLLM"),
        (replace(SYSTEM, cache=replace(SYSTEM.cache, kind="radix")), "a rule of vLLM"),
        (replace(SYSTEM, batching="static"), "a rule of vLLM"),
        (replace(SYSTEM, cache=CacheRules("none", 60), beam=BeamRules(2)), "beam.width needs cache.copy_on_write"),
        (with_beams(SYSTEM, 17), "17 sequences that run together"),
    ],
)
def test_rules_that_exclude_each_other(system, message):
    with pytest.raises(UsageError, match=message) as caught:
        Simulation(request_table([ask(0)]), system, small_tables())
    assert "\n" not in str(caught.value)


def test_beams_of_samples_are_not():
    with pytest.raises(UsageError, match="exclude each other"):
        Simulation(request_table([ask(0, samples=2)]), with_beams(SYSTEM, 2), small_tables())
