"""The oracle of SGLang's scheduler (0.5.12 and 0.5.23, overlap off) with a fake model: every scheduled request emits.

Reads as: order the waiting queue -> admit a prefill batch under a budget -> else decode, retracting if memory is short.
Two verbs a step: schedule() decides and allocates, update(plan) applies the result; step() does both.

Lives here: batches, retraction, the loop. Does not belong: order and budget (sglang_admission), blocks (sglang_memory).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from .sglang_admission import AdmissionResult, PrefillAdmission, SchedulerConfig, WaitingOrder
from .sglang_memory import Request, RequestMemory


class Mode(Enum):
    EXTEND = "EXTEND"
    MIXED = "MIXED"
    DECODE = "DECODE"


@dataclass(eq=False)
class Batch:
    """Requests that run together. The running batch is one too: its is_full bars prefill until a request leaves."""

    requests: list = field(default_factory=list)
    mode: Mode | None = None
    rows: list = field(default_factory=list)  # (id, prefix tokens, extend tokens), or (id, tokens) when decoding
    chunked: Request | None = None  # the request this batch leaves unfinished
    decoding: list = field(default_factory=list)  # requests of a MIXED batch that only decode
    is_full: bool = False
    num_prefill: int = 0  # tokens that it computed as a prefill


@dataclass
class Plan:
    """What schedule() decided.

    batch is None when nothing runs, which does not mean idle: a running batch that was full and has finished is only
    emptied in such a step, and the waiting requests are admitted in the next.
    """

    batch: Batch | None
    retracted: list = field(default_factory=list)
    oom_aborted: list = field(default_factory=list)
    evicted: list = field(default_factory=list)  # values of each evicted node, in order
    sizes: list = field(default_factory=list)  # [free, evictable, protected] after the decision


@dataclass
class Result:
    """What update() did."""

    emitted: list = field(default_factory=list)
    finished: list = field(default_factory=list)


@dataclass
class Outcome:
    plan: Plan
    result: Result


class SglangScheduler:
    def __init__(self, config: SchedulerConfig, shuffle: Callable | None = None):
        self.config = config
        is_radix = not config.disable_radix_cache
        self.memory = RequestMemory(
            config.num_kv_tokens, config.page_size, config.eviction_policy, is_radix, config.is_newer, config.tail
        )
        self.order = WaitingOrder(config, self.memory, shuffle)
        self.waiting = []
        self.running = Batch()
        self.last_batch: Batch | None = None
        self.chunked: Request | None = None
        self.new_token_ratio = config.init_new_token_ratio
        self.num_entries = 0

    # -- what callers do ------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        self._join(request)

    def _join(self, request: Request) -> None:
        self.num_entries += 1
        request.entry, request.num_processed_then = self.num_entries, self.order.num_processed
        self.waiting.append(request)

    def abort(self, request_id) -> bool:
        """Waiting: gone at once. Else flagged: it takes part until its next token, then ends as usual.

        A request in a chunked prefill still computes its remaining chunks. False if the id is not here.
        """
        for request in self.waiting:
            if request.id == request_id:
                self.waiting.remove(request)
                request.finish_reason = "abort"
                return True
        for request in self.memory.holders:
            if request.id == request_id:
                request.is_abort_wanted = True
                return True
        return False

    @property
    def is_idle(self) -> bool:
        """Nothing to schedule, now or later, unless a request is added."""
        return not (self.waiting or self.memory.holders)

    def step(self) -> Outcome:
        plan = self.schedule()
        return Outcome(plan, self.update(plan))

    def check_integrity(self) -> None:
        self.memory.check_integrity()

    # -- deciding -------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        self.memory.evicted = []
        plan = Plan(batch=None)
        if self.chunked is not None:
            # A chunk is shared only now, one step after it was computed.
            self.memory.insert_unfinished(self.chunked, is_chunk=True)
        self._merge_last_prefill()
        if self.config.is_newer:
            self._drop_finished()
        plan.batch = self._prefill_batch() or self._decode_batch(plan)
        if self.is_idle:
            self.new_token_ratio = self.config.init_new_token_ratio
        if plan.batch is not None:
            self.order.num_processed += plan.batch.num_prefill  # a decode counts the batch's prefill again
        self.last_batch = plan.batch
        plan.evicted = self.memory.evicted
        plan.sizes = self.memory.sizes()
        return plan

    def _merge_last_prefill(self) -> None:
        """Requests of the last prefill that still live join the running batch."""
        last = self.last_batch
        if last is None or last.mode is Mode.DECODE:
            return
        num_before = len(last.requests)
        excluded = (self.chunked, last.chunked)
        last.requests = [r for r in last.requests if r.finish_reason is None and r not in excluded]
        if len(last.requests) < num_before:
            self.running.is_full = False
        if not last.requests:
            return
        if self.running.requests:
            self.running.requests += last.requests
        else:
            self.running = Batch(requests=last.requests, num_prefill=last.num_prefill)  # is_full went with the old one

    def _drop_finished(self) -> None:
        """0.5.23: at every step; and an empty running batch bars nobody."""
        num_before = len(self.running.requests)
        self.running.requests = [r for r in self.running.requests if r.finish_reason is None]
        if len(self.running.requests) < num_before or not self.running.requests:
            self.running.is_full = False

    def _prefill_batch(self) -> Batch | None:
        if self.chunked is None:
            if self.running.is_full or not self.waiting:
                return None
            if self._num_free_seats() <= 0:
                self.running.is_full = True
                return None
        self.order.sort(self.waiting)
        admission = self._admit()
        if not admission.admitted:
            return None
        self.waiting = [r for r in self.waiting if r not in admission.admitted]
        self.chunked = admission.new_chunked or self.chunked
        if self.chunked is not None:
            self.chunked.is_mid_prefill = True
        batch = Batch(requests=list(admission.admitted), mode=Mode.EXTEND, chunked=self.chunked)
        batch.rows = [(r.id, r.num_prefix, r.num_extend) for r in batch.requests]
        self._note_hits(batch.requests)
        self.memory.allocate_prefill(batch.requests)
        if self.config.mixes and self.running.requests:
            self._mix_with_running(batch)
        batch.num_prefill = sum(row[2] for row in batch.rows)
        return batch

    def _num_free_seats(self, num_rows_back: int = 0) -> int:
        """Requests that may join: bounded by the running batch and by rows of the request table.

        A finished request keeps its place in the running batch until the next decode step drops it, but no row. A
        chunked request has a row, so while it goes on it counts twice: as a row, and as the first one admitted.
        """
        num_places = self.config.max_running_requests - len(self.running.requests)
        num_rows = self.config.max_running_requests - len(self.memory.holders) + num_rows_back
        return min(num_places, num_rows)

    def _admit(self) -> PrefillAdmission:
        num_mixed = len(self.running.requests) if self.config.mixes else 0
        admission = PrefillAdmission(
            self.config,
            self.memory,
            self.running.requests,
            self.new_token_ratio,
            self.config.max_prefill_tokens,
            self.config.chunked_prefill_size,
            num_mixed,
        )
        if self.chunked is not None:
            self.chunked.num_fill = self.chunked.num_tokens
            if not admission.add_chunked(self.chunked, self._chunk_share(admission)):
                self.chunked = None
        num_rows_back = len(admission.admitted) if self.config.is_newer else 0  # the chunk has its row already
        for request in self.waiting:
            if self.config.is_newer and admission.state() is AdmissionResult.OTHER:
                break
            if len(admission.admitted) >= self._num_free_seats(num_rows_back):
                self.running.is_full = True
            if self.running.is_full:
                break
            self.memory.begin_prefill(request)
            result = admission.add(request)
            if result is AdmissionResult.NO_TOKEN:
                self.running.is_full = self._is_full_when_refused(bool(admission.admitted or self.running.requests))
            if result is not AdmissionResult.CONTINUE:
                break
        return admission

    def _is_full_when_refused(self, has_others: bool) -> bool:
        """Memory is short for the next request: whether the running batch bars prefill until a request leaves."""
        return not self.config.is_newer or has_others

    def _chunk_share(self, admission) -> int | None:
        """shortest-prefill-first: the chunk leaves room for those in front who need less than its rest."""
        size, budget = self.config.page_size, admission.rem_chunk
        if self.config.schedule_policy != "shortest-prefill-first" or budget < 2 * size:
            return None
        num_left, num_reserved = self.chunked.num_extend, 0
        for request in self.waiting:
            num_needed = self.order.num_to_prefill(request)
            num_pages = self.memory.round_up(num_needed)
            if num_needed >= num_left or num_reserved + num_pages > budget - size:
                break
            num_reserved += num_pages
        return (budget - num_reserved) // size * size if num_reserved else None

    def _note_hits(self, requests) -> None:
        for request in requests:
            if request.num_cached is None:
                request.num_cached = request.num_prefix

    def _mix_with_running(self, batch: Batch) -> None:
        """The running batch moves into the prefill batch, one token each; no decay of the ratio.

        0.5.12 does not ask for memory; in 0.5.23 the running batch sits the step out if it is short.
        """
        decoding = [r for r in self.running.requests if r.finish_reason is None]
        if self.config.is_newer and not self._is_decode_room(decoding):
            return
        self.running = Batch(is_full=self.running.is_full)
        if not decoding:
            return
        batch.rows += [(r.id, r.num_kv, 1) for r in decoding]
        self.memory.allocate_decode(decoding)
        batch.requests += decoding
        batch.decoding = decoding
        batch.mode = Mode.MIXED

    def _decode_batch(self, plan: Plan) -> Batch | None:
        batch = self.running
        num_before = len(batch.requests)
        if not num_before:
            return None
        batch.requests = [r for r in batch.requests if r.finish_reason is None]
        if not batch.requests:
            batch.is_full = False
            return None
        if self._is_decode_room(batch.requests):
            decayed = self.new_token_ratio - self.config.new_token_ratio_decay
            self.new_token_ratio = max(decayed, self.config.min_new_token_ratio)
        else:
            self._retract(batch, plan)
        if len(batch.requests) < num_before:
            batch.is_full = False
        if not batch.requests:
            return None
        self.memory.allocate_decode(batch.requests)
        batch.mode = Mode.DECODE
        batch.rows = [(r.id, r.num_kv) for r in batch.requests]
        return batch

    def _is_decode_room(self, requests) -> bool:
        return self.memory.make_room(self.memory.num_tokens_next_decode(requests))

    def _retract(self, batch: Batch, plan: Plan) -> None:
        """Take requests out, at least one, until the rest can decode: fewest outputs first, ties longest prompt.

        The survivors stay in the order of the sort. If the last one cannot decode either, it is aborted.
        """
        by_priority = self.config.retraction_policy == "priority"

        def rank(request):
            return (request.priority if by_priority else 0), request.num_output, -request.num_prompt

        kept = sorted(batch.requests, key=rank, reverse=True)
        is_first = True
        while len(kept) > 1 and (is_first or not self._is_decode_room(kept)):
            is_first = False
            plan.retracted.append(self._release(kept))
        if len(kept) == 1 and not self._is_decode_room(kept):
            aborted = self._release(kept)
            aborted.finish_reason = "oom"
            plan.oom_aborted.append(aborted)
        batch.requests = kept
        self.new_token_ratio = self._ratio_after_retraction(kept)
        for request in plan.retracted:
            request.num_retractions += 1
            self._join(request)

    def _release(self, kept: list) -> Request:
        """Retract the last of kept, then make room for some decode steps of the others."""
        request = kept.pop()
        self.memory.retract(request)
        self.memory.make_room(len(kept) * self.config.retract_decode_steps)
        return request

    def _ratio_after_retraction(self, requests) -> float:
        num_decoded = sum(r.num_output for r in requests)
        num_expected = sum(r.max_new_tokens for r in requests)
        return min(1.0, (num_decoded + self.config.retract_decode_steps * len(requests)) / (num_expected + 1))

    # -- applying -------------------------------------------------------------------------------------------------

    def update(self, plan: Plan) -> Result:
        """The fake model has run: every request emits, but for one whose prefill goes on."""
        result = Result()
        if plan.batch is None:
            return result
        is_decode = plan.batch.mode is Mode.DECODE
        if is_decode:
            self.memory.allocator.begin_group()
        for request in plan.batch.requests:
            if request.is_mid_prefill:
                request.is_mid_prefill = False
                continue
            self._emit(request, result)
            if request.finish_reason is None and not is_decode and request not in plan.batch.decoding:
                self.memory.insert_unfinished(request)
        if is_decode:
            self.memory.allocator.end_group()
        return result

    def _emit(self, request: Request, result: Result) -> None:
        request.num_output += 1
        result.emitted.append(request)
        if request.is_abort_wanted:
            request.finish_reason = "abort"
        elif request.num_output >= request.max_new_tokens:
            request.finish_reason = "length"
        if request.finish_reason is not None:
            self.memory.finish(request)
            result.finished.append(request)
