"""Host memory and storage behind vLLM's block pool, in plain Python: the oracle, not the product.

    Copies        a pool of copies: who is found, who is held, who leaves first
    Link          one transfer after the other
    TieredSteps   the scheduler of `timed` with both pools behind it: writes, loads, prefetches
    TieredEngine  the clock of `engine`: it hears of transfers that have ended between two steps

A copy is named by its chain id (block_hash.ChainTable), so equal prefixes in one namespace are equal copies.
"""

import math
from dataclasses import dataclass

from . import timed
from .cost import HOST
from .engine import TimedEngine
from .vllm_scheduler import NEVER_ADMITTED

STORE_DOWN, STORE_UP, TIMER, DOWN, UP = range(5)  # the order in which the links were made decides ties
NEW, DONE, RUNS, ASIDE = "not looked at", "over", "under way", "under way, and waited for"


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


class Link:
    def __init__(self):
        self.free_ns = 0

    def begin(self, now, work):
        self.free_ns = max(self.free_ns, now) + work
        return self.free_ns


class Timer:
    """No link: each takes its own time."""

    def begin(self, now, work):
        return now + work


@dataclass
class Move:
    end: int
    link: int
    number: int
    land: object

    @property
    def order(self):
        return self.end, self.link, self.number


# -- the scheduler -----------------------------------------------------------------------------------------------


@dataclass
class Fetch:
    """What a request has to do with the tiers. tried: admissions before which it has looked for a load."""

    prefetch: str = NEW
    next: int = 0
    end: int = 0
    tried: int = 0
    since: int = 0
    waited: int = 0
    backed: int = 0
    host_tokens: int = 0
    store_tokens: int = 0


class _Offering(timed._Vllm):
    """Offers what a prefill has computed after each chunk, and the rest at the end, before anybody lets it go."""

    decoding = frozenset()

    def update(self, plan):
        self.decoding -= {*plan.new, *plan.resumed}
        unchanged = {r: row.request for r, row in plan.rows.items() if row.request.finish_reason is None}
        self.offered, release = [], self.tables.release

        def late(request_id):  # who ends in this step
            self.offer(unchanged[request_id])
            release(request_id)

        self.tables.release = late
        self.offer_order = list(unchanged)
        result = super().update(plan)
        self.tables.release = release
        ended = {number for number, _ in result.finished}
        for number, request in unchanged.items():
            if number not in ended | self.decoding:
                self.offer(request)
        self.decoding |= set(result.emitted)
        self.offered.sort(key=lambda offer: self.offer_order.index(offer[0].request_id))
        return result


class TieredSteps(timed.VllmSteps):
    scheduler_class = _Offering

    def __init__(self, config, rules, tiers: TierConfig):
        super().__init__(config, rules)
        self.tiers, self.fetches, self.aside = tiers, {}, {}
        self.host = Copies(tiers.host_blocks, tiers.policy, tiers.closed)
        self.store = Copies(tiers.store_blocks, tiers.store_policy, False)
        self.links = [Link(), Link(), Timer(), Link(), Link()]
        self.moving, self.num_moves, self.now = [], 0, 0
        self.offers = {}
        self.load_begin = self.load_end = self.copy_ns = self.write_end = 0
        self.loaded_blocks = self.num_evicted = 0
        self.queued_at = {}
        self.scheduler.offer = self._offer
        self._note_evictions()

    def _note_evictions(self):
        self.left = []
        evict = self._pool._evict_if_cached

        def noted(block):
            if self._pool.chain_of[block] >= 0:
                self.left.append(self._pool.chain_of[block])
            evict(block)

        self._pool._evict_if_cached = noted

    # -- what the engine calls

    @property
    def is_idle(self):
        return not self.scheduler.running and not len(self.scheduler.waiting)

    def add(self, sequence):
        super().add(sequence)
        self.fetches[sequence.number] = Fetch()

    def cancel(self, number):
        request = self.aside.pop(number, None)
        if request is None:
            return super().cancel(number)
        self.scheduler._finish(request, "abort")
        return True

    def schedule(self):
        if self.tiers.store_blocks:
            self._prefetch()
        self._walk()
        if self.tiers.write == "back":
            self._write_back()
        plan = super().schedule()
        self.num_evicted += plan.num_evicted
        for number in plan.admitted:  # copies on the host may have gone since it ran last
            self.fetches[number].backed = 0
        return plan

    def land(self, now):
        """Transfers that have ended."""
        self.now = now
        ended = sorted((move for move in self.moving if move.end <= now), key=lambda move: move.order)
        self.moving = [move for move in self.moving if move.end > now]
        for move in ended:
            move.land()

    def write(self):
        """What was offered in the step that is over."""
        if self.tiers.write == "through":
            for offer in self.scheduler.offered:
                self._write(*offer)

    def longer(self, duration, host_ns, has_prefill):
        """ns by which loads and copies lengthen the planned step."""
        t, wait = self.tiers, 0
        if t.write == "back":
            self._write_back()
        stall = max(self.write_end - (self.now + host_ns), 0)
        start, busy = self.now + host_ns + stall, duration - host_ns
        if has_prefill and self.load_end > start:
            load = self.load_end - self.load_begin
            first = self.load_begin + load // t.layers + busy
            last = self.load_end + busy // t.layers
            wait = max(max(first, last) - (start + busy), 0)
        beside = min(self.copy_ns, busy)
        self.copy_ns -= beside
        return wait + int(t.slowdown * beside) + stall

    # -- moves

    def _move(self, link, work, land):
        end = self.links[link].begin(self.now, work)
        self.num_moves += 1
        self.moving.append(Move(end, link, self.num_moves, land))
        return end

    def _chain(self, request, blocks):
        return request.content.chain_ids(blocks)

    def _hits(self, request):
        limit = (request.num_tokens - 1) // self.block_tokens
        return limit, self._pool.match(self._chain(request, limit))

    def _is_new(self, request):
        return request.num_cached_tokens == NEVER_ADMITTED

    def _set_aside(self, request):
        self.scheduler.waiting.remove(request)
        self.aside[request.request_id] = request
        self.fetches[request.request_id].since = self.now

    def _back_to_queue(self, request):
        """Before all that were queued after it."""
        number = request.request_id
        del self.aside[number]
        if self._is_new(request):
            self.fetches[number].waited += self.now - self.fetches[number].since
        queue = self.scheduler.waiting._requests
        at = 0
        while at < len(queue) and self._rank(queue[at].request_id) < self._rank(number):
            at += 1
        queue.insert(at, request)

    def _rank(self, number):
        return self.queued_at[number], number

    # -- device to host

    def _offer(self, request):
        f, number = self.fetches[request.request_id], request.num_computed_tokens
        if self.tiers.write != "through" or number < request.num_prompt_tokens:
            return
        start, stop = f.backed, number // self.block_tokens
        if stop <= start:
            return
        f.backed = stop
        blocks = self.scheduler.tables.block_ids(request.request_id)[start:stop]
        self._pool.share(blocks)
        self.scheduler.offered.append((request, start, stop, blocks))

    def _write(self, request, start, stop, blocks):
        t, host = self.tiers, self.host
        if not t.outputs:
            stop = min(stop, request.num_prompt_tokens // self.block_tokens)
        chain = self._chain(request, stop)
        if stop <= start:
            self._pool.give_back(blocks)
            return
        path = chain[max(start - 1, 0) : stop]
        kept = [name for name in path if not host.is_wanted(name)]
        host.count([name for name in chain[start:stop] if name in kept])
        host.hold(kept)
        names = []
        for i in range(start, stop):
            if not host.is_wanted(chain[i]) or (t.min_offers > 1 and self._times_offered(chain[i]) < t.min_offers):
                continue
            if not host.has_parent(chain, i) or not host.reserve(chain[i], chain[i - 1] if i else None):
                break
            names.append(chain[i])
        self._end_of_path(host, path, kept, names)
        if not names:
            self._pool.give_back(blocks)
            return

        def land():
            self._store(names)
            host.confirm(names)
            self._pool.give_back(blocks)

        work = t.down.work(len(names) * t.block_bytes, len(names) * t.block_fragments)
        self._move(DOWN, work, land)
        self.copy_ns += work

    def _end_of_path(self, host, path, kept, new):
        """Who was held while others were reserved behind them is the youngest now, and so are these."""
        held = {*kept, *new}
        path = [name for name in path if name in held]
        host.hold(new)
        host.stamp(path)
        host.let_go(path)

    def _times_offered(self, name):
        size = 1 << max((self.tiers.host_blocks - 1).bit_length() - 1, 4)
        if len(self.offers) * 8 > size * 5:
            self.offers = {}
        self.offers[name] = self.offers.get(name, 0) + 1
        return self.offers[name]

    def _write_back(self):
        t = self.tiers
        names = [name for name in self.left if self.host.is_wanted(name) and self.host.reserve(name)]
        self.left.clear()
        if not names:
            return

        def land():
            self._store(names)
            self.host.confirm(names)

        work = t.down.work(len(names) * t.block_bytes, len(names) * t.block_fragments)
        self.write_end = max(self.write_end, self._move(DOWN, work, land))

    # -- host to device

    def _walk(self):
        """Who may be admitted now, in order, until there is one for whom there is no memory."""
        budget, places, room = self._budget(), self._places(), self._pool.num_free
        for request in list(self.scheduler.waiting):
            if places <= 0 or budget <= 0:
                break
            if self.fetches[request.request_id].prefetch == RUNS:
                self._decide(request)
            if request.request_id not in self.aside:
                tokens, blocks = self._load_of(request, room)
                if blocks is None:
                    break
                budget, room = budget - tokens, room - blocks
            places -= request.request_id not in self.aside

    def _places(self):
        return self.scheduler.config.max_admitted - len(self.scheduler.running)

    def _budget(self):
        """Tokens, less those of a prefill in progress."""
        config, budget = self.scheduler.config, self.scheduler.config.max_num_batched_tokens
        last = self.scheduler.running[-1] if self.scheduler.running else None
        if last and last.request_id not in self.scheduler.decoding and not config.long_prefill_token_threshold:
            budget -= last.num_tokens - last.num_computed_tokens
        return budget

    def _load_of(self, request, room):
        """Returns the tokens that the next step has to compute for it, and the blocks it takes; None: too many."""
        t, bt, f, config = self.tiers, self.block_tokens, self.fetches[request.request_id], self.scheduler.config
        limit, hits = self._hits(request)
        start, rest = len(hits), request.num_tokens - len(hits) * bt
        tied = sum(self._pool.num_refs[b] == 0 for b in hits)
        whole = -(-request.num_tokens // bt) - start + tied
        now = whole if config.scheduler_reserve_full_isl else -(-min(rest, config.max_num_batched_tokens) // bt) + tied
        if now + (config.num_watermark_blocks if self.scheduler.running else 0) > room:
            return rest, None
        if f.tried > request.num_preemptions:
            return rest, now
        chain = self._chain(request, limit)
        stop = self.host.find(chain, start, limit)
        if (stop - start) * bt < max(t.min_load_tokens, 1):
            return rest, now
        if whole + (0 if t.layerwise else config.num_watermark_blocks) > room:
            return rest, now
        f.tried = request.num_preemptions + 1
        if self._is_new(request):
            f.host_tokens = (stop - start) * bt
        self._begin_load(request, hits, chain[start:stop])
        self.host.touch(chain[:stop])
        if t.layerwise:
            return request.num_tokens - stop * bt, now
        self._set_aside(request)
        return 0, whole

    def _begin_load(self, request, hits, names):
        t, pool = self.tiers, self._pool
        pool.share(hits)
        taken = pool.take(len(names))
        self.host.hold(names)
        self.loaded_blocks += len(names)

        def publish():
            for block, name in zip(taken, names, strict=True):
                pool.register(block, name)

        def land():
            self.host.let_go(names)
            if not t.layerwise:
                publish()
            pool.give_back(taken)
            pool.give_back(hits)
            if request.request_id in self.aside and not t.layerwise:
                self._back_to_queue(request)

        if t.layerwise:
            publish()
        work = t.up.work(len(names) * t.block_bytes, len(names) * t.block_fragments)
        end = self._move(UP, work, land)
        self.copy_ns += work
        if t.layerwise:
            if self.load_end <= self.now:
                self.load_begin = end - work
            self.load_end = max(self.load_end, end)

    # -- storage

    def _prefetch(self):
        for request in reversed(list(self.scheduler.waiting)):
            if self.fetches[request.request_id].prefetch != NEW:
                break
            self._ask(request)

    def _ask(self, request):
        f = self.fetches[request.request_id]
        f.prefetch = DONE
        limit, hits = self._hits(request)
        chain = self._chain(request, limit)
        start = self.host.find(chain, len(hits), limit)
        stop = self.store.find(chain, start, limit)
        if stop == start or (stop - start) * self.block_tokens < self.tiers.min_prefetch_tokens:
            return
        f.prefetch, f.next, f.end = RUNS, start, stop
        self._next_batch(request)

    def _next_batch(self, request):
        t, host, store, f = self.tiers, self.host, self.store, self.fetches[request.request_id]
        start, stop = f.next, min(f.end, f.next + t.batch_blocks)
        chain = self._chain(request, stop)
        stop = store.find(chain, start, stop)
        if stop <= start:
            self._over(request)
            return
        store.touch(chain[start:stop])
        kept = [name for name in chain[:stop] if not host.is_wanted(name)]
        host.hold(kept)
        names = []
        for i in range(start, stop):
            if not host.is_wanted(chain[i]) or not host.has_parent(chain, i):
                break
            if not host.reserve(chain[i], chain[i - 1] if i else None):
                break
            names.append(chain[i])
        self._end_of_path(host, chain[: start + len(names)], kept, names)
        if not names:
            self._over(request)
            return
        store.hold(names)
        f.next = start + len(names)

        def land():
            store.let_go(names)
            host.confirm(names)
            if f.prefetch == DONE:
                return
            if self._is_new(request):
                f.store_tokens += len(names) * self.block_tokens
            if request.finish_reason is None and f.next < f.end:
                self._next_batch(request)
            else:
                self._over(request)

        self._move(STORE_UP, t.store_up.work(len(names) * t.store_block_bytes, 1), land)

    def _decide(self, request):
        t, f = self.tiers, self.fetches[request.request_id]
        if t.stop == "best_effort":
            self._stop(request)
            return
        if t.stop == "timeout":
            tokens = f.end * self.block_tokens
            left = self.queued_at[request.request_id] + t.timeout_ns + int(tokens * t.timeout_token_ns) - self.now
            if left <= 0:
                self._stop(request)
                return
            self._move(TIMER, left, lambda: self._stop(request) if f.prefetch == ASIDE else None)
        self._set_aside(request)
        f.prefetch = ASIDE

    def _stop(self, request):
        f = self.fetches[request.request_id]
        f.end = f.next
        self._over(request)

    def _over(self, request):
        f = self.fetches[request.request_id]
        was_aside, f.prefetch = f.prefetch == ASIDE, DONE
        if was_aside and request.request_id in self.aside:
            self._back_to_queue(request)

    def _store(self, written):
        t, names = self.tiers, []
        kept = [name for name in written if not self.store.is_wanted(name)] if t.store_blocks else []
        self.store.hold(kept)
        for name in written if t.store_blocks else ():
            if name in kept:
                continue
            if not self.store.reserve(name):
                break
            names.append(name)
        if t.write == "through":
            self._end_of_path(self.store, written, kept, names)
        else:
            self.store.let_go([name for name in written if name in kept])
        if not names:
            return
        self.host.hold(names)

        def land():
            self.host.let_go(names)
            self.store.confirm(names)

        work = t.store_down.work(len(names) * t.store_block_bytes, -(-len(names) // t.batch_blocks))
        self._move(STORE_DOWN, work, land)


# -- the clock ---------------------------------------------------------------------------------------------------


class TieredEngine(TimedEngine):
    """scheduler: TieredSteps."""

    def run(self):
        super().run()
        self.totals.evicted_blocks = self.scheduler.num_evicted  # also for plans that came out empty

    def _deliver(self):
        self.scheduler.land(self.now)
        super()._deliver()

    def _next_ns(self):
        ends = [move.end for move in self.scheduler.moving]
        return min([*ends, *(time for time, *_ in self._events[:1])], default=None)

    def _unstick(self):
        later = self._next_ns()
        if later is not None and (self.scheduler.num_running or self.scheduler.moving):
            self.now = max(self.now, later)
        else:
            super()._unstick()

    def _lengthened(self, parts, chunks):
        duration = sum(parts)
        return duration + self.scheduler.longer(duration, parts[HOST], bool(chunks))

    def _commit(self):
        super()._commit()
        self.scheduler.now = self.now
        self.scheduler.write()

    def _enqueue(self, row):
        if row.state == "tokenizing":
            self.scheduler.queued_at[row.number] = row.ready_ns
        super()._enqueue(row)
