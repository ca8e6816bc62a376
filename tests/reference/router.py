"""Routing policies in plain Python: one object that decides and hears, on sets, dicts and prompts as tuples."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from .holder_tree import ReferenceTree
from .splitmix import SplitMix


@dataclass
class Engine:
    """What a router can know of one engine. live: id -> [prompt tokens, those pending, blocks, output blocks]."""

    accepts: bool = True
    live: dict = field(default_factory=dict)
    requests: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    kv_used: int = 0
    kv_all: int = 1
    events: set = field(default_factory=set)
    truth: int = 0


DEFAULTS = {
    "load": "own",
    "load_by": "requests",
    "window_s": 60.0,
    "counter": "one",
    "assign": "ring",
    "ring_points": 160,
    "belief": "own",
    "prefix_tokens": 256,
    "bound": 1.25,
    "min_match_tokens": 0,
    "match_threshold": 0.3,
    "balance_abs": 64.0,
    "balance_rel": 1.5,
    "tree_tokens": 1 << 24,
    "evict_interval_s": 60.0,
    "ttl_s": 0.0,
    "credit": 1.0,
    "credit_decay": 0.0,
    "prefill_scale": 1.0,
    "active_weight": 0.0,
    "weight_queue": 2.0,
    "weight_kv": 2.0,
    "weight_prefix": 3.0,
    "weight_requests": 0.0,
}
SECOND = 1_000_000_000
BELIEVERS = ("cache-aware", "longest-prefix", "kv-aware", "scorers", "predicted-ttft", "oracle")


class ReferenceRouter:
    """One policy by name; options as the keys of `[router]`.

    point_of_prefix   (prompt, blocks) -> point on the ring: what a hash gives is not checked here
    prefill_ns        (engine, tokens) -> ns
    """

    def __init__(self, policy, num_engines, block_tokens=4, seed=0, point_of_prefix=None, prefill_ns=None, **options):
        self.policy, self.bt = policy, block_tokens
        self.__dict__ |= DEFAULTS | options
        self.point_of_prefix, self.prefill_ns = point_of_prefix, prefill_ns
        self.engines = [Engine() for _ in range(num_engines)]
        self.draws = SplitMix(seed)
        self.turns, self.sends, self.now = {}, [], 0
        self.homes = {}
        self.in_flight, self.last_at, self.session = {}, {}, None
        self.tree, self.clock, self.next_evict = ReferenceTree(), 0, 0
        self.ring = {}
        for number in range(num_engines):
            for i in range(self.ring_points):
                self.ring[_point(f"engine-{number}-{i}")] = number

    def choose(self, prompt=(), session=None, now=0):
        """The engine of a request, or None; `sent` follows at once."""
        self.session, self.now = session, now
        self.cached = [0] * len(self.engines)
        self._trim(now)
        there = [n for n, e in enumerate(self.engines) if e.accepts]
        if not there:
            return None
        return getattr(self, "_" + self.policy.replace("-", "_"))(there, prompt, session)

    def blocks(self, prompt):
        bt = self.bt
        return [tuple(prompt[i : i + bt]) for i in range(0, len(prompt) // bt * bt, bt)]

    def hear_block(self, engine, prefix, is_stored):
        """Of the last block of a prefix."""
        events = self.engines[engine].events
        if is_stored:
            events.add(tuple(prefix))
        else:
            events.discard(tuple(prefix))

    def lost(self, engine):
        self.engines[engine].events.clear()
        if self.belief == "own":
            self.tree.drop_engine(engine)

    def _trim(self, now):
        if now >= self.next_evict and self.policy in BELIEVERS:
            interval = round(self.evict_interval_s * SECOND)
            self.next_evict = (now // interval + 1) * interval
            limit = self.tree_tokens // self.bt
            self.tree.evict(
                dict.fromkeys(range(len(self.engines)), limit), now - self.ttl_s * SECOND if self.ttl_s else -1
            )

    def _believe(self, prompt):
        blocks = self.blocks(prompt)
        if self.belief == "truth":
            self.cached = [e.truth for e in self.engines]
        elif self.belief == "own":
            held = self.tree.match(0, blocks)[2]
            self.cached = [held.get(n, 0) * self.bt for n in range(len(self.engines))]
        else:
            for n, e in enumerate(self.engines):
                has = [tuple(blocks[: i + 1]) in e.events for i in range(len(blocks))] + [False]
                self.cached[n] = has.index(False) * self.bt

    def sent(self, request, engine, prompt, now=0):
        blocks = self.blocks(prompt)
        self.sends.append((now, engine))
        pending = max(len(prompt) - self.cached[engine], 0)
        self.engines[engine].live[request] = [len(prompt), pending, blocks, 0]
        self.in_flight[request] = self.session
        self.last_at[self.session] = engine
        if self.policy not in BELIEVERS or self.belief != "own":
            return
        if self.policy != "cache-aware":
            node, _ = self.tree.insert(0, blocks, engine, now)
            while node.parent is not None:
                node.stamps[engine] = now
                node = node.parent
            return
        node, is_new = self.tree.insert(0, blocks, engine, 0)
        if is_new:
            node.stamps[engine] = self.clock
            self.clock += 1

    def first_token(self, request, engine):
        self.engines[engine].live[request][1] = 0

    def ended(self, request, engine):
        del self.engines[engine].live[request]
        del self.in_flight[request]

    def load_of(self, number):
        e = self.engines[number]
        if self.load_by == "rate":
            return sum(at >= self.now - self.window_s * SECOND and who == number for at, who in self.sends)
        if self.load == "reported":
            return {"requests": e.requests, "queued-tokens": e.queued_tokens, "kv": e.kv_used / e.kv_all}[self.load_by]
        prompts, pending = sum(v[0] for v in e.live.values()), sum(v[1] for v in e.live.values())
        return {"requests": len(e.live), "queued-tokens": pending, "kv": prompts / e.kv_all}[self.load_by]

    def _below(self, n):
        return (self.draws() >> 32) * n >> 32

    def _round_robin(self, there, prompt, session):
        which = tuple(there) if self.counter == "each-set" else ()
        self.turns[which] = self.turns.get(which, 0) + 1
        return there[(self.turns[which] - 1) % len(there)]

    def _random(self, there, prompt, session):
        return there[self._below(len(there))]

    def _least_loaded(self, there, prompt=None, session=None):
        return min(there, key=self.load_of)

    def _power_of_two(self, there, prompt, session):
        if len(there) == 1:
            return there[0]
        first = there[self._below(len(there))]
        others = [n for n in there if n != first]
        return min(first, others[self._below(len(others))], key=self.load_of)

    def _session(self, there, prompt, session):
        if session is None:
            return self._least_loaded(there)
        point = _point(str(session))
        if self.assign == "modulo":
            return there[point % len(there)]
        if self.assign.startswith("sticky"):
            if self.homes.get(session) not in there:
                load = self.load_of if self.assign == "sticky" else self._sessions_at
                self.homes[session] = min(there, key=load)
            return self.homes[session]
        return self._on_ring(there, point)

    def _sessions_at(self, number):
        """Sessions with requests in flight whose last request went there."""
        return sum(self.last_at[s] == number for s in set(self.in_flight.values()) - {None})

    def _on_ring(self, there, point):
        points = sorted(p for p, owner in self.ring.items() if owner in there)
        return self.ring[points[bisect_left(points, point) % len(points)]]

    def _prefix_hash(self, there, prompt, session):
        blocks = min(len(prompt), self.prefix_tokens) // self.bt
        if blocks == 0:
            return self._least_loaded(there)
        engine = self._on_ring(there, self.point_of_prefix(prompt, blocks))
        total = sum(self.load_of(n) for n in there)
        too_much = self.load_of(engine) > self.bound * (total + 1) / len(there)
        return self._least_loaded(there) if too_much else engine

    def _cache_aware(self, there, prompt, session):
        loads = [self.load_of(n) for n in there]
        low, high = min(loads), max(loads)
        f32 = np.float32
        uneven = high - low > self.balance_abs and f32(high) > f32(low) * f32(self.balance_rel)

        def is_enough(blocks):
            return f32(blocks * self.bt) / f32(len(prompt)) > f32(self.match_threshold)

        self._believe(prompt)
        if uneven:
            return self._least_loaded(there)
        if self.belief != "own":
            good = [n for n in there if is_enough(self.cached[n] // self.bt)]
            return min(good, key=lambda n: (-self.cached[n], self.load_of(n))) if good else self._least_loaded(there)
        node, shared, _ = self.tree.match(0, self.blocks(prompt))
        self.clock += 1
        if node.parent is None:
            return self._least_loaded(there)
        if node.creator not in node.stamps:
            assert self.any_holder, "the product decides which"
            node.creator = self.any_holder(node)
        if (self.clock - 1) % 8 == 0:
            node.stamps[node.creator] = self.clock - 1
        return node.creator if is_enough(shared) and node.creator in there else self._least_loaded(there)

    any_holder = None

    def costs(self, prompt):
        """Dynamo's cost of every engine."""
        self._believe(prompt)
        low = min(self._pending(e) for e in self.engines if e.accepts)
        return [self._cost(n, e, prompt, low) for n, e in enumerate(self.engines)]

    def _pending(self, e):
        return sum(v[1] for v in e.live.values())

    def _cost(self, number, e, prompt, low):
        bt, pending = self.bt, self._pending(e)
        credit = self.credit / (
            1 + self.credit_decay * (max(pending - low, 0) / bt) / max(math.ceil(len(prompt) / bt), 1)
        )
        prefill = max((pending + len(prompt)) / bt - credit * (self.cached[number] // bt), 0)
        paths = {tuple(v[2][: i + 1]) for v in e.live.values() for i in range(len(v[2]))}
        own = {tuple(self.blocks(prompt)[: i + 1]) for i in range(len(prompt) // bt)}
        decode = len(paths | own) + sum(v[3] for v in e.live.values())
        return self.prefill_scale * prefill + decode + self.active_weight * len(e.live)

    def _kv_aware(self, there, prompt, session):
        return self._draw_least(there, self.costs(prompt))

    def _draw_least(self, there, costs):
        """Of equal ones the last that a draw lets in."""
        best, num = None, 0
        for n in there:
            if best is None or costs[n] < costs[best]:
                best, num = n, 1
            elif costs[n] == costs[best]:
                num += 1
                if self._below(num) == 0:
                    best = n
        return best

    def _longest_prefix(self, there, prompt, session):
        self._believe(prompt)
        if max(self.cached[n] for n in there) < self.min_match_tokens:
            return self._least_loaded(there)
        return self._draw_least(there, [-cached for cached in self.cached])

    def _scorers(self, there, prompt, session):
        self._believe(prompt)
        whole = max(len(prompt) // self.bt * self.bt, 1)
        scores = [0.0] * len(self.engines)
        for n, e in enumerate(self.engines):
            prefix = min(self.cached[n] / whole, 1.0)
            scores[n] = -(self.weight_kv * (1.0 - e.kv_used / max(e.kv_all, 1)) + self.weight_prefix * prefix)
        for weight, values in (
            (self.weight_queue, [e.waiting for e in self.engines]),
            (self.weight_requests, [len(e.live) for e in self.engines]),
        ):
            low, high = min(values[n] for n in there), max(values[n] for n in there)
            for n in there:
                scores[n] -= weight * ((high - values[n]) / (high - low) if high > low else 1.0)
        return self._draw_least(there, scores)

    def _predicted_ttft(self, there, prompt, session):
        self._believe(prompt)

        def ns(n):
            e = self.engines[n]
            queued = self._pending(e) if self.load == "own" else e.queued_tokens
            return self.prefill_ns(n, queued + max(len(prompt) - self.cached[n], 1))

        return min(there, key=ns)

    _oracle = _predicted_ttft


def _point(name):
    return int(hashlib.md5(name.encode()).hexdigest(), 16) >> 65
