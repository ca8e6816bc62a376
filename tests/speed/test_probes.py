"""Timing in rounds: who runs when, what is in the time, and what is not."""

from __future__ import annotations

import time

import pytest

from kvbench.speed.probes import LEAST_ROUNDS, MOST_ROUNDS, Probe, time_rounds


def quiet(done: int, total: int) -> None:
    """No progress."""


def test_probes_take_turns_after_a_call_of_each():
    calls = []
    probes = [
        Probe(name, lambda n=name: calls.append(n), 1, lambda n=name: calls.append(f"prepare {n}")) for name in "ab"
    ]
    timings = time_rounds(probes, 0.0, quiet)
    assert calls == ["prepare a", "a", "prepare b", "b"] * (1 + LEAST_ROUNDS)
    assert [timings[probe].rounds for probe in probes] == [LEAST_ROUNDS] * 2


def test_preparing_and_the_first_call_are_in_no_time():
    slow = iter([0.2, *[0.0] * 100])
    probe = Probe("x", lambda: time.sleep(next(slow)), 100.0, lambda: time.sleep(0.01))
    timing = time_rounds([probe], 0.0, quiet)[probe]
    assert timing.first_s >= 0.2
    assert timing.seconds < 0.005
    assert timing.rate == pytest.approx(100.0 / timing.seconds)


def test_rounds_fill_the_time_that_is_given():
    probe = Probe("x", lambda: time.sleep(0.01), 1)
    assert LEAST_ROUNDS < time_rounds([probe], 0.08, quiet)[probe].rounds < MOST_ROUNDS
    assert time_rounds([probe], 1e9, quiet)[probe].rounds == MOST_ROUNDS


def test_median_and_spread(monkeypatch):
    taken = iter([9.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr("kvbench.speed.probes._timed", lambda probe: next(taken))
    probe = Probe("x", lambda: None, 4.0)
    timing = time_rounds([probe], 0.0, quiet)[probe]
    assert (timing.seconds, timing.first_s, timing.rate) == (2.0, 9.0, 2.0)
    assert timing.spread == pytest.approx((2.5 - 1.5) / 2 / 2.0)


def test_progress_ends_at_its_total():
    seen = []
    time_rounds([Probe("x", lambda: None, 1)] * 1, 0.0, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
