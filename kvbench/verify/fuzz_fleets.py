"""Which fleets a fuzz drives: unequal engines behind any router, with any belief, and what happens to engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from ..cluster.fleet import Fleet, Member
from ..cluster.incidents import Incident
from ..core.requests import NONE, Requests
from ..costs.tables import CostTables
from ..engine.settings import EngineSettings
from ..routing.settings import POLICIES, PREDICTING, RouterSettings
from .fuzz_systems import LEAST_BLOCKS, MOST_BLOCKS

MOST_ENGINES = 5
MOST_INCIDENTS = 6
SPAN_NS = 150_000
"""In which they happen; a step takes a microsecond or a few."""
FEW_REQUESTS = 40
"""Of so many; of more there are more, in a longer time."""
NS_PER_MS = 1_000_000


def draw_fleet(
    rng: Generator, number: int, settings: EngineSettings, tables: CostTables, num_requests: int = FEW_REQUESTS
) -> Fleet:
    """Engines with the rules of `settings` and memory of their own; rounds go through the policies in turn."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(0, len(values)))]

    num = int(rng.integers(1, MOST_ENGINES + 1))
    members = []
    for _ in range(num):
        cache = replace(settings.cache, num_blocks=int(rng.integers(LEAST_BLOCKS, MOST_BLOCKS + 1)))
        members.append(Member(replace(settings, cache=cache), tables))
    incidents = draw_incidents(rng, num, -(-num_requests // FEW_REQUESTS))
    router = _router(one_of, [*POLICIES][number % len(POLICIES)], int(rng.integers(0, 1 << 31)))
    return Fleet(tuple(members), router, incidents=incidents, sends_again=one_of(False, True))


def draw_incidents(rng: Generator, num_engines: int, times: int = 1) -> tuple[Incident, ...]:
    """None, or some, at any time. times: as many, in as long."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(0, len(values)))]

    return tuple(
        Incident(
            at_ns=int(rng.integers(0, SPAN_NS * times)),
            engine=int(rng.integers(0, num_engines)),
            kind=one_of("restart", "restart", "drain", "add", "slow"),
            down_ns=one_of(0, 1, 4_000, 60_000),
            factor=one_of(0.5, 3.0),
        )
        for _ in range(times * one_of(0, 1, 3, MOST_INCIDENTS))
    )


def _router(one_of: Any, policy: str, seed: int) -> RouterSettings:
    """Rules and views of a router; what a policy does not read does not matter."""
    belief = "auto" if policy == PREDICTING[1] else one_of("auto", "own", "events", "truth")
    return RouterSettings(
        policy=policy,
        routers=one_of(1, 1, 2, 3),
        decide_us=one_of(0.0, 0.0, 0.7),
        hash_us_per_token=one_of(0.0, 0.003),
        refresh_ms=one_of(0.0, 0.0, 3_000 / NS_PER_MS),
        load=one_of("own", "reported"),
        load_by=one_of("requests", "queued-tokens", "kv", "rate"),
        window_s=one_of(1e-6, 1.0),
        counter=one_of("one", "each-set"),
        belief=belief,
        events_delay_ms=one_of(0.0, 0.0, 1_500 / NS_PER_MS, 40_000 / NS_PER_MS),
        events_lost=one_of(0.0, 0.0, 0.3, 1.0),
        hears_loss=one_of(True, False),
        block_tokens=one_of(0, 0, 3) if belief == "own" else 0,
        tree_tokens=one_of(1, 60, 1 << 24),
        evict_interval_s=one_of(1e-6, 20e-6),
        ttl_s=one_of(0.0, 5e-6),
        assign=one_of("ring", "modulo", "sticky", "sticky-fewest"),
        ring_points=one_of(1, 16),
        prefix_tokens=one_of(1, 16, 256),
        bound=one_of(1.0, 1.25, 1e9),
        match_threshold=one_of(0.0, 0.3, 1.0),
        balance_abs=one_of(0.0, 2.0, 64.0),
        balance_rel=one_of(0.0, 1.5),
        credit=one_of(0.0, 1.0),
        credit_decay=one_of(0.0, 0.5),
        prefill_scale=one_of(0.0, 1.0),
        active_weight=one_of(0.0, 2.0),
        temperature=one_of(0.0, 0.2),
        weight_requests=one_of(0.0, 1.0),
        seed=seed,
    )


def with_sessions(requests: Requests) -> Requests:
    """Requests that follow one another are a session, named by its first."""
    after = requests.after
    first = np.arange(len(requests))
    for request in np.flatnonzero(after != NONE):  # whom they follow comes before them
        first[request] = first[after[request]]
    in_chain = np.bincount(first, minlength=first.size)[first] > 1
    return replace(requests, session_id=np.where(in_chain, first, NONE))
