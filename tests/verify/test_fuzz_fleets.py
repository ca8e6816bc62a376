"""The fuzz of fleets: every policy has its turn, engines restart, and what a router or an engine forgets is noticed."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kvbench.cli import call
from kvbench.cluster import loop, routing
from kvbench.core.jit import PLAIN
from kvbench.routing.settings import POLICIES
from kvbench.verify.fuzz import _asks, _generator, find_combinations, fuzz, repeat, step_costs
from kvbench.verify.fuzz_fleets import draw_fleet, with_sessions
from kvbench.verify.fuzz_systems import FLEET, draw_settings, fleet_combinations
from kvbench.verify.fuzz_workload import request_table

from .test_fuzz import shows_again

OPERATIONS = 200_000 if "KVBENCH_LONG" in os.environ else 6_000
COMBINATIONS = fleet_combinations()

plain = pytest.mark.skipif(not PLAIN, reason="faults are planted in plain functions")


def drawn(number):
    c = COMBINATIONS[number % len(COMBINATIONS)]
    settings = draw_settings(_generator(0, c, number, 0), c, number)
    return draw_fleet(_generator(0, c, number, 2), number, settings, step_costs())


@pytest.mark.parametrize("c", COMBINATIONS, ids=lambda c: c.name)
def test_nothing_is_wrong(c):
    (tally,) = fuzz(OPERATIONS // len(COMBINATIONS), 0, [c])
    assert tally.failures == []
    assert tally.operations > tally.steps > 0


def test_fleets_differ():
    fleets = [drawn(number) for number in range(80)]
    for fleet in fleets:
        fleet.check()
    assert {fleet.router.policy for fleet in fleets} == set(POLICIES)
    assert {len(fleet.members) for fleet in fleets} == {1, 2, 3, 4, 5}
    assert {incident.kind for fleet in fleets for incident in fleet.incidents} == {"restart", "drain", "add", "slow"}
    assert {(s.overlap, s.fast) for fleet in fleets for s in fleet.settings} == {(0, 0), (1, 0), (0, 1)}


def test_sessions_are_chains_of_requests():
    table = request_table(_asks(0, COMBINATIONS[0], 3))
    named = with_sessions(table)
    follows = np.flatnonzero(table.after >= 0)
    assert follows.size > 3
    assert np.array_equal(named.session_id[follows], named.session_id[table.after[follows]])
    assert (named.session_id < 0).any()


@plain
def test_a_router_that_does_not_hear_of_an_end(monkeypatch):
    ends = []

    def left(w, seq, now):
        ends.append(seq)
        if len(ends) % 7:
            routing.left(w, seq, now)

    monkeypatch.setattr(loop, "left", left)
    (tally,) = fuzz(2_000, 3, find_combinations("token-budget/hash/1/", FLEET))
    assert "router counts" in tally.failures[0].what


@plain
def test_an_engine_that_forgets_who_ended_there(monkeypatch, capsys):
    def put(w, number, engine, now):
        engine.now = now
        w.engines[number] = engine

    monkeypatch.setattr("kvbench.cluster.incidents._put", put)
    (tally,) = fuzz(6_000, 3, find_combinations("prefill-first/radix/1/", FLEET))
    assert len(tally.failures) == 1
    shows_again(tally, capsys)


def test_the_command(capsys):
    assert call(["verify", "fuzz", "--fleet", "--operations", "200", "--combination", "token-budget/none", "-q"]) == 0
    assert "token-budget/none/16/fleet" in capsys.readouterr().out
    assert repeat(0, COMBINATIONS[0], 0, [1]).failures == []
    assert call(["verify", "fuzz", "--fleet", "--tiers", "-q"]) == 2
    assert "give one of them" in capsys.readouterr().err
