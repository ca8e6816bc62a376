"""The KV memory of SGLang requests: block allocator, radix tree and the table of blocks each request holds.

Who owns the block of token i of a request (row[i // block_size]):

    0 ............ num_protected ........... num_kv
    | tree (locked) | the request's own       |

The tree part is what the request matched or inserted; finishing or retracting frees or hands over only the own part.
The vocabulary: `prefix` = tokens whose KV exists when a prefill starts, `fill` = tokens that exist when it ends.

Does not belong: who runs (sglang_scheduler), what the tree evicts first (radix).
"""

from collections import deque
from collections.abc import Hashable, Sequence

from .radix import RadixTree


class OutOfKvMemory(Exception):
    """An allocation that the admission rules should have made impossible."""


class TokenAllocator:
    """One block = one token. Slots 1..n; taken from the head, freed to the tail in the order given."""

    def __init__(self, num_blocks: int):
        self._free = deque(range(1, num_blocks + 1))
        self._held_back: list | None = None

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_blocks: int) -> list:
        if num_blocks > len(self._free):
            raise OutOfKvMemory(f"{num_blocks} blocks wanted, {len(self._free)} free")
        return [self._free.popleft() for _ in range(num_blocks)]

    def free(self, block_ids: Sequence[int]) -> None:
        if self._held_back is not None:
            self._held_back.extend(block_ids)
        else:
            self._give_back(block_ids)

    def begin_group(self) -> None:
        """Hold back frees until end_group, which gives them back as one call. Matters to the order of pages only."""
        self._held_back = []

    def end_group(self) -> None:
        held_back, self._held_back = self._held_back, None
        self._give_back(held_back)

    def _give_back(self, block_ids) -> None:
        self._free.extend(block_ids)


class PagedAllocator(TokenAllocator):
    """One block = one page. Ids 1..n; the sorted pages of a free go to the FRONT."""

    def _give_back(self, block_ids) -> None:
        self._free.extendleft(sorted(set(block_ids), reverse=True))


class TokenContent:
    """Content of a request as explicit tokens. Grows by append; the keys of a prefix never change."""

    in_batch_width = 1  # the in-batch prefix rule compares token by token

    def __init__(self, tokens: Sequence[int], block_size: int):
        self.tokens = []
        self._block_size = block_size
        self._block_keys = []
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self._block_size > 1 and len(self.tokens) % self._block_size == 0:
            self._block_keys.append(tuple(self.tokens[-self._block_size :]))

    def block_keys(self, num_tokens: int) -> Sequence[Hashable]:
        """Keys of the whole blocks in the first num_tokens tokens."""
        if self._block_size == 1:
            return self.tokens[:num_tokens]
        return self._block_keys[: num_tokens // self._block_size]

    def in_batch_keys(self, num_tokens: int) -> Sequence[Hashable]:
        return self.tokens[:num_tokens]


class VirtualContent:
    """Content of a request as the keys of its whole blocks (prompt, then all outputs); no token values exist.

    Deviation: the in-batch prefix rule of the engine compares tokens; here it compares whole blocks, rounding down.
    """

    def __init__(self, block_keys: Sequence[Hashable], block_size: int):
        self._block_keys = list(block_keys)
        self._block_size = block_size
        self.in_batch_width = block_size

    def block_keys(self, num_tokens: int) -> Sequence[Hashable]:
        return self._block_keys[: num_tokens // self._block_size]

    in_batch_keys = block_keys


class Request:
    """A request and the memory it holds. `content` must know the keys of prompt and outputs up to num_tokens."""

    def __init__(self, request_id, num_prompt, max_new_tokens, content, namespace=None, priority=0):
        self.id = request_id
        self.num_prompt = num_prompt
        self.max_new_tokens = max_new_tokens
        self.content = content
        self.namespace = namespace
        self.priority = priority
        self.num_output = 0
        self.entry = 0  # number of its entry into the waiting queue
        self.num_processed_then = 0  # tokens computed by then
        self.num_cached = None  # prefix hit at the first admission; None before
        self.num_retractions = 0
        self.is_mid_prefill = False  # the running prefill is a chunk that does not reach the last token
        self.is_abort_wanted = False
        self.finish_reason = None
        self.row = []  # block ids of tokens [0, num_kv)
        self.num_kv = 0
        self.num_prefix = 0
        self.num_fill = 0
        self.num_protected = 0
        self.num_inserted = 0  # blocks that it has put into the tree
        self.last_node = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output

    @property
    def num_extend(self) -> int:
        return self.num_fill - self.num_prefix

    def __repr__(self):
        return f"Request({self.id!r})"


class RequestMemory:
    """Allocator, tree and every rule that moves blocks between them and a request."""

    def __init__(
        self,
        num_kv_tokens: int,
        block_size: int = 1,
        eviction_policy: str = "lru",
        is_radix: bool = True,
        is_newer: bool = False,
        tail: int = 0,
    ):
        """is_newer: the rules of 0.5.23. tail: tokens that tlru may drop."""
        self.is_newer = is_newer
        self.block_size = block_size
        self.num_blocks = num_kv_tokens // block_size
        self.is_radix = is_radix
        self.tree = RadixTree(eviction_policy, keeps_age=is_newer, tail=tail // block_size)
        allocator = TokenAllocator if block_size == 1 else PagedAllocator
        self.allocator = allocator(self.num_blocks)
        self.holders = {}  # requests with a row in the request table, as an ordered set
        self.evicted = []  # values of each evicted node, in order; whoever observes empties it

    # -- sizes, in tokens -----------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self.allocator.num_free * self.block_size

    @property
    def num_evictable(self) -> int:
        return self.tree.num_evictable * self.block_size

    @property
    def num_protected(self) -> int:
        return self.tree.num_protected * self.block_size

    def sizes(self) -> list:
        return [self.num_free, self.num_evictable, self.num_protected]

    def round_up(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) * self.block_size

    # -- looking up -----------------------------------------------------------------------------------------------

    def match(self, request: Request, num_tokens: int):
        """Match of the first num_tokens tokens. With the radix cache off nothing ever matches."""
        keys = request.content.block_keys(num_tokens) if self.is_radix else []
        return self.tree.match_and_split(keys, request.namespace)

    def begin_prefill(self, request: Request) -> None:
        """Match all but the last token (it must be computed to get logits); takes no lock and no memory."""
        match = self.match(request, request.num_tokens - 1)
        request.row = list(match.values)
        request.last_node = match.node
        request.num_prefix = request.num_protected = len(match.values) * self.block_size
        request.num_fill = request.num_tokens

    def lock(self, request: Request) -> None:
        self.tree.lock(request.last_node)

    def unlock(self, request: Request) -> None:
        self.tree.unlock(request.last_node)

    # -- allocating -----------------------------------------------------------------------------------------------

    def make_room(self, num_tokens: int) -> bool:
        """If fewer than num_tokens are free, evict that many (0.5.23: the deficit); returns whether they are free."""
        if self.num_free < num_tokens:
            self.evict(num_tokens - self.num_free if self.is_newer else num_tokens)
        return self.num_free >= num_tokens

    def evict(self, num_tokens: int) -> int:
        """Evict whole leaves until num_tokens went; returns the number of tokens that did."""
        evicted = self.tree.evict(-(-num_tokens // self.block_size)) if self.is_radix else []
        for values in evicted:
            self.allocator.free(values)
        self.evicted.extend(evicted)
        return sum(map(len, evicted)) * self.block_size

    def allocate_prefill(self, requests: Sequence[Request]) -> None:
        """Blocks for [num_prefix, num_fill) of each request: room for all first, then blocks in batch order.

        A paged allocator asks for one page per request on top, used or not.
        """
        num_wanted = sum(request.num_extend for request in requests)
        if self.block_size > 1:
            num_wanted += len(requests) * self.block_size
        self.make_room(num_wanted)
        for request in requests:
            self._grow_row(request, request.num_fill)

    def allocate_decode(self, requests: Sequence[Request]) -> None:
        """A block position for one more token of each request; asks for a whole page per request, needed or not."""
        self.make_room(len(requests) * self.block_size)
        for request in requests:
            self._grow_row(request, request.num_kv + 1)

    def num_tokens_next_decode(self, requests: Sequence[Request]) -> int:
        """Tokens that the next decode step must find free: one page per request that starts a page."""
        return sum(request.num_kv % self.block_size == 0 for request in requests) * self.block_size

    def _grow_row(self, request: Request, num_kv: int) -> None:
        self.holders[request] = None
        num_missing = -(-num_kv // self.block_size) - len(request.row)
        request.row.extend(self.allocator.take(num_missing))
        request.num_kv = num_kv

    # -- giving to the tree ---------------------------------------------------------------------------------------

    def insert_unfinished(self, request: Request, is_chunk: bool = False) -> None:
        """Share the whole blocks of [0, num_kv); order: insert, free duplicates, match again, unlock old, lock new."""
        request.num_prefix = request.num_kv
        if not self.is_radix:
            return
        keys = request.content.block_keys(request.num_kv)
        self._insert(request, keys, is_chunk)
        match = self.tree.match_and_split(keys, request.namespace)
        request.row[: len(match.values)] = match.values
        request.num_protected = len(match.values) * self.block_size
        self.tree.unlock(request.last_node)
        self.tree.lock(match.node)
        request.last_node = match.node

    def finish(self, request: Request) -> None:
        """Hand [0, num_kv) to the tree and let go; order: insert, free duplicates, free the partial tail, unlock."""
        keys = request.content.block_keys(request.num_kv) if self.is_radix else []
        self._insert(request, keys, is_chunk=False)
        self.allocator.free(request.row[len(keys) :])
        self._let_go(request)

    def retract(self, request: Request) -> None:
        """Free everything that is the request's own, insert nothing; order: whole blocks, partial tail, unlock."""
        num_own_from = request.num_protected // self.block_size
        num_whole = request.num_kv // self.block_size
        self.allocator.free(request.row[num_own_from:num_whole])
        self.allocator.free(request.row[num_whole:])
        self._let_go(request)

    def _insert(self, request: Request, keys, is_chunk: bool) -> None:
        """Insert, then free the request's own blocks that the tree already had."""
        if not self.is_radix:
            return
        values = request.row[: len(keys)]
        if self.is_newer:
            num_present = self._insert_newer(request, keys, values)
        else:
            num_present = self.tree.insert(keys, values, request.namespace, request.priority, is_chunk)
        self.allocator.free(request.row[request.num_protected // self.block_size : num_present])

    def _insert_newer(self, request: Request, keys, values) -> int:
        """0.5.23: no node counts a request twice, and the path gets a boundary where the prompt ends."""
        namespace, num_prompt = request.namespace, request.num_prompt // self.block_size
        num_present = self.tree.insert(keys, values, namespace, request.priority, num_counted=request.num_inserted)
        request.num_inserted = len(keys)
        if 0 < num_prompt < len(keys):
            prompt = keys[:num_prompt]
            self.tree.insert(prompt, values[:num_prompt], namespace, request.priority + 1, num_counted=num_prompt)
        return num_present

    def _let_go(self, request: Request) -> None:
        self.tree.unlock(request.last_node)
        del self.holders[request]
        request.row = []
        request.last_node = None
        request.num_kv = request.num_prefix = request.num_fill = request.num_protected = request.num_inserted = 0

    # -- checking -------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """The tree is sound, and every block is free, in the tree, or the own of exactly one holder."""
        self.tree.check_integrity()
        owned = list(self.allocator._free)
        owned += [value for node in self.tree.nodes() for value in node.values]
        for request in self.holders:
            owned += request.row[request.num_protected // self.block_size :]
        if sorted(owned) != list(range(1, self.num_blocks + 1)):
            lost = sorted(set(range(1, self.num_blocks + 1)) - set(owned))
            twice = sorted(block for block in set(owned) if owned.count(block) > 1) if len(owned) < 5000 else "?"
            raise OutOfKvMemory(f"blocks without an owner: {lost}; with two: {twice}")
