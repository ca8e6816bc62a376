"""Cancels, time-outs, links that go down, lost mail: every state is seen, and nothing is left behind."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.incidents import Incident
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import CANCELLED, FAILED, FINISHED, TIMED_OUT
from kvbench.engine.settings import EngineSettings
from kvbench.pairs.settings import FAULTS, LAYERWISE, PULL, PUSH, Fault
from kvbench.scheduler.rules import CacheRules, SchedulerRules

from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import Ask
from .test_pairs import assert_baseline, assert_times_add_up, paired, rules, watched

ROUNDS = 400 if os.environ.get("KVBENCH_LONG") == "1" else 25

PULLED = {
    "prefill": "waiting prefilling preempted sending finished cancelled",
    "decode": "arrived routed waiting transferring draining prefilling decoding preempted finished cancelled failed",
}
LAYERED = {
    "prefill": f"{PULLED['prefill']} failed",
    "decode": PULLED["decode"].replace("draining ", ""),  # it is told when nothing drains any more
}
PUSHED = {
    "prefill": "bootstrapping waiting prefilling sending finished cancelled failed timed_out",
    "decode": "arrived bootstrapping transferring waiting decoding preempted finished cancelled failed timed_out",
}
"""States that a run has to visit, by side."""


def random_asks(random: np.random.Generator) -> list[Ask]:
    """Requests that share beginnings, half of whose clients give up at some time."""
    asks = []
    for i in range(int(random.integers(4, 14))):
        prompt = [
            (1 + int(random.integers(2)), 0, int(random.integers(1, 40))),
            (20 + i, 0, int(random.integers(1, 50))),
        ]
        output = int(random.integers(1, 40))
        cancel = int(random.integers(0, 60_000)) if random.random() < 0.5 else None
        asks.append(Ask(prompt, [(100 + i, 0, output)], 0, output, output + int(random.integers(3)), cancel_ns=cancel))
    for ask, at in zip(asks, np.sort(random.integers(0, 60_000, len(asks))), strict=True):
        ask.arrival_ns = int(at)
    return asks


def random_faults(random: np.random.Generator) -> tuple[Fault, ...]:
    return tuple(
        Fault(str(random.choice(list(FAULTS))), int(random.integers(0, 60_000)), int(random.integers(1, 60_000)))
        for _ in range(int(random.integers(0, 3)))
    )


def random_incidents(random: np.random.Generator, num: int) -> tuple[Incident, ...]:
    """Engines die and come back empty, on either side, or get no more requests for a while."""
    kinds = ("restart", "restart", "restart", "drain", "add", "slow")
    return tuple(
        Incident(
            int(random.integers(0, 60_000)),
            int(random.integers(num)),
            str(random.choice(kinds)),
            int(random.integers(0, 40_000)),
            2.0,
        )
        for _ in range(int(random.integers(0, 4)))
    )


def visited_states(settings: EngineSettings, seed: int, protocol: str) -> Counter[str]:
    visited: Counter[str] = Counter()
    random = np.random.default_rng(seed)
    for _ in range(ROUNDS):
        blocks = int(random.integers(26, 60))
        scheduler = replace(
            settings.scheduler,
            reserve_full_isl=bool(random.integers(2)),
            max_running_requests=int(random.choice([3, 50])),
        )
        drawn = replace(
            settings, scheduler=scheduler, cache=CacheRules(settings.cache.kind, blocks, free_order="auto"), fast=False
        )
        pair = rules(
            settings,
            protocol=protocol,
            layers=0 if protocol == PULL else int(random.integers(0, 3)),
            lease_ns=int(random.choice([3_000, 40_000])),
            ns_per_byte=float(random.choice([0.5, 5.0, 30.0])),
            bootstrap_ns=int(random.choice([2_000, 10**9])),
            arrival_ns=int(random.choice([2_000, 10**9])),
            hands_out=protocol != LAYERWISE and bool(random.integers(2)),
            tells_unread=bool(random.integers(2)),
            faults=random_faults(random),
            num_prefill=int(random.integers(1, 3)),
            num_decode=int(random.integers(1, 3)),
        )
        incidents = random_incidents(random, pair.num_prefill + pair.num_decode)
        again = bool(random.integers(2))
        more = {"fails_with_transfer": bool(random.integers(2)), "reserved_decode_tokens": 2}
        simulation = paired(random_asks(random), drawn, pair, incidents, again, preallocated_requests=4, **more)
        watched(simulation, visited)
        assert_baseline(simulation)
        assert_times_add_up(simulation)
    return visited


@pytest.mark.parametrize(
    ("settings", "protocol", "states"),
    [(VLLM, PULL, PULLED), (VLLM, LAYERWISE, LAYERED), (SGLANG, PUSH, PUSHED)],
    ids=["pull", "layerwise", "push"],
)
def test_whatever_happens_everything_goes_back_and_every_state_is_seen(settings, protocol, states):
    visited = visited_states(replace(settings, overlap=False), 2, protocol)
    wanted = {f"{side} {name}" for side, names in states.items() for name in names.split()}
    assert wanted - set(visited) == set()


def chats(num: int, prompt: int, output: int, cancel_ns: int | None = None) -> list[Ask]:
    return [
        Ask([(i, 0, prompt)], [(100 + i, 0, output)], 500 * i, output, output, cancel_ns=cancel_ns)
        for i in range(1, num)
    ]


def test_a_lease_that_ends_frees_nothing_that_is_being_read():
    settings = replace(VLLM, overlap=False)
    slow = rules(settings, lease_ns=6_000, ns_per_byte=50.0, faults=(Fault("heartbeats-lost", 0, 10**9),))
    simulation = paired(chats(8, 60, 5), settings, slow)
    watched(simulation)
    assert_baseline(simulation)
    assert simulation.world.pairs.expired > 0
    assert (simulation.journal().status == FAILED).any()
    broken = paired(chats(8, 60, 5), replace(settings, faults=("lease_over_reads",)), slow)
    with pytest.raises(KvbenchError, match=r"is still read for sequence|still touches it"):
        watched(broken)


def test_who_gives_up_keeps_memory_that_is_still_written():
    settings = replace(SGLANG, overlap=False)
    slow = rules(settings, ns_per_byte=50.0)
    simulation = paired(chats(8, 60, 5, 9_000), settings, slow)
    watched(simulation)
    assert_baseline(simulation)
    assert (simulation.journal().status == CANCELLED).any()
    broken = paired(chats(8, 60, 5, 9_000), replace(settings, faults=("free_while_written",)), slow)
    with pytest.raises(KvbenchError, match=r"is still written for sequence|still touches it"):
        watched(broken)


@pytest.mark.parametrize("fails", [True, False])
def test_a_link_that_is_down_fails_a_request_or_has_it_computed_again(fails):
    settings = replace(VLLM, overlap=False)
    pair = rules(settings, faults=(Fault("link-down", 0, 10**9),), lease_ns=30_000)
    simulation = paired(chats(8, 60, 5), settings, pair, fails_with_transfer=fails)
    watched(simulation)
    assert_baseline(simulation)
    journal = simulation.journal()
    assert (journal.status == (FAILED if fails else FINISHED)).all()
    assert (journal.recomputed_tokens > 0).any() != fails
    assert simulation.world.pairs.failed == 7


def test_without_memory_on_the_decode_side_a_push_times_out_on_both():
    settings = replace(SGLANG, overlap=False, scheduler=SchedulerRules(discipline="prefill-first"))
    asks = chats(12, 100, 60)
    simulation = paired(asks, settings, rules(settings, bootstrap_ns=30_000), reserved_decode_tokens=10)
    watched(simulation)
    assert_baseline(simulation)
    status = simulation.journal().status
    assert (status == TIMED_OUT).any()
    assert (status == FINISHED).any()


def test_an_unread_notice_holds_the_prompt_until_its_lease_ends():
    settings = replace(VLLM, overlap=False)
    pair = rules(settings, faults=(Fault("notices-lost", 0, 10**9),), lease_ns=50_000)
    simulation = paired(chats(4, 60, 5), settings, pair)
    watched(simulation)
    assert_baseline(simulation)
    assert (simulation.journal().status == FINISHED).all()
    times = simulation.pair_times()
    assert (times.freed - times.computed >= 50_000).all()


def test_loads_that_fill_the_memory_can_start():
    """A first token that the prefill side has handed out needs its place too, and has it from the beginning."""
    settings = replace(VLLM, overlap=False, cache=CacheRules("hash", 30, free_order="auto"))
    far = rules(settings, hands_out=True, setup_ns=50_000.0)
    simulation = paired(chats(8, 60, 3), settings, far)
    watched(simulation)
    assert_baseline(simulation)
    assert (simulation.journal().status == FINISHED).all()
    assert simulation.journal().preemptions.sum() == 0


@pytest.mark.parametrize("fails", [True, False])
def test_a_late_router_hands_over_what_is_no_longer_held(fails):
    settings = replace(VLLM, overlap=False)
    pair = rules(settings, lease_ns=5_000, faults=(Fault("router-late", 0, 60_000),))
    simulation = paired(chats(6, 60, 5), settings, pair, fails_with_transfer=fails)
    watched(simulation)
    assert_baseline(simulation)
    assert simulation.world.pairs.expired == 5
    assert (simulation.journal().status == (FAILED if fails else FINISHED)).all()
    gives_up = paired(chats(6, 60, 5, 20_000), settings, pair)
    watched(gives_up)
    assert_baseline(gives_up)
    assert (gives_up.journal().status == CANCELLED).all()


@pytest.mark.parametrize("settings", [VLLM, SGLANG], ids=["pull", "push"])
@pytest.mark.parametrize("dead", [0, 2])
@pytest.mark.parametrize("again", [True, False])
def test_what_a_dead_engine_had_fails_or_runs_elsewhere(settings, dead, again):
    settings = replace(settings, overlap=False)
    pair = rules(settings, num_prefill=2, num_decode=2, ns_per_byte=5.0, lease_ns=60_000)
    deaths = (Incident(12_000, dead, "restart", 30_000), Incident(14_000, dead, "restart", 30_000))
    simulation = paired(chats(9, 60, 5), settings, pair, deaths, again, fails_with_transfer=True)
    watched(simulation)
    assert_baseline(simulation)
    assert_times_add_up(simulation)
    status = simulation.journal().status
    assert (status == FINISHED).all() if again else (status == FAILED).any()
    assert simulation.engines[dead].side.epoch == 2


def test_an_end_that_is_told_twice_counts_once():
    from kvbench.pairs import pull

    settings = replace(VLLM, overlap=False)
    simulation = paired(chats(5, 60, 5), settings, rules(settings, ns_per_byte=5.0))
    right, told = pull.over, []

    def twice(pairs, engines, row, now):
        good = right(pairs, engines, row, now)
        state = engines[0].operations.rows[row].copy()
        told.append(right(pairs, engines, row, now))
        engines[0].operations.rows[row] = state  # its mark is that of the first
        return good

    pull.over = twice
    try:
        watched(simulation)
    finally:
        pull.over = right
    assert_baseline(simulation)
    assert told == [False] * 4
    assert (simulation.journal().status == FINISHED).all()
