"""A trace through a cache without a clock: what the cache alone gives, by the engine's own rules, at full speed.

One request after another goes through the preset's scheduler (`lone`), so what is found equals, to the token, what a
run finds whose requests come far apart. Three rates, each under its own name:

    hit_rate_tokens   tokens found / prompt tokens asked for: the hit rate of a run
    hit_rate_blocks   whole blocks found / whole blocks of the prompts
    hit_rate_ids      only where block_tokens is the trace's own: ids of the trace as opaque units (`ids`)

A full hit is capped at the prompt less one token, which is computed come what may. Blocks of equal content lie beside
each other where the engine keeps them so. Answers enter the cache, all but their last token, whose KV nobody needs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from ..cluster.admissions import admissions_of
from ..cluster.flush import Flushes
from ..core.errors import UsageError
from ..core.requests import Requests
from ..core.units import NEVER_NS
from ..costs.tables import CostTables
from ..engine.build import build_engine, share
from ..engine.settings import EngineSettings
from ..prefix.keys import BlockKeys
from ..prefix.optimum import most_hits
from ..scheduler.state import Engine
from ..scheduler.state_columns import FAILED, REFUSED
from .bounds import forks_of, in_order, token_bounds
from .lone import run_alone, without_clock
from .order import virtual_arrivals
from .shared import Offline
from .tiers import LoneTiers
from .warm import prepare_cache


def replay_cache(offline: Offline, settings: EngineSettings, costs: CostTables) -> dict[str, Any]:
    """Replay every request once; every rate with its bounds. cache.num_blocks 0 = a cache without bound.

    raises  UsageError: there is no cache, or no request that could run
    """
    check_replay(settings)
    requests = offline.requests
    requests.check()
    begin = time.perf_counter()
    engine = _engine(
        requests, without_clock(_bounded(settings, requests)), costs, offline.keys, settings.tiers.writes_back
    )
    prepare_cache(engine, requests, settings)
    tiers = LoneTiers(engine, settings) if settings.tiers.on else None
    if tiers is not None:
        tiers.prepare(requests, settings)
    evicted = _go_through(engine, offline, settings, tiers)
    seconds = time.perf_counter() - begin
    state = engine.seqs.state
    if not engine.seqs.asked.any():
        raise UsageError("no request could run: too long for max_model_len or the cache, or without an answer")
    return {
        "requests": len(requests),
        "counted": int(offline.counted.sum()),
        "refused": int(np.count_nonzero((state == REFUSED) | (state == FAILED))),
        "prompts_with_answers": offline.prompts_with_answers,
        "answers": offline.answers,
        "warm_up": offline.warm_up,
        **_rates(engine, offline, settings, tiers),
        "evicted_blocks": evicted,
        "capacity_blocks": settings.cache.num_blocks,
        "tier_blocks": settings.tiers.host_blocks + settings.tiers.store.blocks,
        "seconds": seconds,
    }


def check_replay(settings: EngineSettings) -> None:
    """UsageError: there is no cache to replay through."""
    if settings.cache.kind == "none":
        raise UsageError("cache.kind none has nothing to replay; set cache.kind to radix or hash")
    if settings.tiers.on and settings.cache.num_blocks == 0:
        raise UsageError("behind a cache without bound nothing is ever looked for in a tier; set cache.blocks")


def _bounded(settings: EngineSettings, requests: Requests) -> EngineSettings:
    """A capacity for "no bound": every sequence keeps blocks of its own, and some room."""
    if settings.cache.num_blocks:
        return settings
    whole = -(-(requests.prompt_tokens + requests.max_tokens + 1) // settings.block_tokens) + 2
    return replace(settings, cache=replace(settings.cache, num_blocks=int((whole * requests.samples).sum())))


def _engine(requests: Requests, settings: EngineSettings, costs: CostTables, keys: BlockKeys, tells: bool) -> Engine:
    return build_engine(share(requests, settings, keys), settings, costs, tells_blocks=tells)


def _go_through(engine: Engine, offline: Offline, settings: EngineSettings, tiers: LoneTiers | None) -> int:
    """All requests in order, with the flushes between them. Returns the blocks evicted while requests were counted."""
    flushes, times = Flushes(offline.requests, settings), virtual_arrivals(offline.requests)[offline.order]
    stops = [offline.num_warming, len(offline.requests)]
    done, flushed, evicted = 0, 0, 0
    while done < len(offline.requests):
        flush_ns = flushes.times[flushed] if flushed < len(flushes.times) else NEVER_NS
        until = int(np.searchsorted(times, flush_ns))
        stop = min(until, *(stop for stop in stops if stop > done))
        if tiers is None:
            run_alone(engine, offline.order[done:stop])
        else:
            for one in range(done, stop):
                run_alone(engine, offline.order[one : one + 1])
                tiers.see(offline.order[one : one + 1])
        done = stop
        if done == offline.num_warming:
            evicted = int(engine.pool.evicted)
        if done == until < len(times):
            flushes.carry_out(engine, flushed)
            flushed += 1
    return int(engine.pool.evicted) - evicted


def _rates(engine: Engine, offline: Offline, settings: EngineSettings, tiers: LoneTiers | None) -> dict[str, Any]:
    """Counts and rates of the sequences that are counted, every rate followed by its bounds."""
    requests, bt = offline.requests, settings.block_tokens
    capacity = settings.cache.num_blocks + settings.tiers.host_blocks + settings.tiers.store.blocks
    a = admissions_of(engine)
    when = offline.place[a.request]
    a = in_order(replace(a, asked=a.asked * offline.counted[a.request], scheduled_ns=when, finish_ns=when))
    counted = a.taken(np.flatnonzero(a.asked))
    on_device = engine.seqs.cached[counted.sequence]
    below = [np.zeros_like(on_device)] * 2 if tiers is None else [n[counted.sequence] for n in tiers.found()]
    found = on_device + sum(below)
    tokens, blocks = int(counted.prompt.sum()), int((counted.prompt // bt).sum())
    reuses = offline.reuses(a, engine.block_keys, settings.cache.state)
    (bounds,) = token_bounds(reuses, a, forks_of(requests, settings), bt, [capacity])
    (most_blocks,) = most_hits(reuses, [capacity])
    rates = {
        "hit_rate_tokens": (int(found.sum()), bounds.infinite, bounds.optimum, tokens),
        "hit_rate_blocks": (int((found // bt).sum()), reuses.total, most_blocks, blocks),
    }
    figures: dict[str, Any] = {
        "prompt_tokens": tokens,
        "hit_tokens": int(found.sum()),
        "blocks": blocks,
        "hit_blocks": int((found // bt).sum()),
    }
    if tiers is not None:
        for name, part in zip(("device", "host", "storage"), (on_device, *below), strict=True):
            figures[f"hit_rate_{name}"] = int(part.sum()) / max(tokens, 1)
    for name, (hits, infinite, optimum, whole) in rates.items():
        figures |= _with_bounds(name, *(part / max(whole, 1) for part in (hits, infinite, optimum)))
    if requests.block_hint == bt and tiers is None:
        ids = int(np.diff(requests.segment_offset)[offline.counted == 1].sum())
        rate = offline.id_rate(capacity)
        (most_ids,) = most_hits(offline.ids, [capacity])
        figures |= _with_bounds("hit_rate_ids", rate, offline.ids.total / max(ids, 1), most_ids / max(ids, 1))
    return figures


def _with_bounds(name: str, rate: float, infinite: float, optimum: float) -> dict[str, float]:
    return {name: rate, f"{name}_infinite": infinite, f"{name}_optimum": optimum}
