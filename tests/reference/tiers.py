"""Host memory and storage behind the caches of vLLM and SGLang, in plain Python: the oracle, not the product.

    Tiered        what both schedulers have in common: writes, loads, prefetches
    TieredSteps   vLLM's, over its block pool. SGLang's is in tiers_sglang
    TieredEngine  the clock of `engine`: it hears of transfers that have ended between two steps

A copy is named by its chain id, so equal prefixes in one namespace are equal copies.
"""

import math
from dataclasses import dataclass

from . import timed
from .copies import Link, Move, Shared, TierConfig, Timer, pool_of
from .cost import HOST
from .engine import TimedEngine
from .vllm_scheduler import NEVER_ADMITTED

STORE_DOWN, STORE_UP, TIMER, DOWN, UP = range(5)  # the order in which the links were made decides ties
NEW, DONE, RUNS, ASIDE = "not looked at", "over", "under way", "under way, and waited for"


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


@dataclass
class Found:
    """Hits of a request: blocks of them, of these not held by anybody, and what the scheduler knows them by."""

    blocks: int
    tied: int
    handle: object


class Tiered:
    """Beside a scheduler of `timed`, whose requests a subclass knows how to read:

    number_of, is_new, preemptions_of, prompt_of, is_over   of a request; queue: the waiting ones, can be changed
    names_of(request, n)   chain ids of its first blocks
    look_up(request)       what the device has: Found
    hold, let_go           of a handle
    take(n), give_back     blocks of nobody else
    publish(request, found, blocks, names)   a load becomes part of the cache. Returns handle and blocks to give back
    places, budget, room, need(request, found)   of the step that begins; memory in tokens, None: there is not so much
    """

    def open_tiers(self, tiers: TierConfig):
        self.tiers, self.fetches, self.aside = tiers, {}, {}
        self.host = pool_of(tiers.host_blocks, tiers.policy, tiers.closed)
        self.store = pool_of(tiers.store_blocks, tiers.store_policy, False)
        kind = Shared if tiers.fair else Link
        down = kind()
        self.links = [Link(), Link(), Timer(), down, down if tiers.half_duplex else kind()]
        self.ended, self.now = [], 0
        self.offers, self.offered, self.left = {}, [], []
        self.load_begin = self.load_end = self.copy_ns = self.write_end = 0
        self.loaded_blocks = self.num_evicted = 0
        self.queued_at = {}

    # -- what the engine calls

    def before_step(self):
        if self.tiers.store_blocks:
            self._prefetch()
        self._walk()
        if self.tiers.write == "back":
            self._write_back()

    def planned(self, plan):
        self.num_evicted += plan.num_evicted
        for number in plan.admitted:  # copies on the host may have gone since it ran last
            self.fetches[number].backed = 0
        return plan

    def land(self, now):
        """Transfers that have ended."""
        self.now = now
        self._note_ends()
        ended, self.ended = self.ended, []
        for move in ended:
            move.land()

    def _note_ends(self):
        while self._next_of_links() <= self.now:
            self.ended.append(min(self.links, key=lambda link: link.next_end()).pop())

    def next_end(self):
        """When somebody hears of an end next."""
        return self.now if self.ended else self._next_of_links()

    def _next_of_links(self):
        """Ties go to the link that was made first."""
        return min(link.next_end() for link in self.links)

    def write(self):
        """What was offered in the step that is over."""
        for offer in self.offered:
            self._write(*offer)
        self.offered.clear()

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
        self._note_ends()  # who has ended shares no link any more, though nobody has heard of it
        return self.links[link].begin(Move(land), self.now, work)

    def _fetch_of(self, request):
        return self.fetches[self.number_of(request)]

    def _limit(self, request):
        return (request.num_tokens - 1) // self.block_tokens

    def _set_aside(self, request):
        self.queue.remove(request)
        self.aside[self.number_of(request)] = request
        self._fetch_of(request).since = self.now

    def _back_to_queue(self, request):
        """Before all that were queued after it."""
        number, queue, at = self.number_of(request), self.queue, 0
        del self.aside[number]
        if self.is_new(request):
            self.fetches[number].waited += self.now - self.fetches[number].since
        while at < len(queue) and self._rank(self.number_of(queue[at])) < self._rank(number):
            at += 1
        queue.insert(at, request)

    def _rank(self, number):
        return self.queued_at[number], number

    # -- device to host

    def offer(self, request, num_computed, hold):
        """Whole blocks that it has not offered yet. hold(start, stop): they stay until what it returns is let go."""
        f = self._fetch_of(request)
        start, stop = f.backed, num_computed // self.block_tokens
        if self.tiers.write != "through" or num_computed < self.prompt_of(request) or stop <= start:
            return
        f.backed = stop
        self.offered.append((request, start, stop, hold(start, stop)))

    def _write(self, request, start, stop, handle):
        t, host = self.tiers, self.host
        if not t.outputs:
            stop = min(stop, self.prompt_of(request) // self.block_tokens)
        names, path = [], []
        if stop > start:
            chain = self.names_of(request, stop)
            path = chain[max(start - 1, 0) :]
            if t.policy == "arc":
                host.touch(chain[start:])
            kept = [name for name in path if not host.is_wanted(name)]
            host.count([name for name in chain[start:] if name in kept])
            host.hold(kept)
            wanted = [i for i in range(start, stop) if host.is_wanted(chain[i])]
            if t.min_offers > 1:
                wanted = [i for i in wanted if self._times_offered(chain[i]) >= t.min_offers]
            for i in wanted:
                if not host.has_parent(chain, i) or not host.reserve(chain[i], chain[i - 1] if i else None):
                    break
                names.append(chain[i])
            self._end_of_path(host, path, kept, names)
        if not names:
            self.let_go(handle)
            return

        def land():
            self._store(names)
            host.confirm(names)
            self.let_go(handle)

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
        size = 1 << max((self.tiers.host_blocks - 1).bit_length(), 4)
        if len(self.offers) * 8 > size * 7:
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
        if self.bars():
            return
        budget, places, room = self.budget(), self.places(), self.room()
        for request in list(self.queue):
            if places <= 0 or budget <= 0:
                break
            if self._fetch_of(request).prefetch == RUNS:
                self._decide(request)
            if self.number_of(request) not in self.aside:
                tokens, taken = self._load_of(request, room)
                if taken is None:
                    break
                budget, room = budget - tokens, room - taken
            places -= self.number_of(request) not in self.aside

    def bars(self):
        """Nobody can be admitted in this step."""
        return False

    def _load_of(self, request, room):
        """Returns the tokens that the next step has to compute for it, and those of memory that it takes, or None."""
        t, bt, f = self.tiers, self.block_tokens, self._fetch_of(request)
        limit, found = self._limit(request), self.look_up(request)
        start, rest = found.blocks, request.num_tokens - found.blocks * bt
        taken, headroom, whole, left_free = self.need(request, found)
        if taken + headroom > room:
            return rest, None
        if f.tried > self.preemptions_of(request):
            return rest, taken
        chain = self.names_of(request, limit)
        stop = self.host.find(chain, start, limit)
        if (stop - start) * bt < max(t.min_load_tokens, 1) or whole + (0 if t.layerwise else left_free) > room:
            return rest, taken
        f.tried = self.preemptions_of(request) + 1
        if self.is_new(request):
            f.host_tokens = (stop - start) * bt
        self._begin_load(request, found, chain[start:stop])
        self.host.touch(chain[:stop])
        if t.layerwise:
            return request.num_tokens - stop * bt, max(taken, whole)
        self._set_aside(request)
        return 0, whole

    def _begin_load(self, request, found, names):
        t = self.tiers
        self.hold(found.handle)
        held = [found.handle, self.take(len(names))]
        self.host.hold(names)
        self.loaded_blocks += len(names)

        def publish():
            found.handle, blocks = held
            held[:] = self.publish(request, found, blocks, names)

        def land():
            self.host.let_go(names)
            if not t.layerwise:
                publish()
            self.give_back(held[1])
            self.let_go(held[0])
            if self.number_of(request) in self.aside and not t.layerwise:
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
        for request in reversed(list(self.queue)):
            if self._fetch_of(request).prefetch != NEW:
                break
            self._ask(request)

    def _ask(self, request):
        f = self._fetch_of(request)
        f.prefetch = DONE
        limit, found = self._limit(request), self.look_up(request)
        chain = self.names_of(request, limit)
        start = self.host.find(chain, found.blocks, limit)
        stop = self.store.find(chain, start, limit)
        if stop == start or (stop - start) * self.block_tokens < self.tiers.min_prefetch_tokens:
            return
        f.prefetch, f.next, f.end = RUNS, start, stop
        self._next_batch(request)

    def _next_batch(self, request):
        t, host, store, f = self.tiers, self.host, self.store, self._fetch_of(request)
        start, stop = f.next, min(f.end, f.next + t.batch_blocks)
        chain = self.names_of(request, stop)
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
        self._end_of_path(host, chain[:stop], kept, names)
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
            if self.is_new(request):
                f.store_tokens += len(names) * self.block_tokens
            if not self.is_over(request) and f.next < f.end:
                self._next_batch(request)
            else:
                self._over(request)

        self._move(STORE_UP, t.store_up.work(len(names) * t.store_block_bytes, 1), land)

    def _decide(self, request):
        t, f = self.tiers, self._fetch_of(request)
        if t.stop == "best_effort":
            self._stop(request)
            return
        if t.stop == "timeout":
            tokens = f.end * self.block_tokens
            left = self.queued_at[self.number_of(request)] + t.timeout_ns + int(tokens * t.timeout_token_ns) - self.now
            if left <= 0:
                self._stop(request)
                return
            self._move(TIMER, left, lambda: self._stop(request) if f.prefetch == ASIDE else None)
        self._set_aside(request)
        f.prefetch = ASIDE

    def _stop(self, request):
        f = self._fetch_of(request)
        f.end = f.next
        self._over(request)

    def _over(self, request):
        f = self._fetch_of(request)
        was_aside, f.prefetch = f.prefetch == ASIDE, DONE
        if was_aside and self.number_of(request) in self.aside:
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


# -- vLLM --------------------------------------------------------------------------------------------------------


class _Offering(timed._Vllm):
    """Offers what a prefill has computed after each chunk, and the rest at the end, before anybody lets it go."""

    decoding = frozenset()

    def update(self, plan):
        self.decoding -= {*plan.new, *plan.resumed}
        unchanged = {r: row.request for r, row in plan.rows.items() if row.request.finish_reason is None}
        release = self.tables.release

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


class TieredSteps(Tiered, timed.VllmSteps):
    scheduler_class = _Offering

    def __init__(self, config, rules, tiers: TierConfig):
        super().__init__(config, rules)
        self.open_tiers(tiers)
        self.scheduler.offer, self.scheduler.offered = self._offer, self.offered
        evict = self._pool._evict_if_cached

        def noted(block):
            if self._pool.chain_of[block] >= 0:
                self.left.append(self._pool.chain_of[block])
            evict(block)

        self._pool._evict_if_cached = noted

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
        self.before_step()
        return self.planned(super().schedule())

    # -- what Tiered asks

    @property
    def queue(self):
        return self.scheduler.waiting._requests

    def number_of(self, request):
        return request.request_id

    def prompt_of(self, request):
        return request.num_prompt_tokens

    def preemptions_of(self, request):
        return request.num_preemptions

    def is_new(self, request):
        return request.num_cached_tokens == NEVER_ADMITTED

    def is_over(self, request):
        return request.finish_reason is not None

    def names_of(self, request, blocks):
        return request.content.chain_ids(blocks)

    def look_up(self, request):
        hits = self._pool.match(self.names_of(request, self._limit(request)))
        return Found(len(hits), sum(self._pool.num_refs[b] == 0 for b in hits), hits)

    def _offer(self, request):
        def hold(start, stop):
            blocks = self.scheduler.tables.block_ids(request.request_id)[start:stop]
            self._pool.share(blocks)
            return blocks

        self.offer(request, request.num_computed_tokens, hold)

    def hold(self, blocks):
        self._pool.share(blocks)

    def let_go(self, blocks):
        self._pool.give_back(blocks)

    def take(self, count):
        return self._pool.take(count)

    give_back = let_go

    def publish(self, request, found, blocks, names):
        for block, name in zip(blocks, names, strict=True):
            self._pool.register(block, name)
        return found.handle, blocks

    def places(self):
        return self.scheduler.config.max_admitted - len(self.scheduler.running)

    def budget(self):
        """Tokens, less those of a prefill in progress."""
        config, budget = self.scheduler.config, self.scheduler.config.max_num_batched_tokens
        last = self.scheduler.running[-1] if self.scheduler.running else None
        if last and last.request_id not in self.scheduler.decoding and not config.long_prefill_token_threshold:
            budget -= last.num_tokens - last.num_computed_tokens
        return budget

    def room(self):
        return self._pool.num_free * self.block_tokens

    def need(self, request, found):
        """Tokens that its admission takes and that it must leave; that all of it takes, and that a load must leave."""
        bt, config = self.block_tokens, self.scheduler.config
        whole = -(-request.num_tokens // bt) - found.blocks + found.tied
        rest = request.num_tokens - found.blocks * bt
        chunk = -(-min(rest, config.max_num_batched_tokens) // bt) + found.tied
        taken = whole if config.scheduler_reserve_full_isl else chunk
        left_free = config.num_watermark_blocks * bt
        return taken * bt, left_free if self.scheduler.running else 0, whole * bt, left_free


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
        return min([self.scheduler.next_end(), *(time for time, *_ in self._events[:1])])

    def _unstick(self):
        if (
            self.scheduler.ended
            or self.scheduler.next_end() < math.inf
            or (self.scheduler.num_running and self._events)
        ):
            self.now = max(self.now, self._next_ns())
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
