"""Who may enter SGLang's next prefill batch: the order of the waiting queue, then the admission budget.

Does not belong: batches and steps (sglang_scheduler), blocks (sglang_memory).
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from .radix import RadixTree
from .sglang_memory import Request, RequestMemory

LPM_FALLBACK_NUM_WAITING = 128  # above this, lpm neither sorts nor matches


@dataclass(frozen=True)
class SchedulerConfig:
    num_kv_tokens: int
    page_size: int = 1
    max_running_requests: int = 256
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = None
    enable_mixed_chunk: bool = False
    schedule_policy: str = "fcfs"  # fcfs lpm dfs-weight lof random priority
    eviction_policy: str = "lru"
    disable_radix_cache: bool = False
    ignore_eos: bool = False
    init_new_token_ratio: float = 0.7
    min_new_token_ratio: float = 0.098
    new_token_ratio_decay: float = (0.7 - 0.098) / 600
    clip_max_new_tokens: int = 4096
    retract_decode_steps: int = 20
    in_batch_check_threshold: int = 32
    in_batch_deprioritize_threshold: int = 32
    random_seed: int = 0
    is_newer: bool = False  # 0.5.23; else 0.5.12
    retraction_policy: str = "length"
    tail: int = 0  # tokens that tlru may drop

    @property
    def mixes(self) -> bool:
        """Decodes join the steps of chunks; without chunks none do."""
        return self.enable_mixed_chunk and self.chunked_prefill_size is not None


# -- order of the waiting queue ----------------------------------------------------------------------------------


class WaitingOrder:
    """Sorts the waiting queue in place; all sorts are stable, so ties keep the queue's order.

    shuffle  called with the queue by the random policy; default: random.Random(config.random_seed).shuffle
    """

    def __init__(self, config: SchedulerConfig, memory: RequestMemory, shuffle: Callable | None = None):
        self._config = config
        self._memory = memory
        # Without a radix cache there is nothing to be aware of.
        is_blind = config.disable_radix_cache and config.schedule_policy in ("lpm", "dfs-weight", "hrrn")
        self.num_processed = 0  # tokens of all batches, as hrrn counts them
        self._num_unsighted = 0  # sorts that looked at no prefix
        self._sort = {
            "fcfs": lambda waiting: None,
            "lpm": self._longest_prefix_first,
            "dfs-weight": self._heaviest_subtree_first,
            "lof": lambda waiting: waiting.sort(key=lambda request: -request.max_new_tokens),
            "hrrn": self._highest_ratio_first,
            "shortest-prefill-first": self._shortest_prefill_first,
            "random": shuffle or random.Random(config.random_seed).shuffle,
            "priority": lambda waiting: waiting.sort(key=lambda request: -request.priority),
        }["fcfs" if is_blind else config.schedule_policy]

    def sort(self, waiting: list) -> None:
        self._sort(waiting)
        is_matched = self._config.schedule_policy in ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
        if self._config.schedule_policy in ("lpm", "hrrn") and len(waiting) > LPM_FALLBACK_NUM_WAITING:
            is_matched = False
        if self._config.is_newer and waiting and not is_matched:
            self._refresh(waiting)

    def _refresh(self, waiting) -> None:
        """Every 32nd time the prefixes of those in front are touched, the head's last, where lru evicts."""
        if self._config.disable_radix_cache or self._config.eviction_policy != "lru":
            return
        if self._num_unsighted % 32 == 0:
            for request in reversed(waiting[:LPM_FALLBACK_NUM_WAITING]):
                self._memory.match(request, request.num_tokens)
        self._num_unsighted += 1

    def _longest_prefix_first(self, waiting) -> None:
        if len(waiting) > LPM_FALLBACK_NUM_WAITING:
            return
        deprioritized = self._match_all(waiting)
        waiting.sort(key=lambda r: float("inf") if r in deprioritized else -self.num_matched(r))

    def num_matched(self, request) -> int:
        """Tokens found cached; 0.5.23 leaves out the last one, which is computed in any case."""
        return min(request.num_prefix, request.num_tokens - 1) if self._config.is_newer else request.num_prefix

    def num_to_prefill(self, request) -> int:
        return max(1, request.num_tokens - self.num_matched(request))

    def _highest_ratio_first(self, waiting) -> None:
        """Tokens computed while it waited to those of its prompt that it needs; who needs none goes first."""
        if len(waiting) > LPM_FALLBACK_NUM_WAITING:
            return
        deprioritized = self._match_all(waiting)

        def rank(request):
            uncached = request.num_prompt - self.num_matched(request)
            if request in deprioritized:
                return float("inf"), request.id
            if uncached <= 0:
                return -float("inf"), request.id
            return -(max(0, self.num_processed - request.num_processed_then) / uncached), request.id

        waiting.sort(key=rank)

    def _shortest_prefill_first(self, waiting) -> None:
        deprioritized = self._match_all(waiting)
        waiting.sort(key=lambda r: (r in deprioritized, self.num_to_prefill(r), r.entry))

    def _match_all(self, waiting) -> set:
        """Match every request in full; returns those whose prefix an earlier waiting request will compute.

        A request sorted back is not itself entered in the in-batch tree; one with a long cached prefix neither looks
        nor enters.
        """
        in_batch, deprioritized = RadixTree(), set()
        for request in waiting:
            match = self._memory.match(request, request.num_tokens)
            request.last_node = match.node
            request.num_prefix = len(match.values) * self._memory.block_size
            if request.num_prefix > self._config.in_batch_check_threshold:
                continue
            keys = request.content.in_batch_keys(request.num_tokens)
            num_shared = len(in_batch.match_and_split(keys, request.namespace).values) * request.content.in_batch_width
            if num_shared >= self._config.in_batch_deprioritize_threshold:
                deprioritized.add(request)
            else:
                in_batch.insert(keys, [0] * len(keys), request.namespace)
        return deprioritized

    def _heaviest_subtree_first(self, waiting) -> None:
        """Depth first; children by falling number of requests below, ties in child-dict order; a node's own last."""
        self._match_all(waiting)
        ending_at = defaultdict(list)
        for request in waiting:
            ending_at[request.last_node].append(request)
        root = self._memory.tree.root
        weight = {}
        for node in reversed([root, *self._memory.tree.nodes()]):  # children before parents
            weight[node] = len(ending_at[node]) + sum(weight[child] for child in node.children.values())
        waiting.clear()
        stack = [(root, False)]
        while stack:
            node, are_children_done = stack.pop()
            if are_children_done:
                waiting.extend(ending_at[node])
                continue
            stack.append((node, True))
            heaviest_first = sorted(node.children.values(), key=lambda child: -weight[child])
            stack.extend((child, False) for child in reversed(heaviest_first) if weight[child])


# -- admission of a prefill batch --------------------------------------------------------------------------------


class AdmissionResult(Enum):
    CONTINUE = "CONTINUE"  # look at the next request
    NO_TOKEN = "NO_TOKEN"  # memory is the limit: the running batch counts as full
    OTHER = "OTHER"  # the step's own budget is the limit


class PrefillAdmission:
    """Budget of one prefill batch. Offsets grow as requests enter; free and evictable are read afresh each time."""

    def __init__(
        self,
        config,
        memory,
        running,
        new_token_ratio,
        max_prefill_tokens,
        chunk_tokens,
        num_mixed_decode=0,
        max_requests=None,
    ):
        self._config = config
        self._memory = memory
        self._running = list(running)
        self._max_requests = max_requests
        self.rem_input = max_prefill_tokens - num_mixed_decode
        self.rem_chunk = None if chunk_tokens is None else chunk_tokens - num_mixed_decode
        self._cur_offset = num_mixed_decode
        if config.is_newer and config.ignore_eos:
            new_token_ratio = 1.0
        # One sum, then one addition: the order of float operations decides the last bit.
        self._total_offset = num_mixed_decode + sum([self._expected_growth(r) * new_token_ratio for r in running])
        self._eos_states = None  # [(tokens left, tokens occupied)] of the ignore-eos rule
        self.admitted = []
        self.new_chunked = None
        self.has_chunk = False  # the chunk that went on is cut again

    def _expected_growth(self, request) -> int:
        return min(request.max_new_tokens - request.num_output, self._config.clip_max_new_tokens)

    @property
    def rem_total(self):
        """Tokens left if every admitted and running request grows as expected."""
        return self._memory.num_free + self._memory.num_evictable - self._total_offset

    @property
    def cur_rem(self):
        """Tokens left for prefill right now."""
        return self._memory.num_free + self._memory.num_evictable - self._cur_offset

    def state(self) -> AdmissionResult:
        if self.rem_total <= 0 or self.cur_rem <= 0:
            return AdmissionResult.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return AdmissionResult.OTHER
        return AdmissionResult.CONTINUE

    def add_chunked(self, request: Request, num_shared: int | None = None) -> bool:
        """The request whose prefill was cut continues, whatever the budget; returns whether it is cut again.

        num_shared  what shortest-prefill-first leaves it of the chunk
        """
        self.has_chunk = False
        num_allowed = min(self.rem_chunk, int(self.rem_total))
        if num_allowed <= 0:
            num_allowed = self.rem_chunk
        if num_shared is not None:
            num_allowed = min(num_allowed, num_shared)
        is_cut = request.num_extend > num_allowed
        if is_cut:
            request.num_fill = request.num_prefix + num_allowed
        self._admit(request, is_cut)
        self.has_chunk = is_cut
        return is_cut

    def add(self, request: Request) -> AdmissionResult:
        """Admit the request (locking its prefix, cutting it to a chunk) or say why not."""
        if self._max_requests is not None and len(self.admitted) >= self._max_requests:
            return AdmissionResult.OTHER
        if self._config.ignore_eos and self._config.disable_radix_cache:
            return self._add_ignoring_eos(request)
        refusal = None if self._config.is_newer else self._refusal(request)
        if refusal is None:
            # The lock moves the prefix out of evictable, so the same test is made again.
            self._memory.lock(request)
            refusal = self._refusal(request) or self._cut_to_chunk(request)
            if refusal is not None:
                self._memory.unlock(request)
        if refusal is not None:
            return refusal
        self._admit(request, is_cut=request is self.new_chunked)
        return self.state()

    def _refusal(self, request) -> AdmissionResult | None:
        num_growth = min(max(request.max_new_tokens - request.num_output, 0), self._config.clip_max_new_tokens)
        if request.num_extend + num_growth + self._memory.block_size >= self.rem_total:
            return AdmissionResult.NO_TOKEN
        is_bounded = not self._config.is_newer or self.rem_chunk is None
        if is_bounded and self._memory.round_up(request.num_extend) >= self.rem_input and self.admitted:
            return AdmissionResult.OTHER
        return None

    def _cut_to_chunk(self, request) -> AdmissionResult | None:
        if self.rem_chunk is None or self._memory.round_up(request.num_extend) <= self.rem_chunk:
            return None
        if self._config.schedule_policy == "shortest-prefill-first" and self.has_chunk:
            return AdmissionResult.OTHER
        num_kept = self.rem_chunk // self._memory.block_size * self._memory.block_size
        if num_kept <= 0:
            return AdmissionResult.OTHER
        request.num_fill = request.num_prefix + num_kept
        self.new_chunked = request
        return None

    def _admit(self, request, is_cut: bool) -> None:
        """A cut request reserves no output. One page per request is set aside on top."""
        num_extend = self._memory.round_up(request.num_extend)
        num_growth = 0 if is_cut else min(request.max_new_tokens, self._config.clip_max_new_tokens)
        self._total_offset += num_extend + num_growth + self._memory.block_size
        self._cur_offset += num_extend + self._memory.block_size
        self.rem_input -= num_extend
        if self.rem_chunk is not None:
            self.rem_chunk -= num_extend
        self.admitted.append(request)

    # -- the rule for ignore_eos without a radix cache: outputs are known, so simulate who frees when -------------

    def _add_ignoring_eos(self, request) -> AdmissionResult:
        num_extend = self._memory.round_up(request.num_extend)
        num_asked = num_extend + (self._memory.block_size if self._config.is_newer else 0)
        if num_asked > min(self.cur_rem, self.rem_total):
            return AdmissionResult.NO_TOKEN
        self._note_eos_state(request)
        if not self._do_all_fit_until_they_end(self.cur_rem - num_asked):
            return AdmissionResult.NO_TOKEN
        if self.rem_chunk is not None and num_extend > self.rem_chunk:
            if self.rem_chunk <= 0:
                return AdmissionResult.OTHER
            if request.num_extend > self.rem_chunk:
                request.num_fill = request.num_prefix + self.rem_chunk
                self.new_chunked = request
        self._admit(request, is_cut=request is self.new_chunked)
        return self.state()

    def _note_eos_state(self, request) -> None:
        def state_of(r):
            return r.max_new_tokens - r.num_output, r.num_tokens

        if self._eos_states is None:
            states = [state_of(r) for r in [request, *self._running, *self.admitted]]
            self._eos_states = sorted((s for s in states if s[0] > 0), key=lambda s: s[0])
            return
        num_left, num_occupied = state_of(request)
        if num_left <= 0:
            return
        # The engine falls back to the LAST position, not to the end, when all others have less left.
        fallback = max(len(self._eos_states) - 1, 0)
        place = next((i for i, s in enumerate(self._eos_states) if num_left <= s[0]), fallback)
        self._eos_states.insert(place, (num_left, num_occupied))

    def _do_all_fit_until_they_end(self, num_free: int) -> bool:
        num_freed = 0
        for i, (num_left, num_occupied) in enumerate(self._eos_states):
            num_alive = len(self._eos_states) - i
            if num_free + num_freed - num_left * num_alive <= num_alive:  # one token each in reserve
                return False
            num_freed += num_occupied
        return True
