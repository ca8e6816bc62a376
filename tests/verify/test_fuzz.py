"""The fuzz: a hundred thousand operations pass, planted faults do not, and what it prints shows them again."""

from __future__ import annotations

import os
import shlex
from itertools import product

import pytest

from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.engine.build import calendar_fits
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.scheduler import kv, lifecycle
from kvbench.verify.fuzz import Tally, find_combinations, fuzz, repeat, run_round
from kvbench.verify.fuzz_systems import CALENDAR, PD, Combination, combinations

OPERATIONS = 100_000
COMBINATIONS = combinations()

plain = pytest.mark.skipif(not PLAIN, reason="faults are planted in plain functions")


def test_the_product_is_whole():
    got = {(c.scheduler, c.cache, c.block_tokens) for c in COMBINATIONS}
    assert got == set(product(("prefill-first", "token-budget"), ("radix", "hash", "none"), (1, 16)))
    calendar = {(c.scheduler, c.cache, c.block_tokens) for c in COMBINATIONS if c.path == CALENDAR}
    assert calendar == {x for x in got if x[2] == 16 and x != ("prefill-first", "hash", 16)}


@pytest.mark.parametrize("c", COMBINATIONS, ids=lambda c: c.name)
def test_nothing_is_wrong(c: Combination):
    (tally,) = fuzz(-(-OPERATIONS // len(COMBINATIONS)), 0, [c])
    assert tally.failures == []
    assert tally.operations * len(COMBINATIONS) >= OPERATIONS
    assert tally.operations > tally.steps > 0
    assert tally.cancels > 0
    assert (tally.evictions > 0) == (c.cache != "none")


def test_the_load_takes_memory_away():
    """Not in every short run of every combination, but in most of them."""
    tallies = fuzz(200 * len(COMBINATIONS), 1, COMBINATIONS)
    assert sum(t.preemptions > 0 for t in tallies) > len(tallies) // 2


def test_the_same_seed_is_the_same_run_and_another_is_another():
    (c,) = find_combinations("token-budget/hash/16/step")
    assert fuzz(300, 1, [c]) == fuzz(300, 1, [c]) != fuzz(300, 2, [c])


def test_rounds_of_the_calendar_run_on_it():
    (c,) = find_combinations("token-budget/hash/16/calendar")
    from kvbench.verify.fuzz import _generator
    from kvbench.verify.fuzz_systems import draw_settings

    for number in range(30):
        assert calendar_fits(draw_settings(_generator(0, c, number, 0), c, number))


@pytest.mark.parametrize("name", ["token-budget/hash/1/forks", "token-budget/hash/16/forks"])
def test_forks_go_together_with_every_policy(name):
    """A block that a fork's first write leaves behind is the policy's to evict, whoever had it before."""
    (c,) = find_combinations(name)
    for number in range(40 * len(POLICIES) if "KVBENCH_LONG" in os.environ else 28):
        assert run_round(7, c, number).what == ""


# ---------------------------------------------------------------- planted faults


def the_failure(name: str, operations: int = 6_000) -> Tally:
    (tally,) = fuzz(operations, 3, find_combinations(name))
    assert len(tally.failures) == 1
    return tally


def shows_again(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed command fails in the same way, in a few requests."""
    (failure,) = tally.failures
    words = shlex.split(failure.command)
    assert words[0] == "kvbench"
    assert len(words[-1].split(",")) <= 8
    capsys.readouterr()
    assert call([*words[1:], "-q"]) == 1
    printed = capsys.readouterr().out.replace("\n  ", " ")
    assert (
        f"FAILED {failure.combination}, seed 3, round {failure.round}, step {failure.step}: {failure.what}" in printed
    )
    assert failure.command in printed


@plain
@pytest.mark.parametrize("name", ["token-budget/hash/16/step", "prefill-first/radix/16/st", "token-budget/none/16/cal"])
def test_a_release_that_is_missed(name, monkeypatch, capsys):
    right = kv.release

    def leaky(e, slot):
        if e.num_done > 5:  # not from the start
            e.slots.rec[slot, kv.BLOCKS] -= 1
            e.table_blocks -= 1
        right(e, slot)

    monkeypatch.setattr(kv, "release", leaky)
    tally = the_failure(name)
    assert "integrity" in tally.failures[0].what
    shows_again(tally, capsys)


@plain
def test_a_counter_that_drifts(monkeypatch, capsys):
    right = lifecycle.admit

    def counted_twice(e, seq, hits, link):
        slot = right(e, seq, hits, link)
        e.matched_tokens += hits
        return slot

    monkeypatch.setattr("kvbench.scheduler.token_budget.admit", counted_twice)
    tally = the_failure("token-budget/hash/1/step")
    assert tally.failures[0].what.startswith("hit tokens: kept")
    shows_again(tally, capsys)


@plain
def test_a_crash_is_a_failure_too(monkeypatch, capsys):
    def crash(e, slot):
        raise IndexError("slot 99")

    monkeypatch.setattr("kvbench.scheduler.token_budget.preempt", crash)
    tally = the_failure("token-budget/hash/16/step")
    assert tally.failures[0].what == "IndexError: slot 99"
    shows_again(tally, capsys)


@plain
def test_an_engine_that_goes_round_in_circles(monkeypatch):
    monkeypatch.setattr("kvbench.verify.fuzz.MOST_TURNS", 1)
    (c,) = find_combinations("token-budget/none/16/step")
    outcomes = [repeat(3, c, number, None) for number in range(4)]
    assert any(t.failures and t.failures[0].what.startswith("no end after") for t in outcomes)


# ---------------------------------------------------------------- the command


def test_the_report(capsys):
    assert call(["verify", "fuzz", "--operations", "400", "--combination", "token-budget/none/16", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "combination operations steps preempted evicted cancelled failed".split()
    assert [line.split()[0] for line in lines[2:4]] == ["token-budget/none/16/step", "token-budget/none/16/calendar"]
    assert max(map(len, lines)) <= 100
    assert "an engine step, the arrival of a sequence" in " ".join(lines)


def test_an_interrupt_keeps_what_was_done(monkeypatch, capsys):
    def interrupt(seed, c, number):
        if c.path == "calendar" and number == 1:
            raise KeyboardInterrupt
        return run_round(seed, c, number)

    monkeypatch.setattr("kvbench.verify.fuzz.run_round", interrupt)
    assert call(["verify", "fuzz", "--operations", "4000", "--combination", "token-budget/none/16", "-q"]) == 130
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    done = [int(line.split()[1].replace(",", "")) for line in lines[2:4]]
    assert min(done) > 0
    assert [line.split()[0] for line in lines[2:4]] == ["token-budget/none/16/step", "token-budget/none/16/calendar"]
    assert f"interrupted: {sum(done):,} of 4,000 operations, 0 failures" in printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--combination", "vllm"], "no combination vllm; there are prefill-first/radix/1/step"),
        (["--requests", "1"], "give --round too"),
        (["--round", "1"], "give its whole name"),
        (["--round", "1", "--combination", "token-budget/none/1/step", "--requests", "x"], "with commas between"),
        (["--round", "1", "--combination", "token-budget/none/1/step", "--requests", "999"], "has requests 0 to"),
        (["--operations", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_exit_code_2(arguments, said, capsys):
    assert call(["verify", "fuzz", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_nobody_is_found_under_a_wrong_name():
    with pytest.raises(UsageError, match="no combination"):
        find_combinations("token-budget/hash/2")


# ---------------------------------------------------------------- prefill and decode engines


PAIRS = find_combinations("", PD)


@pytest.mark.parametrize("c", PAIRS, ids=lambda c: c.name)
def test_pairs_give_everything_back_whatever_happens(c: Combination):
    (tally,) = fuzz(400_000 if "KVBENCH_LONG" in os.environ else 100, 5, [c])
    assert tally.failures == []
    assert tally.operations > tally.steps > 0
    assert tally.visited is not None
    assert tally.visited.sum() > 0
    if "KVBENCH_LONG" in os.environ:
        assert tally.unvisited == []


@plain
def test_a_pair_that_leaves_something_behind_is_a_failure(monkeypatch):
    from kvbench.pairs import pull_decode

    right = pull_decode._leave

    def forgetful(e, slot):
        right(e, slot)
        e.side.num_holding += 1

    monkeypatch.setattr(pull_decode, "_leave", forgetful)
    (c,) = find_combinations("token-budget/hash/16/pd")
    assert any(run_round(3, c, number).what for number in range(8))


def test_the_report_says_which_states_were_never_visited(capsys):
    assert call(["verify", "fuzz", "--pd", "--operations", "60", "--combination", "token-budget/none/16", "-q"]) == 0
    assert "token-budget/none/16/pd never visited" in " ".join(capsys.readouterr().out.split())
    assert call(["verify", "fuzz", "--pd", "--tiers"]) == 2
    assert "two kinds of engines" in capsys.readouterr().err
