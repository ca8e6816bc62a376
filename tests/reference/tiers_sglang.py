"""Host memory and storage behind SGLang's radix tree, in plain Python: the oracle, not the product.

The tree moves nodes; what is copied is blocks, named by the chain of their keys.
"""

from . import timed
from .copies import TierConfig
from .sglang_scheduler import Mode
from .tiers import Fetch, Found, Tiered


class _Offering(timed._Sglang):
    """Offers what a prefill has computed once it is whole, and the rest before it is let go."""

    frees_by_copies = False

    def _is_full_when_refused(self, has_others):
        """With copies under way memory comes back without a request that leaves."""
        return super()._is_full_when_refused(has_others) and (has_others or not self.frees_by_copies)


class TieredSglang(Tiered, timed.SglangSteps):
    scheduler_class = _Offering

    def __init__(self, config, tiers: TierConfig):
        super().__init__(config)
        self.open_tiers(tiers)
        self._chain_ids, self._loads_evicted = {}, 0
        self.scheduler.frees_by_copies = tiers.write == "through"
        memory, tree = self._memory, self._memory.tree
        insert, finish, let_go, remove = memory.insert_unfinished, memory.finish, memory._let_go, tree._remove_leaf
        self._ends = False

        def insert_and_offer(request, is_chunk=False):
            insert(request, is_chunk)
            if not is_chunk:
                self._offer(request, request.last_node)

        def finish_and_offer(request):
            self._ends = True
            finish(request)

        def offer_and_let_go(request):
            if self._ends:
                self._offer(request, self._end_of(request, request.num_kv // self.block_tokens))
            self._ends = False
            let_go(request)

        def note_and_remove(leaf):
            path, node = [], leaf
            while node is not tree.root:
                path, node = node.keys + path, node.parent
            names = self._names(leaf.namespace, path)
            self.left += names[len(path) - len(leaf.keys) :]
            remove(leaf)

        memory.insert_unfinished, memory.finish = insert_and_offer, finish_and_offer
        memory._let_go, tree._remove_leaf = offer_and_let_go, note_and_remove

    def add(self, sequence):
        super().add(sequence)
        self.fetches[sequence.number] = Fetch()

    def cancel(self, number):
        request = self.aside.pop(number, None)
        if request is None:
            return super().cancel(number)
        request.finish_reason = "abort"
        return True

    def schedule(self):
        self._loads_evicted = 0
        self.before_step()
        plan = super().schedule()
        plan.num_evicted += self._loads_evicted
        self._num_evicted += self._loads_evicted
        return self.planned(plan)

    def _offer(self, request, node):
        def hold(start, stop):
            self._memory.tree.lock(node)
            return node

        self.offer(request, request.num_kv, hold)

    def _names(self, namespace, keys):
        names, last = [], ("root", namespace)
        for key in keys:
            last = self._chain_ids.setdefault((last, key), len(self._chain_ids))
            names.append(last)
        return names

    def _end_of(self, request, blocks):
        """The node that ends the path of its first blocks, which is there. Nothing is touched."""
        keys, node, at = request.content.block_keys(blocks * self.block_tokens), self._memory.tree.root, 0
        while at < blocks:
            node = node.children[(request.namespace, keys[at])]
            at += len(node.keys)
        return node

    # -- what Tiered asks

    @property
    def queue(self):
        return self.scheduler.waiting

    def number_of(self, request):
        return request.id

    def prompt_of(self, request):
        return request.num_prompt

    def preemptions_of(self, request):
        return request.num_retractions

    def is_new(self, request):
        return request.num_cached is None

    def is_over(self, request):
        return request.finish_reason is not None

    def names_of(self, request, blocks):
        return self._names(request.namespace, request.content.block_keys(blocks * self.block_tokens))

    def look_up(self, request):
        match = self._memory.match(request, request.num_tokens - 1)
        tied, node = 0, match.node
        while node is not self._memory.tree.root and not node.lock_ref:
            tied, node = tied + len(node.keys), node.parent
        return Found(len(match.values), tied, match.node)

    def hold(self, node):
        self._memory.tree.lock(node)

    def let_go(self, node):
        self._memory.tree.unlock(node)

    def take(self, count):
        if self._memory.allocator.num_free < count:
            before = len(self._memory.evicted)
            self._memory.evict(count * self.block_tokens)
            self._loads_evicted += sum(map(len, self._memory.evicted[before:]))
        return self._memory.allocator.take(count)

    def give_back(self, blocks):
        self._memory.allocator.free(blocks)

    def publish(self, request, found, blocks, names):
        """The tree takes them, or keeps what others have computed meanwhile."""
        tree, stop = self._memory.tree, found.blocks + len(blocks)
        keys = request.content.block_keys(stop * self.block_tokens)
        there = tree.insert(keys, [0] * found.blocks + blocks, request.namespace, request.priority)
        self.give_back(blocks[: there - found.blocks])
        node = self._end_of(request, stop)
        tree.lock(node)
        tree.unlock(found.handle)
        return node, []

    def bars(self):
        """The batch is full, and nobody leaves before this step."""
        scheduler = self.scheduler
        last = scheduler.last_batch
        joins = last is not None and last.mode is not Mode.DECODE and bool(last.requests)
        leaves = scheduler.config.is_newer and any(r.finish_reason for r in scheduler.running.requests)
        return scheduler.running.is_full and not leaves and not joins and bool(scheduler.running.requests)

    def places(self):
        running = max(len(self.scheduler.running.requests), len(self._memory.holders))
        return self.scheduler.config.max_running_requests - running

    def budget(self):
        config, chunk = self.scheduler.config, self.scheduler.chunked
        budget = config.max_prefill_tokens
        if config.chunked_prefill_size is not None:
            budget = min(budget, config.chunked_prefill_size)
        return budget - (chunk.num_tokens - chunk.num_kv if chunk else 0)

    def room(self):
        """Tokens left when those who run have grown as expected, and the chunk that goes on is whole."""
        scheduler, memory, bt = self.scheduler, self._memory, self.block_tokens
        ratio, clip = scheduler.new_token_ratio, scheduler.config.clip_max_new_tokens
        running = scheduler.running.requests
        mixed = len(running) if scheduler.config.mixes else 0
        growth = 0.0
        for r in running:
            growth += min(r.max_new_tokens - r.num_output, clip) * ratio
        expected, last, chunk = 0.0, scheduler.last_batch, scheduler.chunked
        if last is not None and last.mode is not Mode.DECODE:
            for r in last.requests:
                if r.finish_reason is None:
                    expected += min(r.max_new_tokens - r.num_output, clip) * ratio
        promised = -(-chunk.num_tokens // bt) - len(chunk.row) + 1 if chunk else 0
        return int(memory.num_free + memory.num_evictable - (mixed + growth) - expected) - promised * bt

    def need(self, request, found):
        config, bt = self.scheduler.config, self.block_tokens
        whole = (-(-request.num_tokens // bt) - found.blocks + found.tied) * bt
        output = min(max(request.max_new_tokens - request.num_output, 0), config.clip_max_new_tokens)
        return whole + output + bt, 0, whole, 0
