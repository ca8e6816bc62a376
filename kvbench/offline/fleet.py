"""A workload through the caches of several engines behind a router, without a clock: what spreading costs in hits.

A request goes to the engine that the router says and through that engine's own scheduler, one after another, so what is
found is what a run finds whose requests come far apart. Load needs a clock: here a request counts as in flight, without
a first token, until IN_FLIGHT_EACH x engines others have been sent after it. That is what policies see that look at
load; the oracle too, which here knows the caches alone. `now` is the time of arrival in the workload.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from ..cluster.fleet import Fleet, prefill_table
from ..cluster.routing import listen_pointer, look_pointer
from ..core.errors import UsageError
from ..core.requests import I64
from ..engine.build import build_engine, share
from ..routing.build import make_router
from ..routing.policies import verbs_of
from ..routing.router import ENDED, FIRST_TOKEN, SENT
from ..routing.settings import PREDICTING, RouterSettings
from ..scheduler.state import Engine
from ..scheduler.state_columns import FAILED, REFUSED
from .lone import run_alone, without_clock
from .order import virtual_arrivals
from .replay import check_replay
from .shared import Offline

IN_FLIGHT_EACH = 64
"""Requests that an engine has in flight, where nobody knows."""


class LoneFleet:
    """Engines without a clock behind a router."""

    def __init__(self, offline: Offline, fleet: Fleet):
        requests, router = offline.requests, fleet.router or RouterSettings()
        if router.policy == "oracle":  # nothing is queued in an engine without a clock
            router = replace(router, policy="predicted-ttft", belief="truth", load="own")
        members = [(without_clock(m.settings), m.tables) for m in fleet.members]
        first = members[0][0]
        shared = share(requests, first, offline.keys)
        prefill = prefill_table([tables for _, tables in members], requests) if router.policy in PREDICTING else None
        self.router = make_router(
            router, shared.requests, len(members), shared.block_keys, first.block_tokens, prefill, first.seed
        )
        tells = bool(self.router.wants_events)
        self.engines: list[Engine] = [
            build_engine(shared, settings, tables, number=number, tells_blocks=tells)
            for number, (settings, tables) in enumerate(members)
        ]
        self.seqs = shared.seqs
        self._verbs = verbs_of(router)
        self._look, self._listen = look_pointer(True), listen_pointer(tells)
        self._times = virtual_arrivals(requests)
        self._flying: deque[tuple[int, int]] = deque()
        self.engine_of = np.full(len(requests), -1, np.int64)

    def send(self, request: int) -> None:
        """The next request, to its end."""
        router, now = self.router, int(self._times[request])
        seq = int(self.seqs.first[request])
        for engine in self.engines:
            if router.wants_truth or router.wants_load:
                self._look(engine, router, seq)
        while len(self._flying) >= IN_FLIGHT_EACH * len(self.engines):
            seq_before, at = self._flying.popleft()
            self._hear(FIRST_TOKEN, seq_before, at, now)
            self._hear(ENDED, seq_before, at, now)
        k = int(self._verbs.route(router, self.seqs, seq, now))
        if k < 0:
            raise UsageError(f"router.policy chose no engine for request {request}; it has to return one's number")
        self._hear(SENT, seq, k, now)
        self._flying.append((seq, k))
        self.engine_of[request] = k
        run_alone(self.engines[k], np.array([request], np.int64))
        self._listen(self.engines[k], router, now)

    def _hear(self, event: Any, seq: int, engine: int, now: int) -> None:
        self._verbs.hear(self.router, self.seqs, int(event), seq, engine, now)


def replay_fleet(offline: Offline, fleet: Fleet) -> dict[str, Any]:
    """Hit rates behind a router, of all engines and of each. UsageError: flushes, or an engine without a cache."""
    for settings in fleet.settings:
        check_replay(settings)
    if any(settings.tiers.on for settings in fleet.settings):
        raise UsageError("--cache-only with several engines knows no tiers; leave [tiers] out, or run it")
    requests = offline.requests
    if requests.flush_ns is not None and requests.flush_ns.size:
        raise UsageError("--cache-only with several engines knows no flushes; leave [[flush]] out")
    lone, num = LoneFleet(offline, fleet), len(fleet.members)
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        for request in offline.order.tolist():
            lone.send(request)
    seqs = lone.seqs
    counted = np.asarray(seqs.asked) * offline.counted[np.asarray(seqs.request)] == 1
    engine = lone.engine_of[np.asarray(seqs.request)]
    prompt, cached = np.asarray(seqs.prompt), np.asarray(seqs.cached)
    hits, tokens = (
        _by_engine(cached, engine, counted, num),
        _by_engine(prompt, engine, counted, num),
    )
    return {
        "requests": len(requests),
        "counted": int(offline.counted.sum()),
        "refused": int(np.isin(np.asarray(seqs.state), (REFUSED, FAILED)).sum()),
        "engines": num,
        "prompts_with_answers": offline.prompts_with_answers,
        "answers": offline.answers,
        "warm_up": offline.warm_up,
        "hit_tokens": int(hits.sum()),
        "prompt_tokens": int(tokens.sum()),
        "hit_rate_tokens": float(hits.sum() / max(int(tokens.sum()), 1)),
        "hit_rate_engines": (hits / np.maximum(tokens, 1)).tolist(),
        "prompt_tokens_engines": tokens.tolist(),
        "requests_engines": np.bincount(lone.engine_of, minlength=num).tolist(),
        "evicted_blocks": sum(int(e.pool.evicted) for e in lone.engines),
        "capacity_blocks": sum(s.cache.num_blocks for s in fleet.settings),
    }


def _by_engine(values: I64, engine: I64, counted: Any, num: int) -> I64:
    return np.bincount(engine[counted], values[counted], num).astype(np.int64)
