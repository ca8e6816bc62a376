"""Pools of copies, and the links to them, in plain Python: the oracle, not the product.

    Copies   a pool: who is found, who is held, who leaves first
    Link     one transfer after the other
    Shared   transfers that share a link: each of n has an nth of it

A copy is named by whatever names its prefix.
"""

import math
from bisect import insort
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    setup_ns: float
    fragment_ns: float
    ns_per_byte: float

    def work(self, num_bytes, fragments):
        return math.floor(self.setup_ns + fragments * self.fragment_ns + num_bytes * self.ns_per_byte + 0.5)


@dataclass(frozen=True)
class TierConfig:
    """write: through, back. min_offers: from which a block is copied. stop: best_effort, wait_complete, timeout."""

    host_blocks: int
    policy: str
    closed: bool
    write: str
    min_offers: int
    outputs: bool
    layerwise: bool
    min_load_tokens: int
    layers: int
    block_bytes: int
    block_fragments: int
    slowdown: float
    fair: bool
    half_duplex: bool
    down: Rate
    up: Rate
    store_blocks: int = 0
    store_policy: str = "lru"
    store_block_bytes: int = 0
    batch_blocks: int = 1
    min_prefetch_tokens: int = 0
    stop: str = "best_effort"
    timeout_ns: int = 0
    timeout_token_ns: float = 0.0
    store_down: Rate | None = None
    store_up: Rate | None = None


# -- pools -------------------------------------------------------------------------------------------------------


@dataclass
class Copy:
    name: int
    parent: "Copy | None"
    created: int
    used: int
    uses: int = 1
    holds: int = 1  # operations that read or write it
    children: int = 0
    is_there: bool = False
    passed: bool = False  # lru: its turn came while it could not leave


ORDER = {
    "lru": lambda copy: (copy.used, copy.used),
    "mru": lambda copy: (-copy.used, copy.used),
    "fifo": lambda copy: (copy.created, copy.used),
    "filo": lambda copy: (-copy.created, copy.used),
    "lfu": lambda copy: (copy.uses, copy.used),
}


def pool_of(capacity, policy, closed):
    return ArcCopies(capacity, closed) if policy == "arc" else Copies(capacity, policy, closed)


class Copies:
    """Under lru, a copy whose turn has come while it was held or a parent is the next to leave when it can."""

    def __init__(self, capacity, policy, closed):
        self.capacity, self.closed, self.order, self.is_lru = capacity, closed, ORDER[policy], policy == "lru"
        self.of = {}
        self.clock = self.written = self.evicted = self.oldest = 0

    def find(self, chain, start, stop):
        """Where what is there of chain[start:stop] ends, without a gap."""
        while start < stop and chain[start] in self.of and self.of[chain[start]].is_there:
            start += 1
        return start

    def touch(self, names):
        self.count(names)
        self.stamp(names)

    def count(self, names):
        for name in names:
            if name in self.of:
                self.of[name].uses += 1

    def stamp(self, names):
        """They become the youngest, the first of them last: tails leave before heads."""
        for name in reversed(names):
            if name in self.of:
                self.clock += 1
                self.of[name].used = self.clock
                self.of[name].passed = False

    def is_wanted(self, name):
        return name not in self.of or (not self.of[name].is_there and not self.of[name].holds)

    def has_parent(self, chain, i):
        return not self.closed or i == 0 or chain[i - 1] in self.of

    def reserve(self, name, parent=None):
        """False: nobody can leave for it."""
        if len(self.of) == self.capacity and not self._evict():
            return False
        self.clock += 1
        above = self.of.get(parent) if self.closed else None
        if above:
            above.children += 1
        self.of[name] = Copy(name, above, self.clock, self.clock)
        self.written += 1
        return True

    def _evict(self):
        idle = [copy for copy in self.of.values() if not copy.holds and not copy.children]
        gone = min(idle, key=self.order, default=None)
        for copy in self.of.values() if self.is_lru else ():
            copy.passed |= gone is None or copy.used < gone.used
        if gone is None:
            return False
        if gone.parent:
            gone.parent.children -= 1
            self._may_leave(gone.parent)
        del self.of[gone.name]
        self.evicted += 1
        return True

    def _may_leave(self, copy):
        if copy.passed and not copy.holds and not copy.children:
            self.oldest -= 1
            copy.used, copy.passed = self.oldest, False

    def hold(self, names):
        for name in names:
            self.of[name].holds += 1

    def let_go(self, names):
        for name in reversed(names):
            self.of[name].holds -= 1
            self._may_leave(self.of[name])

    def confirm(self, names):
        for name in names:
            self.of[name].is_there = True
        self.let_go(names)


class ArcCopies(Copies):
    """Seen once (t1), seen again (t2), names of what left them (b1, b2), oldest first. Who is held keeps its place."""

    def __init__(self, capacity, closed):
        super().__init__(capacity, "lru", closed)
        self.t1, self.t2, self.b1, self.b2, self.target = [], [], [], [], 0.0

    def touch(self, names):
        for name in reversed(names):
            if name not in self.of:
                self._learn(name)
            elif self.of[name].is_there or name in self.t2:
                self._move(name, self.t2)
            else:
                self._move(name, self.t1)

    def count(self, names):
        pass

    def stamp(self, names):
        pass

    def _move(self, name, to):
        for names in (self.t1, self.t2):
            if name in names:
                names.remove(name)
        to.append(name)

    def _learn(self, name):
        once, again = len(self.b1), len(self.b2)
        if name in self.b1:
            self.target = min(float(self.capacity), self.target + max(1.0, again / once))
            self.b1.append(self.b1.pop(self.b1.index(name)))
        elif name in self.b2:
            self.target = max(0.0, self.target - max(1.0, once / again))
            self.b2.append(self.b2.pop(self.b2.index(name)))

    def reserve(self, name, parent=None):
        if not super().reserve(name, parent):
            return False
        self.b1, self.b2 = ([n for n in ghosts if n != name] for ghosts in (self.b1, self.b2))
        self.t1.append(name)
        return True

    def _evict(self):
        lists = [(self.t1, self.b1), (self.t2, self.b2)]
        for names, ghosts in lists if len(self.t1) >= int(self.target) else reversed(lists):
            for name in names:
                copy = self.of[name]
                if copy.holds or copy.children:
                    continue
                names.remove(name)
                ghosts.append(name)
                del ghosts[: -self.capacity]
                if copy.parent:
                    copy.parent.children -= 1
                del self.of[name]
                self.evicted += 1
                return True
        return False

    def _may_leave(self, copy):
        pass


@dataclass(eq=False)
class Move:
    land: object
    end: int = 0  # ns; of a shared link: virtual time


class Link:
    """First in, first out. now: ns."""

    def __init__(self):
        self.queue = []

    def begin(self, move, now, work):
        """Returns when it will have ended if nothing else comes."""
        move.end = max(self.queue[-1].end if self.queue else now, now) + work
        self.queue.append(move)
        return move.end

    def next_end(self):
        return self.queue[0].end if self.queue else math.inf

    def pop(self):
        return self.queue.pop(0)


class Timer(Link):
    """No link: each takes its own time."""

    def begin(self, move, now, work):
        move.end = now + work
        insort(self.queue, move, key=lambda m: m.end)
        return move.end


class Shared(Link):
    """Each of n has an nth of it: virtual time, in 4096ths of a ns, goes by at an nth of the speed of real time."""

    UNITS = 4096

    def __init__(self):
        super().__init__()
        self.virtual = self.since = 0

    def begin(self, move, now, work):
        if self.queue:
            self.virtual += (now - self.since) * self.UNITS // len(self.queue)
        self.since = now
        move.end = self.virtual + work * self.UNITS
        insort(self.queue, move, key=lambda m: m.end)
        end, at = self.since, self.virtual
        for i, other in enumerate(self.queue):
            end += -(-max(other.end - at, 0) * (len(self.queue) - i) // self.UNITS)
            at = other.end
            if other is move:
                return end
        raise AssertionError

    def next_end(self):
        if not self.queue:
            return math.inf
        left = max(self.queue[0].end - self.virtual, 0) * len(self.queue)
        return self.since - (-left // self.UNITS)

    def pop(self):
        self.since, self.virtual = self.next_end(), max(self.virtual, self.queue[0].end)
        return self.queue.pop(0)
