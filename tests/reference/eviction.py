"""Eviction policies in plain Python, by the books: lists that are scanned, no heap, nothing shared with the product.

Lives here: each policy as a class, a radix tree and a block pool that ask one who leaves. An entry is a node of the
tree or a visible block; candidates are those that may leave now. Ticks are those of the product (one for each stamp),
so that victims can be compared one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .block_hash import NO_CHAIN, BlockPool
from .radix import Node, RadixTree

MASK = (1 << 64) - 1


class Clock:
    """Counts its readings."""

    def __init__(self):
        self.now = 0

    def __next__(self):
        self.now += 1
        return self.now


# ---------------------------------------------------------------- policies
# arrived, used: as the cache tells. offered: it becomes a candidate, or is used while it is one. split: a node is now
# two. gone: it left unasked. choose: who leaves; the entry is forgotten by this.


class Policy:
    def __init__(self, capacity, seed=0):
        self.capacity, self.seed = capacity, seed

    def arrived(self, entry, now): ...
    def used(self, entry, now): ...
    def offered(self, entry): ...
    def split(self, upper, lower): ...
    def gone(self, entry): ...


class LeastUses(Policy):
    """lfu: hits as the cache counts them."""

    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.hit_count, e.last_access))


class Oldest(Policy):
    def choose(self, candidates, now):
        return min(candidates, key=lambda e: e.created)


class Newest(Policy):
    def choose(self, candidates, now):
        return max(candidates, key=lambda e: e.created)


class LastUsed(Policy):
    def choose(self, candidates, now):
        return max(candidates, key=lambda e: e.last_access)


class LeastUrgent(Policy):
    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.priority, e.last_access))


class UsedOnceFirst(Policy):
    """slru"""

    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.hit_count >= 2, e.last_access))


class LruK(Policy):
    def arrived(self, entry, now):
        entry.uses = [now]

    def used(self, entry, now):
        entry.uses.append(now)

    def split(self, upper, lower):
        upper.uses = list(lower.uses)

    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.uses[-2] if len(e.uses) > 1 else 0, e.last_access))


class TailLru(Policy):
    """tlru. tail: blocks at the end of a conversation that may go first."""

    tail = 3

    def arrived(self, entry, now):
        end = entry.depth() + entry.size()
        node = entry
        while node is not None:
            node.longest = max(getattr(node, "longest", 0), end)
            node = getattr(node, "parent", None)

    def split(self, upper, lower):
        upper.longest = lower.longest

    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.depth() + self.tail < e.longest, e.last_access))


class CostAware(Policy):
    """block_ns: what the i-th block of a prompt costs."""

    block_ns: tuple[int, ...] = ()

    def __init__(self, capacity, seed=0):
        super().__init__(capacity, seed)
        self.age = 0

    def _cost(self, entry):
        return sum(self.block_ns[entry.depth() : entry.depth() + entry.size()])

    def arrived(self, entry, now):
        entry.count = 0
        self.used(entry, now)

    def used(self, entry, now):
        entry.count += 1
        entry.worth = self.age + entry.count * self._cost(entry) // entry.size()

    def split(self, upper, lower):
        upper.count, upper.worth = lower.count, lower.worth

    def choose(self, candidates, now):
        victim = min(candidates, key=lambda e: (e.worth, e.last_access))
        self.age = victim.worth
        return victim


class Gdsf(CostAware):
    """Every node costs a million to bring back, whatever its size."""

    def _cost(self, entry):
        return 1_000_000


class Random(Policy):
    def __init__(self, capacity, seed=0):
        super().__init__(capacity, seed)
        self.ended = 0

    def offered(self, entry):
        entry.end = self.ended + exponential(self.seed, entry.last_access)

    def choose(self, candidates, now):
        victim = min(candidates, key=lambda e: (e.end, e.last_access))
        self.ended = victim.end
        return victim


def draws(seed, number):
    """splitmix64, upper halves."""
    state = ((seed << 40) ^ number) & MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        x = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        yield (x ^ (x >> 31)) >> 32


def exponential(seed, number):
    source, whole = draws(seed, number), 0
    while True:
        run = [next(source), next(source)]
        while run[-1] < run[-2]:
            run.append(next(source))
        if len(run) % 2 == 0:  # the last one fell out of the run
            return (whole << 32) + run[0]
        whole += 1


class Sieve(Policy):
    """The hand is the age (creation) it stands at; `moved` the tick of its last move."""

    def __init__(self, capacity, seed=0):
        super().__init__(capacity, seed)
        self.hand = self.moved = 0

    def arrived(self, entry, now):
        entry.visited = False

    def used(self, entry, now):
        entry.visited = True

    def split(self, upper, lower):
        upper.visited = lower.visited

    def choose(self, candidates, now):
        queue = sorted(candidates, key=lambda e: e.created)
        if not any(self.hand < e.created <= self.moved for e in queue):
            self.hand = 0
        self.moved = now
        while True:
            ahead = [e for e in queue if e.created > self.hand]
            if not ahead:
                self.hand = 0
                continue
            self.hand = ahead[0].created
            if not ahead[0].visited:
                return ahead[0]
            ahead[0].visited = False


class S3Fifo(Policy):
    def __init__(self, capacity, seed=0):
        super().__init__(capacity, seed)
        self.small, self.main = [], []
        self.ghost = []  # (name, blocks), oldest first
        self.recalled = self.forgotten = 0

    def arrived(self, entry, now):
        entry.uses = 0
        remembered = [g for g in self.ghost if g[0] == entry.name()]
        if remembered:
            self.recalled += 1
            self.ghost.remove(remembered[0])
        (self.main if remembered else self.small).append(entry)

    def used(self, entry, now):
        entry.uses = min(entry.uses + 1, 3)

    def split(self, upper, lower):
        upper.uses = lower.uses
        queue = self.small if lower in self.small else self.main
        queue.insert(queue.index(lower), upper)

    def gone(self, entry):
        (self.small if entry in self.small else self.main).remove(entry)

    def choose(self, candidates, now):
        while True:
            small = [e for e in self.small if e in candidates]
            main = [e for e in self.main if e in candidates]
            small_is_full = 10 * sum(e.size() for e in self.small) >= self.capacity
            if small and (small_is_full or not main):
                entry = small[0]
                self.small.remove(entry)
                if entry.uses < 2:
                    self._remember(entry)
                    return entry
            else:
                entry = main[0]
                self.main.remove(entry)
                if entry.uses == 0:
                    return entry
                entry.uses -= 1
            self.main.append(entry)

    def _remember(self, entry):
        limit = self.capacity * 9 // 10
        self.ghost = [g for g in self.ghost if g[0] != entry.name()]
        if entry.size() > limit:
            return
        self.ghost.append((entry.name(), entry.size()))
        while sum(size for _, size in self.ghost) > limit:
            self.forgotten += 1
            del self.ghost[0]


OWN = {
    "s3fifo": S3Fifo,
    "sieve": Sieve,
    "lru-k": LruK,
    "cost-aware": CostAware,
    "gdsf": Gdsf,
    "random": Random,
    "tlru": TailLru,
}
"""More than a stamp: on a tree the others are those of reference.radix."""

STAMPS = {
    "lfu": LeastUses,
    "fifo": Oldest,
    "mru": LastUsed,
    "filo": Newest,
    "priority": LeastUrgent,
    "slru": UsedOnceFirst,
}


# ---------------------------------------------------------------- a tree


class TreeEntry(Node):
    """A node that policies may write on."""

    def size(self):
        return len(self.keys)

    def name(self):
        """The prefix through its first block."""
        above, node = [], self.parent
        while node is not None:
            above = node.keys + above
            node = node.parent
        return (self.namespace, *above, self.keys[0])


class PolicyTree(RadixTree):
    """One stamp for a new node, where SGLang takes two: only their order matters."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self._clock = Clock()

    def _new_node(self, keys, values, namespace, parent, priority):
        now = next(self._clock)
        return TreeEntry(keys, values, namespace, parent, priority, now, now)

    def _offer_since(self, tick):
        for node in self._unlocked_leaves():
            if node.last_access > tick:
                self.policy.offered(node)

    def match_and_split(self, keys, namespace=None):
        tick = self._clock.now
        if not keys:
            next(self._clock)
        match = super().match_and_split(keys, namespace)
        self._offer_since(tick)
        return match

    def insert(self, keys, values, namespace=None, priority=0, chunked=False):
        tick = self._clock.now
        present = super().insert(keys, values, namespace, priority, chunked)
        self._offer_since(tick)
        return present

    def hit(self, node):
        """A request that is admitted uses a path."""
        while node is not self.root:
            self.policy.used(node, self._clock.now)
            node = node.parent

    def unlock(self, node):
        freed = super().unlock(node)
        if node in self._unlocked_leaves():
            self.policy.offered(node)
        return freed

    def _add_leaf(self, parent, keys, values, namespace, priority, chunked):
        super()._add_leaf(parent, keys, values, namespace, priority, chunked)
        self.policy.arrived(parent.children[(namespace, keys[0])], self._clock.now)

    def _split(self, lower, num_upper):
        upper = super()._split(lower, num_upper)
        self.policy.split(upper, lower)
        return upper

    def evict(self, num_blocks):
        evicted, done = [], 0
        while done < num_blocks and (candidates := list(self._unlocked_leaves())):
            leaf = self.policy.choose(candidates, self._clock.now)
            self._remove_leaf(leaf)
            evicted.append(leaf.values)
            done += len(leaf.values)
            parent = leaf.parent
            if parent is not self.root and not parent.children and parent.lock_ref == 0:
                self.policy.offered(parent)
        return evicted


# ---------------------------------------------------------------- block hash


@dataclass(eq=False)
class BlockEntry:
    """A visible block; as a node it is one block long."""

    block: int
    chain: int
    index: int
    priority: int
    created: int
    last_access: int
    hit_count: int = 1

    def size(self):
        return 1

    def depth(self):
        return self.index

    def name(self):
        return self.chain


class PolicyPool(BlockPool):
    """Invisible free blocks go first; visible ones in the policy's order."""

    def __init__(self, num_blocks, policy):
        super().__init__(num_blocks, frees_unhashed_to_front=True)
        self.policy = policy
        self.entries = {}
        self._clock = Clock()

    def take(self, num_wanted):
        taken = []
        for _ in range(num_wanted):
            head = next(iter(self.free_queue))
            if self.chain_of[head] != NO_CHAIN:
                candidates = [self.entries[b] for b in self.free_queue]
                head = self.policy.choose(candidates, self._clock.now).block
                del self.entries[head]
            self.free_queue.move_to_end(head, last=False)
            taken += super().take(1)
        return taken

    def share(self, block_ids):
        super().share(block_ids)
        for entry in (self.entries[b] for b in block_ids):
            entry.last_access = next(self._clock)
            entry.hit_count += 1
            self.policy.used(entry, self._clock.now)

    def publish(self, block_id, chain_id, index, priority):
        """`register`, told where the block stands in its prompt."""
        self.register(block_id, chain_id)
        now = next(self._clock)
        self.entries[block_id] = BlockEntry(block_id, chain_id, index, priority, now, now)
        self.policy.arrived(self.entries[block_id], now)

    def withdraw(self, block_id):
        self.policy.gone(self.entries.pop(block_id))

    def give_back(self, table):
        super().give_back(table)
        for block_id in reversed(table):
            if self.num_refs[block_id] == 0 and block_id in self.entries:
                self.entries[block_id].last_access = next(self._clock)
                self.policy.offered(self.entries[block_id])
