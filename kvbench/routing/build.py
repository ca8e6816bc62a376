"""A router at t = 0 from its settings and the requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ..core.requests import I64, NONE, Requests
from ..core.units import NEVER_NS, NS_PER_MS, NS_PER_S, NS_PER_US
from ..prefix.keys import BlockKeys, block_keys
from .block_view import make_block_view
from .holder_tree import make_holder_tree
from .own_file import find_choice, no_choice
from .ring import engine_name, make_ring, point_of
from .router import (
    EVENTS,
    HELD_TOKENS,
    IN_FLIGHT,
    KV_USED,
    LOAD_COLUMNS,
    MODULO,
    NO_ENGINE,
    OWN,
    PENDING_TOKENS,
    QUEUED_TOKENS,
    REQUESTS,
    RING,
    SENT_LATELY,
    STICKY,
    STICKY_FEWEST,
    TRUTH,
    UNKNOWN,
    Router,
    RouterRules,
)
from .settings import RouterSettings, belief_of, load_of

_LOADS = {
    ("own", "requests"): IN_FLIGHT,
    ("own", "queued-tokens"): PENDING_TOKENS,
    ("own", "kv"): HELD_TOKENS,
    ("own", "rate"): SENT_LATELY,
    ("reported", "requests"): REQUESTS,
    ("reported", "queued-tokens"): QUEUED_TOKENS,
    ("reported", "kv"): KV_USED,
}
_ASSIGN = {"ring": RING, "modulo": MODULO, "sticky": STICKY, "sticky-fewest": STICKY_FEWEST}
_BELIEF = {"own": OWN, "events": EVENTS, "truth": TRUTH}


def make_router(
    settings: RouterSettings,
    requests: Requests,
    num_engines: int,
    keys: BlockKeys,
    block_tokens: int,
    prefill_ns: I64 | None = None,
    seed: int = 0,
    ranks: int = 1,
) -> Router:
    """At t = 0: every engine takes requests, nothing is in flight, nothing is believed cached.

    num_engines   those that are added later too; whoever adds them sets `accepts`
    keys          of the requests' blocks of block_tokens tokens, the engines' own
    prefill_ns    see Router; predicted-ttft and oracle need it
    seed          of the run, where the settings have none
    ranks         engines of each of those: above 1, they are instances
    """
    if settings.block_tokens not in (0, block_tokens):
        block_tokens = settings.block_tokens
        keys = block_keys(requests, block_tokens)
    num, ports = requests.num_sequences, num_engines * settings.routers
    session, names = _sessions(requests)
    points, owners = make_ring([engine_name(e) for e in range(num_engines)], settings.ring_points)
    counted = len(names) * settings.routers if settings.policy == "session" else 0
    belief = _BELIEF[belief_of(settings)]
    limit = settings.tree_tokens // block_tokens
    values = {
        "rules": _rules(settings, num_engines, ranks, block_tokens),
        "block_keys": keys,
        "port": np.repeat(np.arange(num_engines), ranks),
        "base": 0,
        "accepts": np.ones(num_engines, np.int64),
        "load": np.zeros((ports, LOAD_COLUMNS), np.int64),
        "as_of": np.zeros(num_engines, np.int64),
        "truth": np.zeros(num_engines, np.int64),
        "wants_truth": belief == TRUTH,
        "wants_load": settings.refresh_ms == 0 and load_of(settings) == "reported",
        "wants_events": belief == EVENTS,
        "late": np.zeros((64, 3), np.int64),
        "late_head": 0,
        "num_late": 0,
        "delay_ns": round(settings.events_delay_ms * NS_PER_MS),
        "lost_events": round(settings.events_lost * (1 << 32)),
        "lottery": np.uint64((seed if settings.seed < 0 else settings.seed) + (1 << 40)),
        "predicted": UNKNOWN,
        "best": UNKNOWN,
        "cached": np.zeros(num_engines, np.int64),
        "told": np.zeros(num_engines * ranks, np.int64),
        "booked": np.zeros(num, np.int64),
        "turns": np.zeros(settings.routers, np.int64),
        "sets": np.zeros((8, 2), np.int64),
        "num_sets": 0,
        "sends": np.zeros((64, 2), np.int64),
        "first_send": 0,
        "num_sends": 0,
        "random": np.uint64(seed if settings.seed < 0 else settings.seed),
        "session": session,
        "session_point": np.array([point_of(name) for name in names], np.int64),
        "home": np.full(len(names) * settings.routers, NO_ENGINE, np.int64),
        "flying": np.zeros(counted, np.int64),
        "seat": np.full(counted, NO_ENGINE, np.int64),
        "seated": np.zeros(ports, np.int64),
        "ring_point": points,
        "ring_engine": owners,
        "tree": make_holder_tree(ports, limit),
        "blocks_told": make_block_view(num_engines * ranks),
        "next_evict": 0,
        "keys": np.zeros(int(requests.prompt_tokens.max(initial=0)) // block_tokens + 1, np.int64),
        "live": make_holder_tree(ports, NEVER_NS),
        "leaf": np.zeros(num, np.int64),
        "shared": np.zeros(num_engines, np.int64),
        "output_blocks": np.zeros(ports, np.int64),
        "grown": np.zeros(num, np.int64),
        "cost": np.zeros(num_engines, np.float64),
        "prefill_ns": np.zeros((num_engines, 2), np.int64) if prefill_ns is None else prefill_ns,
        "bad_choice": -1,
        "choose": find_choice(settings.policy) if settings.is_own_file else no_choice(),
    }
    return Router(*(values[name] for name in Router.fields))


def _rules(settings: RouterSettings, num_engines: int, ranks: int, block_tokens: int) -> RouterRules:
    given: dict[str, Any] = asdict(settings)
    load = load_of(settings)
    given |= {
        "num_engines": num_engines,
        "ranks": ranks,
        "block_tokens": block_tokens,
        "load_column": _LOADS.get((load, settings.load_by), IN_FLIGHT),
        "window_ns": round(settings.window_s * NS_PER_S) if settings.load_by == "rate" else 0,
        "counts_each_set": settings.counter == "each-set",
        "queue_column": _LOADS[load, "queued-tokens"],
        "assign": _ASSIGN[settings.assign],
        "belief": _BELIEF[belief_of(settings)],
        "evict_ns": max(round(settings.evict_interval_s * NS_PER_S), 1),
        "ttl_ns": round(settings.ttl_s * NS_PER_S) if settings.ttl_s > 0 else NEVER_NS,
    }
    return RouterRules(*(given[name] for name in RouterRules.fields))


def decision_ns(settings: RouterSettings, prompt_tokens: I64) -> I64:
    """What the decision on a prompt takes."""
    return np.rint((settings.decide_us + settings.hash_us_per_token * prompt_tokens) * NS_PER_US).astype(np.int64)


def _sessions(requests: Requests) -> tuple[I64, list[str]]:
    """(requests,) number of the session among those that there are, or NONE; and the keys of them all."""
    ids, number = np.unique(requests.session_id, return_inverse=True)
    has_none = int(ids.size > 0 and ids[0] == NONE)
    return (number - has_none).astype(np.int64), [str(i) for i in ids[has_none:]]
