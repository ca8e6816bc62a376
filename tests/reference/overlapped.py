"""Both engines with planning and execution overlapped: a step is planned before the results of the one before.

The order of the host's work: plan step n, launch it, wait for step n - 1 and apply its results, plan step n + 1.
Lives here: what each scheduler does with results that come late, and the clock of host and device.
"""

from collections import deque
from dataclasses import dataclass

from .cost import HOST, Step
from .engine import TimedEngine
from .sglang_scheduler import Mode, Result
from .timed import SglangSteps, VllmSteps, _Sglang, _Vllm
from .vllm_scheduler import StepResult

# -- vLLM: async scheduling --------------------------------------------------------------------------------------


class _AsyncVllm(_Vllm):
    """A token that is being made is planned behind as a placeholder, but for the last that max_tokens allows."""

    def schedule(self):
        plan = super().schedule()
        for row in plan.rows.values():
            request = row.request
            row.emits = request.num_computed_tokens >= request.num_tokens + placeholders(request)
            if row.emits:
                request.num_placeholders = 1
        return plan

    def _num_running_tokens(self, request, num_budget_tokens):
        coming = placeholders(request)
        if coming and request.num_output_tokens + coming >= request.max_tokens:
            return 0
        num_new_tokens = self._cut_to_threshold(request.num_tokens + coming - request.num_computed_tokens)
        num_new_positions = self.config.max_model_len - 1 - request.num_computed_tokens
        return min(num_new_tokens, num_budget_tokens, num_new_positions)

    def _preempt_one(self, plan):
        victim = super()._preempt_one(plan)
        victim.num_placeholders = 0
        return victim

    def update(self, plan, following):
        """Results of `plan`; `following` is planned already, and has placeholders of its own."""
        result = StepResult()
        for request_id, row in plan.rows.items():
            request = row.request
            if request.finish_reason is not None or not row.emits:
                continue
            request.num_tokens += 1
            next_row = following.rows.get(request_id) if following else None
            request.num_placeholders = int(next_row is not None and next_row.emits)
            result.emitted.append(request_id)
            reason = self._stop_reason(request)
            if reason:
                (self.running if request in self.running else self.waiting).remove(request)
                self._finish(request, reason)
                result.finished.append((request_id, reason))
        return result


def placeholders(request):
    return getattr(request, "num_placeholders", 0)


class AsyncVllmSteps(VllmSteps):
    scheduler_class = _AsyncVllm

    def __init__(self, config, rules):
        super().__init__(config, rules)
        self._flights = deque()

    @property
    def num_flights(self):
        return len(self._flights)

    @property
    def is_idle(self):
        return super().is_idle and not self._flights

    def schedule(self):
        plan = super().schedule()
        if plan.rows:
            self._flights.append(self._planned)
            plan.emitting = [number for number, row in self._planned.rows.items() if row.emits]
        return plan

    def commit(self):
        """Results of the oldest step that is under way."""
        planned = self._flights.popleft()
        result = self.scheduler.update(planned, self._flights[0] if self._flights else None)
        return result.emitted, [number for number, _ in result.finished]


# -- SGLang: the overlap loop ------------------------------------------------------------------------------------


class _OverlapSglang(_Sglang):
    """Ends become known a step late; who was retracted or has ended meanwhile gets no token."""

    def update(self, plan, following):
        result = Result()
        batch = plan.batch
        ahead = set()
        if following is not None and following.batch.mode is Mode.DECODE:
            ahead = set(following.batch.requests)
        elif following is not None:
            ahead = set(following.batch.decoding)
        if batch.mode is Mode.DECODE:
            self.memory.allocator.begin_group()
        for request in batch.requests:
            if request is batch.chunked or request not in self.memory.holders:
                continue
            request.num_kv -= request in ahead  # the step that follows has reserved one more
            self._emit(request, result)
            if request.finish_reason is None:
                if batch.mode is not Mode.DECODE and request not in batch.decoding:
                    self.memory.insert_unfinished(request)
                request.num_kv += request in ahead
        if batch.mode is Mode.DECODE:
            self.memory.allocator.end_group()
        return result


class OverlapSglangSteps(SglangSteps):
    scheduler_class = _OverlapSglang

    def __init__(self, config):
        super().__init__(config)
        self._flights = deque()

    @property
    def num_flights(self):
        return len(self._flights)

    @property
    def is_idle(self):
        return super().is_idle and not self._flights

    def schedule(self):
        plan = super().schedule()
        if plan.rows:
            self._flights.append(self._planned)
            batch = self._planned.batch
            plan.emitting = [r.id for r in batch.requests if r is not batch.chunked]
        return plan

    def commit(self):
        planned = self._flights.popleft()
        result = self.scheduler.update(planned, self._flights[0] if self._flights else None)
        return [r.id for r in result.emitted], [r.id for r in result.finished]


# -- the clock ---------------------------------------------------------------------------------------------------


@dataclass
class OverlappedEngine(TimedEngine):
    """`now` is the host's clock: when it plans, and when it deals with results."""

    device_end: int = 0
    host_ns: int = 0
    exposed_ns: int = 0

    def _step(self):
        plan = self.scheduler.schedule()
        self._note_preempted(plan)
        if not plan.rows:
            if not self.scheduler.num_flights:
                return False
            self.now = max(self.now, self.device_end)
            self._commit()
            return True
        self._note_admitted(plan)
        chunks = [(n, start) for number, start, n in plan.rows if number not in self._decoding]
        contexts = [start + 1 for number, start, _ in plan.rows if number in self._decoding]
        parts = Step(self.tables, chunks, len(contexts), sum(contexts)).resources()
        host, device = parts[HOST], sum(parts) - parts[HOST]
        begin = max(self.now, self.device_end)
        start = max(self.now + host, self.device_end)
        now, self.now = self.now, begin
        self._account(plan, start + device - begin, host, len(contexts), chunks)
        self.now = now
        self.host_ns += host
        self.exposed_ns += start - begin
        self.now = max(now + host, self.device_end)
        self.device_end = start + device
        if self.scheduler.num_flights > 1:
            self._commit()
        self._decoding |= {n for n in plan.emitting if self.rows[n].state == "in engine"}
        return True

    def _commit(self):
        """Who decodes was noted when its step was launched; a token that comes after a preemption changes nothing."""
        decoding = set(self._decoding)
        super()._commit()
        self._decoding &= decoding
