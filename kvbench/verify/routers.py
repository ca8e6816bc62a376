"""Recorded decisions of request routers: SGLang's, vLLM's and smg's in front of servers, and the hash ring of a stack.

A text is a prompt of one token a character, in blocks of one token. Where a router draws by chance, its choice is taken
if it is one that the rule allows; where the way a key is hashed is unknown, a key has to stay where it was first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..engine.build import share
from ..engine.settings import EngineSettings
from ..prefix.keys import block_keys
from ..routing.build import make_router
from ..routing.policies import verbs_of
from ..routing.ring import make_ring, point_of
from ..routing.router import ENDED, FIRST_TOKEN, IN_FLIGHT, NO_ENGINE, REQUESTS, SENT, SENT_LATELY
from ..routing.settings import RouterSettings
from ..scheduler.rules import CacheRules, SchedulerRules
from .blake3 import blake3_short
from .content import Asked, request_table
from .recording import Row
from .stream import Observed

_WIDEST = 1 << 21
"""Beyond every character: what stands for an empty text, which nothing else begins with."""
_NS_PER_S = 1_000_000_000


def router_parts(prompts: Sequence[Sequence[int]], sessions: Sequence[int], settings: RouterSettings, num: int) -> Any:
    """(router, sequences) for these prompts, one request each, in blocks of settings.block_tokens tokens."""
    table = request_table([Asked(prompt) for prompt in prompts])
    object.__setattr__(table, "session_id", np.array(sessions, np.int64))
    bt = settings.block_tokens
    engine = EngineSettings(SchedulerRules(), CacheRules(num_blocks=1), bt, max_model_len=1 << 30)
    return make_router(settings, table, num, block_keys(table, bt), bt), share(table, engine).seqs


class RouterStream:
    """Sends and releases, one after the other, through a policy."""

    FIXED: ClassVar[dict[str, Any]] = {}
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "relabel policy cache_threshold balance_abs_threshold balance_rel_threshold eviction_interval_secs "
        "max_tree_size workers worker_url header session_key node_names prefix_min_match_length "
        "chunk_chars".split()
    )
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("send release sleep".split())

    def __init__(self, header: Row, rows: Sequence[dict[str, Any]], settings: RouterSettings) -> None:
        """settings: what the recorded router is here."""
        self.params = header["params"]
        sends = [row for row in rows if row["op"] == "send"]
        self.number = {row["id"]: i for i, row in enumerate(sends)}
        self.num = self.params["workers"] if "workers" in self.params else 1 + max(max(r["endpoints"]) for r in sends)
        names = [row.get("key", row.get("session")) for row in sends]
        self.keys = {name: i for i, name in enumerate(dict.fromkeys(n for n in names if n is not None))}
        self.settings = settings
        prompts = [self.prompt(row) for row in sends]
        sessions = [-1 if name is None else self.keys[name] for name in names]
        self.router, self.seqs = router_parts(prompts, sessions, self.settings, self.num)
        self.verbs = verbs_of(self.settings)
        self.now = 0
        self.where: dict[int, int] = {}
        self.sent = [0] * self.num

    def prompt(self, row: dict[str, Any]) -> list[int]:
        """The tokens of a send."""
        return [ord(c) for c in row.get("text", "")] or [_WIDEST]

    def recorded(self, row: Row) -> Observed:
        return row.get("out", {})

    def step(self, row: Row) -> Observed:
        if row["op"] == "sleep":
            self.now += row["s"] * _NS_PER_S
            return {}
        if row["op"] == "release":
            self._end(self.number[row["id"]])
            return {"load": self._load()}
        return self.send(row)

    def send(self, row: Row) -> Observed:
        seq = self.number[row["id"]]
        engine = int(self.verbs.route(self.router, self.seqs, seq, self.now))
        if engine == NO_ENGINE:
            return {"worker": None, "load": self._load()}
        self.book(seq, engine)
        if not row.get("hold"):
            self._end(seq)
        return {"worker": engine, "load": self._load()}

    def book(self, seq: int, engine: int) -> None:
        """The decision is carried out."""
        self.verbs.hear(self.router, self.seqs, int(SENT), seq, engine, self.now)
        self.where[seq] = engine
        self.sent[engine] += 1

    def _end(self, seq: int) -> None:
        engine = self.where.pop(seq)
        for event in (FIRST_TOKEN, ENDED):
            self.verbs.hear(self.router, self.seqs, int(event), seq, engine, self.now)

    def _load(self) -> list[int]:
        return [int(n) for n in self.router.load[:, IN_FLIGHT]]

    def last(self) -> Observed:
        return {"summary": {"sends": len(self.number), "per_worker": self.sent}}

    def _stays(self, row: Row) -> None:
        """A key that is new goes where it went."""
        key = self.keys[row["key"]]
        if self.router.home[key] == NO_ENGINE:
            self.router.home[key] = row["out"]["worker"]


class SglangRouter(RouterStream):
    """sglang-router: the text tree, keys by BLAKE3 modulo the workers, and keys that stay where they were first."""

    ENGINE: ClassVar[str] = "sglang-router"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.3.2",)
    FIXED: ClassVar[dict[str, Any]] = {
        "policy": frozenset(["cache_aware", "consistent_hashing", "manual"]),
        "assignment_mode": "min_group",
    }
    NEVER: ClassVar[dict[str, str]] = {
        "prefix_hash": "behind plain HTTP it decides nothing but refuses every prompt, since a text has no token ids; "
        "here every prompt has tokens"
    }

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows, self._settings(header["params"]))
        for name, key in self.keys.items():
            point = int.from_bytes(blake3_short(name.encode())[:8], "little")
            self.router.session_point[key] = point % self.num

    @staticmethod
    def _settings(p: dict[str, Any]) -> RouterSettings:
        if p["policy"] == "consistent_hashing":
            return RouterSettings(policy="session", assign="modulo", block_tokens=1)
        if p["policy"] == "manual":
            return RouterSettings(policy="session", assign="sticky-fewest", block_tokens=1)
        return RouterSettings(
            policy="cache-aware",
            block_tokens=1,
            match_threshold=p["cache_threshold"],
            balance_abs=p["balance_abs_threshold"],
            balance_rel=p["balance_rel_threshold"],
            evict_interval_s=p["eviction_interval_secs"],
            tree_tokens=p["max_tree_size"],
        )

    def send(self, row: Row) -> Observed:
        if self.params["policy"] == "manual":
            seated = self.router.seated.tolist()
            if seated[row["out"]["worker"]] == min(seated):  # of equal ones it draws
                self._stays(row)
        return super().send(row)


class VllmRouter(RouterStream):
    """vllm-router: whatever its policy is called, the recorded streams go by load alone; keys by an unknown ring."""

    ENGINE: ClassVar[str] = "vllm-router"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.1.17",)

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        by_key = RouterSettings(policy="session", assign="sticky", block_tokens=1)
        by_load = RouterSettings(policy="least-loaded", block_tokens=1)
        super().__init__(header, rows, by_key if header["params"]["policy"] == "consistent_hash" else by_load)

    def send(self, row: Row) -> Observed:
        if self.settings.policy == "session":
            self._stays(row)
        return super().send(row)


class SmgRouter(RouterStream):
    """smg: keys by a ring whose hash is unknown."""

    ENGINE: ClassVar[str] = "smg"
    VERSIONS: ClassVar[tuple[str, ...]] = ("1.13.0",)
    FIXED: ClassVar[dict[str, Any]] = {"policy": "consistent_hashing"}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows, RouterSettings(policy="session", assign="sticky", block_tokens=1))

    def send(self, row: Row) -> Observed:
        self._stays(row)
        return super().send(row)


class StackRouter(RouterStream):
    """vLLM's production stack: turns, sessions on a ring, or the longest prefix; else the fewest requests per second,
    unseen engines first. And how it counts those.

    A prompt is cut into chunks of some characters; what is left over is a chunk of its own, and counts as a whole one.
    """

    ENGINE: ClassVar[str] = "vllm production-stack"
    VERSIONS: ClassVar[tuple[str, ...]] = ("main a6c01db0 (2026-08-05)",)
    PARAMS: ClassVar[frozenset[str]] = RouterStream.PARAMS | {"window_s"}
    FIXED: ClassVar[dict[str, Any]] = {"policy": frozenset(["session", "prefixaware", "roundrobin", "qps"])}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("send update tick".split())
    _NO_STATISTICS = -2

    def prompt(self, row: dict[str, Any]) -> list[int]:
        if "family" not in row:
            return super().prompt(row)
        text = self.families[row["family"]][: row["cut"]] + row["ext"]
        return [ord(c) for c in text] + [_WIDEST] * (-len(text) % self.chunk)

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.families, p = header.get("families", []), header["params"]
        self.chunk = p.get("chunk_chars", 1)
        updates = [row for row in rows if row["op"] == "update"]
        sends = [{**row, "op": "send", "id": i, "endpoints": [0]} for i, row in enumerate(updates)]
        super().__init__(header, sends or rows, self._settings(p))
        self.ops, self.updates = len(rows), 0
        if p["policy"] != "session":
            return
        for name, key in self.keys.items():
            self.router.session_point[key] = point_of(name)
        names = [self.params["node_names"].replace("<i>", str(i)) for i in range(self.num)]
        self.router.ring_point[:], self.router.ring_engine[:] = make_ring(names, self.settings.ring_points)

    def _settings(self, p: dict[str, Any]) -> RouterSettings:
        if p["policy"] == "session":
            return RouterSettings(policy="session", assign="ring", load="reported", block_tokens=1)
        if p["policy"] == "roundrobin":
            return RouterSettings(policy="round-robin", counter="each-set", block_tokens=1)
        if p["policy"] == "qps":
            return RouterSettings(policy="least-loaded", load_by="rate", window_s=p["window_s"], block_tokens=1)
        least = p["prefix_min_match_length"]
        return RouterSettings("longest-prefix", load="reported", block_tokens=self.chunk, min_match_tokens=least)

    def step(self, row: Row) -> Observed:
        if row["op"] == "send":
            return self.send(row)
        self.now = round(row["t"] * _NS_PER_S)
        self.verbs.route(self.router, self.seqs, 0, self.now)  # whoever is about to decide counts anew
        if row["op"] == "update":
            self.book(self.updates, 0)
            self.updates += 1
        sent = int(self.router.load[0, SENT_LATELY])
        return {"sum": sent, "qps": sent / self.params["window_s"]}

    def send(self, row: Row) -> Observed:
        qps = row.get("qps") or {}
        for engine in range(self.num):
            self.router.accepts[engine] = engine in row["endpoints"]
            self.router.load[engine, REQUESTS] = round(1000 * qps.get(str(engine), self._NO_STATISTICS))
        return self._by_prefix(row) if "family" in row else {"worker": super().send(row)["worker"]}

    def _by_prefix(self, row: Row) -> Observed:
        seq, router = self.number[row["id"]], self.router
        chosen = int(self.verbs.route(router, self.seqs, seq, self.now))
        cached = [int(router.cached[engine]) for engine in row["endpoints"]]
        by_load = max(cached) < self.settings.min_match_tokens
        like = [e for e, n in zip(row["endpoints"], cached, strict=True) if n == max(cached)]
        candidates = [chosen] if by_load else like
        recorded = row["out"]["worker"]
        worker = recorded if recorded in candidates and chosen in candidates else chosen
        self.book(seq, worker)
        self._end(seq)
        return {"match_length": max(cached), "candidates": like, "by_qps": by_load, "worker": worker}

    def last(self) -> Observed:
        return {"summary": {"ops": self.ops}}
