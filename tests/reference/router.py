"""Routing policies in plain Python: one object that decides and hears, on sets, dicts and prompts as tuples."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, field

from .splitmix import SplitMix


@dataclass
class Engine:
    """What a router can know of one engine. live: id -> (prompt tokens, tokens still pending)."""

    accepts: bool = True
    live: dict = field(default_factory=dict)
    requests: int = 0
    queued_tokens: int = 0
    kv_used: int = 0
    kv_all: int = 1


class ReferenceRouter:
    """One policy by name; options as the keys of `[router]`."""

    def __init__(self, policy, num_engines, seed=0, load="own", load_by="requests", assign="ring", ring_points=160):
        self.policy, self.load, self.load_by, self.assign = policy, load, load_by, assign
        self.engines = [Engine() for _ in range(num_engines)]
        self.draws = SplitMix(seed)
        self.turn = 0
        self.homes = {}
        self.ring = {}
        for number in range(num_engines):
            for i in range(ring_points):
                name = f"engine-{number}-{i // 4}"
                self.ring[_point(name, i % 4)] = number

    def choose(self, session=None):
        """The engine of a request, or None."""
        there = [n for n, e in enumerate(self.engines) if e.accepts]
        if not there:
            return None
        return getattr(self, "_" + self.policy.replace("-", "_"))(there, session)

    def sent(self, request, engine, prompt_tokens, predicted=0):
        self.engines[engine].live[request] = [prompt_tokens, prompt_tokens - predicted]

    def first_token(self, request, engine):
        self.engines[engine].live[request][1] = 0

    def ended(self, request, engine):
        del self.engines[engine].live[request]

    def load_of(self, number):
        e = self.engines[number]
        if self.load == "reported":
            return {"requests": e.requests, "queued-tokens": e.queued_tokens, "kv": e.kv_used / e.kv_all}[self.load_by]
        prompts, pending = sum(p for p, _ in e.live.values()), sum(p for _, p in e.live.values())
        return {"requests": len(e.live), "queued-tokens": pending, "kv": prompts / e.kv_all}[self.load_by]

    def _below(self, n):
        return (self.draws() >> 32) * n >> 32

    def _round_robin(self, there, session):
        self.turn += 1
        return there[(self.turn - 1) % len(there)]

    def _random(self, there, session):
        return there[self._below(len(there))]

    def _least_loaded(self, there, session):
        return min(there, key=self.load_of)

    def _power_of_two(self, there, session):
        if len(there) == 1:
            return there[0]
        first = there[self._below(len(there))]
        others = [n for n in there if n != first]
        return min(first, others[self._below(len(others))], key=self.load_of)

    def _session(self, there, session):
        if session is None:
            return self._least_loaded(there, session)
        point = _point(str(session))
        if self.assign == "modulo":
            return there[point % len(there)]
        if self.assign == "sticky":
            if self.homes.get(session) not in there:
                self.homes[session] = self._least_loaded(there, session)
            return self.homes[session]
        points = sorted(p for p, owner in self.ring.items() if owner in there)
        return self.ring[points[bisect_left(points, point) % len(points)]]


def _point(name, which=0):
    return int.from_bytes(hashlib.md5(name.encode()).digest()[4 * which :][:4], "little")
