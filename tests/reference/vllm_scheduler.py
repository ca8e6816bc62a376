"""The vLLM v1 scheduler in plain Python: the oracle for kvbench's jitted one.

Synchronous scheduling, one full-attention group, no speculative decoding. A step is
    plan   = scheduler.schedule()       # running requests first, then admissions; blocks are decided here
    result = scheduler.update(plan)     # every request that caught up with its known tokens emits one
Requests are counted, not read: content comes from Request.block_keys, an early stop from num_output_to_eos.

Between steps always true: a request with blocks is running; a waiting one holds none and has nothing computed.
"""

from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from .block_hash import BlockKeys, BlockPool, BlockTables, TokenSequence

NEVER_ADMITTED = -1


@dataclass(frozen=True)
class VersionRules:
    """Every rule in which the mirrored versions differ."""

    # Freed blocks without content go to the head of the queue (each group tail first), not to its tail.
    frees_unhashed_to_front: bool
    # A running request that preempted itself does not end the running loop. Only visible under "priority".
    continues_after_self_preemption: bool
    # long_prefill_token_threshold is ignored while running + waiting hold a single request.
    lone_request_ignores_threshold: bool
    # The setting `watermark` exists. Read in the sources, not recorded.
    has_watermark: bool


VLLM_0_19 = VersionRules(
    frees_unhashed_to_front=False,
    continues_after_self_preemption=False,
    lone_request_ignores_threshold=False,
    has_watermark=False,
)
VLLM_0_33 = VersionRules(
    frees_unhashed_to_front=True,
    continues_after_self_preemption=True,
    lone_request_ignores_threshold=True,
    has_watermark=True,
)


@dataclass(frozen=True)
class SchedulerConfig:
    block_size: int
    num_blocks: int  # with the reserved block 0
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0  # 0: no threshold
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0  # part of num_blocks an admission must leave free
    max_num_active_seqs: int | None = None  # admitted at most; None: max_num_seqs
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    step_target: object = None  # a step_target.StepTarget: decodes first, prompts as the time allows

    @property
    def max_admitted(self) -> int:
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def num_watermark_blocks(self) -> int:
        return int(self.watermark * self.num_blocks)


@dataclass(eq=False)
class Request(TokenSequence):
    """Make one with new_request(); the scheduler changes it from add() on."""

    block_keys: BlockKeys = ()
    namespace: Hashable = None
    max_tokens: int = 1
    num_output_to_eos: int | None = None  # the eos would be this output (counted from 1); None: never
    priority: int = 0  # lower is more urgent
    num_prompt_tokens: int = 0
    arrival_index: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = NEVER_ADMITTED  # hit at the first admission, so recomputed tokens never count
    finish_reason: str | None = None  # stop, length, abort
    is_in_prefill: bool = False  # after the last step that it was in, tokens that are known were left to compute

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def urgency(self) -> tuple[int, int]:
        return (self.priority, self.arrival_index)


def new_request(
    request_id: str, num_prompt_tokens: int, max_tokens: int, block_keys: BlockKeys = (), **options
) -> Request:
    """options: namespace, priority, num_output_to_eos. block_keys may stay empty when caching is off."""
    return Request(
        request_id,
        None,
        num_prompt_tokens,
        block_keys=block_keys,
        max_tokens=max_tokens,
        num_prompt_tokens=num_prompt_tokens,
        **options,
    )


class PrefillCadence:
    """Which steps may prefill: the first, then one `interval` steps after the last that did, or any under a backlog."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.holds = self.carries = False
        self._num_steps = 0
        self._last = -interval
        self._has_backlog = False

    def open_step(self, running) -> None:
        is_early = self._num_steps + 1 - self._last < self.interval
        decodes = any(not request.is_in_prefill for request in running)
        self.holds = is_early and decodes and not self._has_backlog
        self.carries = False

    def note_queue(self, num_waiting: int) -> None:
        if not self.holds:
            self._has_backlog = num_waiting > 0

    def close_step(self, has_rows: bool) -> None:
        self._num_steps += has_rows
        if self.carries:
            self._last = self._num_steps


class FcfsQueue:
    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Sorted by (priority, arrival); a preempted request goes back to its place, not to the front."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=lambda r: r.urgency)

    put_back = add

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.pop(0)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


QUEUES = {"fcfs": FcfsQueue, "priority": PriorityQueue}


@dataclass
class PlannedRow:
    request: Request
    start: int  # computed tokens before this step; for an admission the hit tokens
    num_tokens: int
    block_ids: list[int]  # running: taken in this step; admitted: the whole table, hits first


@dataclass
class StepPlan:
    """Rows by request id, in scheduling order: running first, then admitted."""

    rows: dict[str, PlannedRow] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    num_budget_tokens: int = 0  # left over


@dataclass
class StepResult:
    emitted: list[str] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)  # (request id, reason)


class VllmScheduler:
    def __init__(self, config: SchedulerConfig, rules: VersionRules) -> None:
        if config.policy not in QUEUES:
            raise ValueError(f"policy {config.policy!r}: take one of {sorted(QUEUES)}")
        if config.watermark and not rules.has_watermark:
            raise ValueError("this version has no watermark: set watermark = 0")
        self.config = config
        self.rules = rules
        pool = BlockPool(config.num_blocks, rules.frees_unhashed_to_front)
        self.tables = BlockTables(pool, config.block_size, config.max_model_len, config.enable_prefix_caching)
        self.running: list[Request] = []
        self.waiting = QUEUES[config.policy]()
        self._unfinished: dict[str, Request] = {}
        self._num_arrived = 0
        self._running_index = 0
        self._threshold = 0
        self._cadence = PrefillCadence(config.prefill_schedule_interval)

    @property
    def pool(self) -> BlockPool:
        return self.tables.pool

    @property
    def num_unfinished(self) -> int:
        return len(self._unfinished)

    def add(self, request: Request) -> None:
        self._check_can_ever_run(request)
        request.content = self.tables.new_content(request.namespace, request.block_keys)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._unfinished[request.request_id] = request
        self.waiting.add(request)

    def abort(self, request_id: str) -> bool:
        """Waiting, running or preempted, also between schedule() and update(). False: unknown or finished."""
        request = self._unfinished.get(request_id)
        if request is None:
            return False
        queue = self.running if request in self.running else self.waiting
        queue.remove(request)
        self._finish(request, "abort")
        return True

    def schedule(self) -> StepPlan:
        plan = StepPlan(num_budget_tokens=self.config.max_num_batched_tokens)
        self._threshold = self._choose_threshold()
        self._cadence.open_step(self.running)
        if self.config.step_target is not None:
            self._schedule_decodes(plan)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
            self._cadence.note_queue(len(self.waiting))
        self._cadence.close_step(bool(plan.rows))
        for row in plan.rows.values():
            row.request.num_computed_tokens += row.num_tokens
            row.request.is_in_prefill = row.request.num_computed_tokens < row.request.num_tokens
        plan.evicted = self.pool.drain_evicted()
        return plan

    def update(self, plan: StepPlan) -> StepResult:
        result = StepResult()
        for request_id, row in plan.rows.items():
            request = row.request
            if request.finish_reason is not None:  # aborted since schedule()
                continue
            if request.num_computed_tokens < request.num_tokens:  # a chunk of the prompt: nothing to emit yet
                continue
            request.num_tokens += 1
            result.emitted.append(request_id)
            reason = self._stop_reason(request)
            if reason:
                self._finish(request, reason)
                result.finished.append((request_id, reason))
        if result.finished:
            self.running = [request for request in self.running if request.finish_reason is None]
        return result

    def check_integrity(self) -> None:
        self.tables.check_integrity()

    def _check_can_ever_run(self, request: Request) -> None:
        config = self.config
        if request.request_id in self._unfinished:
            raise ValueError(f"request {request.request_id}: the id is in use")
        if not 0 < request.num_prompt_tokens < config.max_model_len:
            raise ValueError(f"request {request.request_id}: the prompt must have 1 to max_model_len - 1 tokens")
        # The last output's KV is never computed, hence - 1.
        num_slots = min(request.num_prompt_tokens + request.max_tokens, config.max_model_len) - 1
        if -(-num_slots // config.block_size) > config.num_blocks - 1:
            raise ValueError(f"request {request.request_id}: would never fit into num_blocks - 1 blocks")

    # -- running requests

    def _schedule_running(self, plan: StepPlan) -> None:
        self._running_index = 0
        while self._running_index < len(self.running) and plan.num_budget_tokens > 0:
            request = self.running[self._running_index]
            num_new_tokens = self._num_running_tokens(request, plan.num_budget_tokens)
            is_held = self._cadence.holds and request.is_in_prefill
            if num_new_tokens == 0 or is_held or request.request_id in plan.rows:
                self._running_index += 1
                continue
            block_ids = self._allocate_or_preempt(request, num_new_tokens, plan)
            if block_ids is not None:
                self._add_row(plan, PlannedRow(request, request.num_computed_tokens, num_new_tokens, block_ids))
                self._cadence.carries |= request.is_in_prefill
                self._running_index += 1
            elif not self.rules.continues_after_self_preemption:
                break
            # Else the index stands on the next request already, since this one has left the list.

    def _schedule_decodes(self, plan: StepPlan) -> None:
        self._cadence.holds = True
        self._schedule_running(plan)
        self._cadence.holds = False
        decodes = [row.start + 1 for row in plan.rows.values()]
        started = next((r.num_computed_tokens for r in self.running if r.is_in_prefill), 0)
        budget = plan.num_budget_tokens
        plan.num_budget_tokens = self.config.step_target.num_tokens(decodes, started, budget, self.config.block_size)

    def _num_running_tokens(self, request: Request, num_budget_tokens: int) -> int:
        num_new_tokens = self._cut_to_threshold(request.num_tokens - request.num_computed_tokens)
        # One position stays free for the token to be sampled.
        num_new_positions = self.config.max_model_len - 1 - request.num_computed_tokens
        return min(num_new_tokens, num_budget_tokens, num_new_positions)

    def _choose_threshold(self) -> int:
        """Most tokens of one request in this step; 0: no threshold."""
        threshold, num_requests = self.config.long_prefill_token_threshold, len(self.running) + len(self.waiting)
        if num_requests < 2 and self.rules.lone_request_ignores_threshold:
            return 0
        if threshold and self.config.long_prefill_token_threshold_adaptive and num_requests:
            return max(threshold, self.config.max_num_batched_tokens // num_requests)
        return threshold

    def _cut_to_threshold(self, num_new_tokens: int) -> int:
        return min(num_new_tokens, self._threshold) if self._threshold else num_new_tokens

    def _allocate_or_preempt(self, request: Request, num_new_tokens: int, plan: StepPlan) -> list[int] | None:
        """None: the request itself was the last to be preempted."""
        while True:
            block_ids = self.tables.allocate(request, num_new_tokens)
            if block_ids is not None:
                return block_ids
            if self._preempt_one(plan) is request:
                return None

    def _preempt_one(self, plan: StepPlan) -> Request:
        victim = self._choose_victim()
        self.running.remove(victim)
        row = plan.rows.pop(victim.request_id, None)
        if row is not None:  # it had its turn in this step (priority only)
            plan.num_budget_tokens += row.num_tokens
            self._running_index -= 1
        self.tables.release(victim.request_id)  # content registered for tokens it will not compute now stays
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        plan.preempted.append(victim.request_id)
        return victim

    def _choose_victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self.running, key=lambda r: r.urgency)
        return self.running[-1]

    # -- waiting requests

    def _admit_waiting(self, plan: StepPlan) -> None:
        """Strictly head of line: the first request that cannot enter ends the step."""
        while self.waiting and plan.num_budget_tokens > 0 and len(self.running) < self.config.max_admitted:
            row = self._try_admit(self.waiting.peek(), plan.num_budget_tokens)
            if row is None:
                break
            self.waiting.pop()
            self._start(row, plan)

    def _try_admit(self, request: Request, num_budget_tokens: int) -> PlannedRow | None:
        hits = self.tables.match(request)
        num_hit_tokens = len(hits) * self.config.block_size
        num_left = request.num_tokens - num_hit_tokens
        if self._cadence.holds and num_left > 1:
            return None
        num_new_tokens = self._cut_to_threshold(num_left)
        if not self.config.enable_chunked_prefill and num_new_tokens > num_budget_tokens:
            return None
        num_new_tokens = min(num_new_tokens, num_budget_tokens)
        # Only from the second request on, so that a lone one always gets in.
        num_headroom_blocks = self.config.num_watermark_blocks if self.running else 0
        if self.config.scheduler_reserve_full_isl:
            num_slots = min(request.num_tokens, self.config.max_model_len)
            if not self.tables.fits(request, num_slots, hits, num_headroom_blocks):
                return None
        if self.tables.allocate(request, num_new_tokens, hits, num_headroom_blocks) is None:
            return None
        return PlannedRow(request, num_hit_tokens, num_new_tokens, self.tables.block_ids(request.request_id))

    def _start(self, row: PlannedRow, plan: StepPlan) -> None:
        request = row.request
        admitted = plan.resumed if request.num_preemptions else plan.new
        admitted.append(request.request_id)
        request.num_computed_tokens = row.start
        if request.num_cached_tokens == NEVER_ADMITTED:
            request.num_cached_tokens = row.start
        self._cadence.carries |= request.num_tokens - row.start > 1
        self.running.append(request)
        self._add_row(plan, row)

    def _add_row(self, plan: StepPlan, row: PlannedRow) -> None:
        plan.rows[row.request.request_id] = row
        plan.num_budget_tokens -= row.num_tokens

    # -- the end of a request

    def _stop_reason(self, request: Request) -> str | None:
        if request.num_output_tokens == request.num_output_to_eos:
            return "stop"
        if request.num_tokens >= self.config.max_model_len or request.num_output_tokens >= request.max_tokens:
            return "length"
        return None

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self.tables.release(request.request_id)
        del self._unfinished[request.request_id]
