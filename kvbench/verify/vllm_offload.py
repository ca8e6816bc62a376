"""Recordings of vLLM's manager of offloaded blocks: a tier's pool under the manager's rules of rank.

ARC is the tier's own policy; here is only when it is told of what. Under LRU, where a copy stands in the order of
eviction is a pair (number, -position): one counter gives numbers, a request draws its own with the first key that is
new to it, and a later block of a prompt leaves before an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..prefix.node import ACCESS
from ..tiers import probe
from ..tiers.arc import T1, T2
from ..tiers.copies import ARC, CONFIRMED, COPYING, NO_SLOT, make_host, policy_of
from .recording import Row
from .stream import Observed, follow

_POSITIONS = 1 << 20


@dataclass
class Request:
    """keys: in order. number: its own, 0 = not drawn. seen: keys that it has been shown, in order of sight.

    inserted, reused   of these, what it stored, and what it used without having stored it; learnt: told to ARC
    """

    keys: list[int]
    positions: dict[int, int]
    number: int = 0
    seen: dict[int, None] = field(default_factory=dict)
    inserted: set[int] = field(default_factory=set)
    reused: set[int] = field(default_factory=set)
    learnt: set[int] = field(default_factory=set)


class VllmOffload:
    """A key is a content; chunk ids are given here, in the manager's order."""

    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.33.0",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "policy num_chunks store_threshold max_tracker_size positions num_docs doc_len n_ops dump_every".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset(
        "new lookup prepare_load complete_load prepare_store complete_store touch finish".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        self._open(p["num_chunks"], p["policy"], p["store_threshold"], p["max_tracker_size"])

    @classmethod
    def of(cls, chunks: int, policy: str, threshold: int, most_tracked: int) -> VllmOffload:
        """Empty, of so many chunks. threshold: offers from which one is stored, counted for so many keys."""
        manager = cls.__new__(cls)
        manager._open(chunks, policy, threshold, most_tracked)
        return manager

    def _open(self, chunks: int, policy: str, threshold: int, most_tracked: int) -> None:
        self.threshold, self.most_tracked = threshold, most_tracked
        self.chunks = chunks
        self.tier = make_host(chunks, policy if policy == ARC else policy_of(policy), False, 1)
        self.requests: dict[str, Request] = {}
        self.numbers = 0
        self.tracker: dict[int, int] = {}
        self.chunk_of: dict[int, int] = {}
        self.fresh, self.freed = 0, list[int]()
        self.events: list[Any] = []

    def step(self, row: Row) -> Observed:
        self.events = []
        got: Observed = getattr(self, f"_{row['op']}")(row)
        if "events" in row["out"]:
            got["events"] = self.events
        if "dump" in row["out"]:
            got["dump"] = self._dump()
        return got | {"state": self.state()}

    def last(self) -> Observed:
        return {"summary": {"state": self.state(), "dump": self._dump()}}

    # ---------------------------------------------------------------- what is to be seen

    def state_of(self, key: int) -> int:
        """ABSENT, COPYING or CONFIRMED."""
        return int(self.tier.state[self._slot(key)])

    def _slot(self, key: int) -> int:
        return int(probe.slot_of(self.tier, key))

    def _kept(self) -> list[int]:
        return [slot for slot in range(1, self.chunks + 1) if self.tier.content[slot]]

    def state(self) -> Observed:
        holds, state = self.tier.holds, self.tier.state
        idle = sum(1 for s in self._kept() if holds[s] == 0)
        writing = sum(1 for s in self._kept() if state[s] == COPYING)
        return {"free": int(self.tier.num_free), "evictable": idle, "writing": writing}

    def _dump(self) -> Observed:
        if self.tier.arc.is_on:
            return self._dump_arc()
        nodes = self.tier.order.nodes
        slots = sorted(self._kept(), key=lambda s: int(nodes[s, ACCESS]))
        return {"lru_order": [self._entry(s) for s in slots]}

    def _entry(self, slot: int) -> list[int]:
        key, refs = int(self.tier.content[slot]), int(self.tier.holds[slot])
        return [key, self.chunk_of[key], -1 if self.tier.state[slot] == COPYING else refs]

    def _dump_arc(self) -> Observed:
        arc, rows = self.tier.arc, dict[str, Any]()
        for name, which in (("t1", T1), ("t2", T2)):
            head = self.chunks + int(which)
            rows[name] = [self._entry(slot) for slot in follow(int(arc.after[head]), arc.after, head)]
        for name, ghosts in (("b1", arc.b1), ("b2", arc.b2)):
            places = [(ghosts.head + i) % ghosts.name.size for i in range(ghosts.count)]
            rows[name] = [int(ghosts.name[place]) for place in places if ghosts.name[place]]
        return rows | {"target_t1": arc.target}

    # ---------------------------------------------------------------- ranks

    def _fresh(self) -> int:
        self.numbers += 1
        return self.numbers

    def _rank(self, key: int, number: int, position: int = 0) -> None:
        probe.rank(self.tier, self._slot(key), number * _POSITIONS - position)

    def _see(self, r: Request, keys: Sequence[int]) -> None:
        for key in keys:
            if key in r.seen:
                continue
            r.seen[key] = None
            if self.tier.arc.is_on:
                continue
            r.number = r.number or self._fresh()
            if self._slot(key) != NO_SLOT and key in r.positions:
                old = int(self.tier.order.nodes[self._slot(key), ACCESS])
                new = r.number * _POSITIONS - r.positions[key]
                probe.rank(self.tier, self._slot(key), max(old, new))

    def _use(self, keys: Sequence[int]) -> None:
        for key in reversed(keys):
            if self.tier.arc.is_on:
                probe.touch(self.tier, key)
            elif self._slot(key) != NO_SLOT:
                self._rank(key, self._fresh())

    # ---------------------------------------------------------------- operations

    def _new(self, row: Row) -> Observed:
        places = {key: 16 * (i + 1) for i, key in enumerate(row["keys"])} if row["positions"] else {}
        self.requests[row["req"]] = Request(row["keys"], places)
        return {}

    def _lookup(self, row: Row) -> Observed:
        hits, last = 0, None
        for key in self.requests[row["req"]].keys:
            slot = self._slot(key)
            last = "MISS" if slot == NO_SLOT else "HIT" if self.tier.state[slot] == CONFIRMED else "HIT_PENDING"
            if last != "HIT":
                break
            hits += 1
        return {"hits": hits, "last": last}

    def _prepare_load(self, row: Row) -> Observed:
        r = self.requests[row["req"]]
        return {"chunks": self.prepare_load(r, r.keys[: row["n"]])}

    def prepare_load(self, r: Request, keys: Sequence[int]) -> list[int]:
        """Chunks that a request reads from now on."""
        self._see(r, keys)
        r.reused |= {key for key in keys if key not in r.inserted}
        for key in keys:
            probe.hold(self.tier, self._slot(key))
        return [self.chunk_of[key] for key in keys]

    def _complete_load(self, row: Row) -> Observed:
        self.complete_load(self.requests[row["req"]].keys[: row["n"]])
        return {}

    def complete_load(self, keys: Sequence[int]) -> None:
        """They are read."""
        for key in keys:
            probe.let_go(self.tier, self._slot(key))

    def _count(self, offer: Sequence[int]) -> None:
        for key in [k for k in offer if k in self.tracker]:
            self.tracker[key] = self.tracker.pop(key) + 1
        for key in [k for k in offer if k not in self.tracker]:
            if len(self.tracker) >= self.most_tracked:
                oldest = next((k for k in self.tracker if k not in offer), None)
                if oldest is None:
                    continue
                del self.tracker[oldest]
            self.tracker[key] = 1

    def _prepare_store(self, row: Row) -> Observed:
        r = self.requests[row["req"]]
        return self.prepare_store(r, r.keys[row["range"][0] : row["range"][1]])

    def prepare_store(self, r: Request, offer: Sequence[int]) -> Observed:
        """A request offers chunks. Returns which are to be written, where, and who left for them."""
        if self.threshold >= 2:
            self._count(offer)
        wanted = [k for k in offer if self._slot(k) == NO_SLOT]
        if self.threshold >= 2:
            wanted = [k for k in wanted if self.tracker.get(k, 0) >= self.threshold]
        ready = [k for k in offer if self._slot(k) != NO_SLOT and self.tier.state[self._slot(k)] == CONFIRMED]
        for key in [k for k in reversed(wanted) if self.tier.arc.is_on and k not in r.learnt]:
            probe.learn(self.tier, key)
            r.learnt.add(key)
        self._see(r, [k for k in offer if k in wanted or k in ready])
        r.reused |= {key for key in ready if key not in r.inserted}
        if not wanted:
            return {"ok": True, "store": [], "chunks": [], "evicted": []}
        kept = [self._slot(k) for k in offer if self._slot(k) != NO_SLOT]
        for slot in kept:
            probe.hold(self.tier, slot)
        short = len(wanted) - int(self.tier.num_free)
        evicted = self._evict(short) if short <= self.state()["evictable"] else None
        for slot in kept:
            probe.let_go(self.tier, slot)
        if evicted is None:
            return {"ok": False}
        for key in wanted:
            probe.reserve(self.tier, key)
            r.inserted.add(key)
            if not self.tier.arc.is_on:
                position = r.positions.get(key)
                self._rank(key, self._fresh() if position is None else r.number, position or 0)
            self.chunk_of[key] = self._next_chunk()
        self.events += [["removed", evicted]] if evicted else []
        return {"ok": True, "store": wanted, "chunks": [self.chunk_of[k] for k in wanted], "evicted": evicted}

    def _next_chunk(self) -> int:
        if self.fresh < self.chunks:
            self.fresh += 1
            return self.fresh - 1
        return self.freed.pop()

    def _evict(self, count: int) -> list[int]:
        gone = []
        for _ in range(count):
            before = {int(c) for c in self.tier.content if c}
            probe.evict(self.tier)
            (key,) = before - {int(c) for c in self.tier.content if c}
            self.freed.append(self.chunk_of.pop(key))
            gone.append(key)
        return gone

    def _complete_store(self, row: Row) -> Observed:
        self.complete_store(row["keys"], row["success"])
        return {}

    def complete_store(self, keys: Sequence[int], success: bool) -> None:
        """They are written, or never will be."""
        for key in keys:
            probe.end_writing(self.tier, self._slot(key), success)
            if not success:
                self.freed.append(self.chunk_of.pop(key))
        if keys:
            self.events.append(["stored" if success else "removed", keys])

    def _touch(self, row: Row) -> Observed:
        self._use(self.requests[row["req"]].keys[: row["n"]])
        return {}

    def _finish(self, row: Row) -> Observed:
        self.finish(self.requests.pop(row["req"]))
        return {}

    def finish(self, r: Request) -> None:
        """A request is over: what it was shown was of use."""
        seen = list(r.seen)
        if all(key in r.positions for key in seen):
            seen.sort(key=lambda key: r.positions[key])
        if self.tier.arc.is_on:
            self._finish_arc(r, seen)
        else:
            self._use(seen)

    def _finish_arc(self, r: Request, seen: Sequence[int]) -> None:
        for key in reversed(seen):
            slot = self._slot(key)
            if slot == NO_SLOT:
                continue
            if key in r.reused:
                probe.to_end(self.tier, slot, T2)
            elif key in r.inserted:
                probe.to_end(self.tier, slot, int(self.tier.arc.member[slot]))
