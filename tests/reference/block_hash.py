"""vLLM v1's block pool and prefix cache in plain Python: the oracle, not the product.

Lives here: the free queue, reference counts, the map from content to blocks, block tables of requests.
Does not belong here: who runs when (vllm_scheduler.py), jitted code, anything imported from kvbench.

Always true (check_integrity() proves it from scratch):
  - block 0 is reserved: never free, never referenced, never cached;
  - every other block is exactly one of
        free         no reference, no content        in the free queue
        cached only  no reference, content           in the free queue (evicted lazily, when it is popped)
        referenced   in at least one block table     not in the free queue
  - a block's reference count is the number of tables it stands in;
  - the content map and the blocks' own chain ids say the same.

Content is abstract: a full block is named by any hashable key, so tokens and virtual tokens work alike. Equal keys with
equal predecessors in one namespace are equal content.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

NULL_BLOCK = 0
NO_CHAIN = -1

BlockKeys = Callable[[int], Hashable] | Sequence[Hashable]


class IntegrityError(AssertionError):
    """The pool, the content map and the block tables contradict each other."""


def _require(is_true: bool, text: str) -> None:
    if not is_true:
        raise IntegrityError(text)


class ChainTable:
    """Gives each (parent chain, key) one small int: an exact hash, O(1) for a prefix of any length."""

    def __init__(self) -> None:
        self._ids: dict[tuple, int] = {}

    def root(self, namespace: Hashable) -> int:
        return self._intern(("root", namespace))

    def extend(self, parent_id: int, key: Hashable) -> int:
        return self._intern(("block", parent_id, key))

    def _intern(self, name: tuple) -> int:
        return self._ids.setdefault(name, len(self._ids))


class BlockContent:
    """The chain ids of one request's full blocks, worked out when first asked for and then kept.

    block_keys is only asked for blocks that are full by now, so a callable may look at tokens that grow.
    """

    def __init__(self, chains: ChainTable, namespace: Hashable, block_keys: BlockKeys) -> None:
        self._chains = chains
        self._key_of = block_keys if callable(block_keys) else block_keys.__getitem__
        self._root_id = chains.root(namespace)
        self._chain_ids: list[int] = []

    def chain_ids(self, num_blocks: int) -> list[int]:
        known = self._chain_ids
        while len(known) < num_blocks:
            parent_id = known[-1] if known else self._root_id
            known.append(self._chains.extend(parent_id, self._key_of(len(known))))
        return known[:num_blocks]


@dataclass(eq=False)
class TokenSequence:
    """What the block tables need to know of a request."""

    request_id: str
    content: BlockContent | None
    num_tokens: int  # known tokens: prompt and outputs so far
    num_computed_tokens: int = 0  # tokens that have (or, once planned, will have) KV


class BlockPool:
    """Free queue, reference counts, and the map from chain id to the blocks that hold it."""

    def __init__(self, num_blocks: int, frees_unhashed_to_front: bool) -> None:
        self.num_blocks = num_blocks
        self.frees_unhashed_to_front = frees_unhashed_to_front
        self.num_refs = [0] * num_blocks
        self.chain_of = [NO_CHAIN] * num_blocks
        # Head = next to be taken. An OrderedDict is a linked list with O(1) removal from the middle.
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        # chain id -> its live copies in order of registration (a dict as an ordered set).
        self.copies_of: dict[int, dict[int, None]] = {}
        self._evicted: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self.free_queue)

    @property
    def num_cached_chains(self) -> int:
        return len(self.copies_of)

    def match(self, chain_ids: Iterable[int]) -> list[int]:
        """Read only: the earliest registered copy of each chain, up to the first chain without one."""
        hits = []
        for chain_id in chain_ids:
            copies = self.copies_of.get(chain_id)
            if copies is None:
                break
            hits.append(next(iter(copies)))
        return hits

    def take(self, num_wanted: int) -> list[int]:
        """Pop the head of the queue, whether it is cached or not; the caller has checked that there are enough."""
        taken = []
        for _ in range(num_wanted):
            block_id, _ = self.free_queue.popitem(last=False)
            self._evict_if_cached(block_id)
            self.num_refs[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.free_queue.pop(block_id, None)
            self.num_refs[block_id] += 1

    def give_back(self, table: Sequence[int]) -> None:
        """Drop one reference of each block. Tail first, so that a prefix outlives what hangs on it."""
        freed = []
        for block_id in reversed(table):
            self.num_refs[block_id] -= 1
            if self.num_refs[block_id] == 0:
                freed.append(block_id)
        to_front = [b for b in freed if self._goes_to_front(b)]
        self.free_queue.update(dict.fromkeys(freed))
        for block_id in reversed(to_front):  # so the front keeps the order of `freed`, too
            self.free_queue.move_to_end(block_id, last=False)

    def register(self, block_id: int, chain_id: int) -> None:
        """A second block with the same content stands beside the first; nothing is merged."""
        self.chain_of[block_id] = chain_id
        self.copies_of.setdefault(chain_id, {})[block_id] = None

    def publish(self, block_id: int, chain_id: int, index: int, priority: int) -> None:
        """`register`, with what policies want to know: where the block stands in its prompt."""
        self.register(block_id, chain_id)

    def reset(self) -> bool:
        """Forget all content; refused while any block is referenced. The order of the queue stays."""
        if self.num_free != self.num_blocks - 1:
            return False
        self.chain_of = [NO_CHAIN] * self.num_blocks
        self.copies_of = {}
        return True

    def drain_evicted(self) -> list[int]:
        """Blocks that lost their content since the last call, in order."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _goes_to_front(self, block_id: int) -> bool:
        return self.frees_unhashed_to_front and self.chain_of[block_id] == NO_CHAIN

    def _evict_if_cached(self, block_id: int) -> None:
        chain_id = self.chain_of[block_id]
        if chain_id == NO_CHAIN:
            return
        copies = self.copies_of[chain_id]
        del copies[block_id]
        if not copies:
            del self.copies_of[chain_id]
        self.chain_of[block_id] = NO_CHAIN
        self._evicted.append(block_id)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        self._check_references(tables)
        self._check_states()
        self._check_content_map()

    def _check_references(self, tables: Iterable[Sequence[int]]) -> None:
        counted = [0] * self.num_blocks
        for table in tables:
            _require(len(set(table)) == len(table), f"a table holds a block twice: {table}")
            for block_id in table:
                counted[block_id] += 1
        for block_id in range(self.num_blocks):
            kept = self.num_refs[block_id]
            _require(kept == counted[block_id], f"block {block_id}: {kept} references, {counted[block_id]} tables")

    def _check_states(self) -> None:
        _require(NULL_BLOCK not in self.free_queue, "the null block is in the free queue")
        _require(self.num_refs[NULL_BLOCK] == 0, "the null block is referenced")
        _require(self.chain_of[NULL_BLOCK] == NO_CHAIN, "the null block is cached")
        for block_id in range(1, self.num_blocks):
            is_free, is_referenced = block_id in self.free_queue, self.num_refs[block_id] > 0
            _require(is_free != is_referenced, f"block {block_id}: free {is_free}, referenced {is_referenced}")
        _require(set(self.free_queue) <= set(range(self.num_blocks)), "an unknown block is in the free queue")

    def _check_content_map(self) -> None:
        mapped = {}
        for chain_id, copies in self.copies_of.items():
            _require(bool(copies), f"chain {chain_id} is mapped to no block")
            for block_id in copies:
                _require(block_id not in mapped, f"block {block_id} is mapped twice")
                mapped[block_id] = chain_id
        own = {b: chain_id for b, chain_id in enumerate(self.chain_of) if chain_id != NO_CHAIN}
        _require(mapped == own, f"map and blocks differ: {sorted(mapped.items() ^ own.items())}")


@dataclass
class _Table:
    block_ids: list[int] = field(default_factory=list)
    num_registered: int = 0  # the first so many blocks have their content in the map


class BlockTables:
    """The block table of each request, and all that changes it."""

    def __init__(self, pool: BlockPool, block_size: int, max_model_len: int, enable_caching: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self._chains = ChainTable()
        self._tables: dict[str, _Table] = {}

    def new_content(self, namespace: Hashable, block_keys: BlockKeys) -> BlockContent:
        return BlockContent(self._chains, namespace, block_keys)

    def block_ids(self, request_id: str) -> list[int]:
        table = self._tables.get(request_id)
        return list(table.block_ids) if table else []

    def match(self, sequence: TokenSequence) -> list[int]:
        """Read only: the cached blocks of the longest known prefix; no reference is taken.

        At least one token must be left to compute, and whole blocks only: a prompt of k whole blocks hits k - 1.
        """
        if not self.enable_caching:
            return []
        max_hits = (sequence.num_tokens - 1) // self.block_size
        return self.pool.match(sequence.content.chain_ids(max_hits))

    def fits(self, sequence: TokenSequence, num_slots: int, hits: Sequence[int], num_headroom_blocks: int) -> bool:
        """Could the request's table grow to num_slots tokens and leave the headroom free?"""
        num_wanted = self._num_wanted(sequence.request_id, num_slots, hits)
        # A hit without references is itself a free block: sharing it uses up capacity as well.
        num_hits_from_queue = sum(self.pool.num_refs[block_id] == 0 for block_id in hits)
        return num_wanted + num_hits_from_queue + num_headroom_blocks <= self.pool.num_free

    def allocate(
        self,
        sequence: TokenSequence,
        num_new_tokens: int,
        hits: Sequence[int] = (),
        num_headroom_blocks: int = 0,
    ) -> list[int] | None:
        """Make room for the next num_new_tokens after the computed ones and the hits; all or nothing.

        returns  the blocks taken from the queue (not the hits), or None: nothing has changed
        The content of blocks that will be full is registered at once, before any KV is written.
        """
        num_computed = sequence.num_computed_tokens + len(hits) * self.block_size
        num_slots = min(num_computed + num_new_tokens, self.max_model_len)
        if not self.fits(sequence, num_slots, hits, num_headroom_blocks):
            return None
        table = self._tables.setdefault(sequence.request_id, _Table())
        num_wanted = self._num_wanted(sequence.request_id, num_slots, hits)
        self.pool.share(hits)  # before taking: a hit must not be evicted for its own request
        table.block_ids.extend(hits)
        table.num_registered += len(hits)
        taken = self.pool.take(num_wanted)
        table.block_ids.extend(taken)
        if self.enable_caching:
            num_full_tokens = min(num_computed + num_new_tokens, sequence.num_tokens)
            self._register(table, sequence.content, num_full_tokens // self.block_size)
        return taken

    def hold(self, sequence: TokenSequence, num_slots: int, hits: Sequence[int]) -> list[int]:
        """A table of num_slots tokens whose content comes from elsewhere; only the hits have any. The caller has asked
        `fits`. Returns the blocks taken from the queue.
        """
        table = self._tables.setdefault(sequence.request_id, _Table())
        num_wanted = self._num_wanted(sequence.request_id, num_slots, hits)
        self.pool.share(hits)
        taken = self.pool.take(num_wanted)
        table.block_ids += [*hits, *taken]
        table.num_registered += len(hits)
        return taken

    def publish(self, sequence: TokenSequence, num_tokens: int) -> None:
        """The first num_tokens tokens have their KV: whole blocks can be hit."""
        if self.enable_caching:
            self._register(self._tables[sequence.request_id], sequence.content, num_tokens // self.block_size)

    def release(self, request_id: str) -> None:
        table = self._tables.pop(request_id, None)
        if table:
            self.pool.give_back(table.block_ids)

    def check_integrity(self) -> None:
        self.pool.check_integrity(table.block_ids for table in self._tables.values())
        for request_id, table in self._tables.items():
            chained = [self.pool.chain_of[b] != NO_CHAIN for b in table.block_ids]
            num_registered = table.num_registered
            _require(all(chained[:num_registered]), f"{request_id}: a registered block lost its content in use")
            _require(not any(chained[num_registered:]), f"{request_id}: content beyond the registered blocks")

    def _num_wanted(self, request_id: str, num_slots: int, hits: Sequence[int]) -> int:
        table = self._tables.get(request_id)
        num_held = len(table.block_ids) if table else 0
        return max(-(-num_slots // self.block_size) - num_held - len(hits), 0)

    def _register(self, table: _Table, content: BlockContent, num_full: int) -> None:
        if num_full <= table.num_registered:
            return
        chain_ids = content.chain_ids(num_full)
        for index in range(table.num_registered, num_full):
            self.pool.register(table.block_ids[index], chain_ids[index])
        table.num_registered = num_full
