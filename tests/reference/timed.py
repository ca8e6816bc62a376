"""The reference schedulers as an event loop sees them: sequences in, plans with token counts out.

Both answer to the same few verbs, so that tests/reference/engine.py is written once. What the loop needs and a
scheduler does not keep (tokens lost at a preemption, outputs that end before they were declared to) is noted here.
"""

from dataclasses import dataclass, field

from . import sglang_memory, vllm_scheduler
from .sglang_scheduler import Mode, SglangScheduler
from .vllm_scheduler import VllmScheduler


def block_contents(runs, block_tokens):
    """Contents of the whole blocks of runs of tokens (stream, start, length): canonical, whatever the cuts."""
    blocks, current, room = [], [], block_tokens
    for stream, start, length in runs:
        while length:
            take = min(length, room)
            if current and current[-1][0] == stream and current[-1][1] + current[-1][2] == start:
                current[-1] = (stream, current[-1][1], current[-1][2] + take)
            else:
                current.append((stream, start, take))
            start, length, room = start + take, length - take, room - take
            if not room:
                blocks.append(tuple(current))
                current, room = [], block_tokens
    return blocks


def tokens_of(runs):
    return [(stream, start + i) for stream, start, length in runs for i in range(length)]


@dataclass(eq=False)
class Sequence:
    """One sequence as the scheduler meets it. runs: prompt and all its outputs."""

    number: int
    runs: list
    num_prompt: int
    num_output: int  # what it will really produce
    max_tokens: int  # what the scheduler is told
    namespace: int
    priority: int  # smaller is more urgent
    arrival_ns: int = 0


@dataclass
class Plan:
    """rows: (sequence number, first token, tokens). admitted: sequence number -> tokens found in the cache."""

    rows: list = field(default_factory=list)
    admitted: dict = field(default_factory=dict)
    preempted: dict = field(default_factory=dict)  # sequence number -> computed tokens that it lost
    failed: list = field(default_factory=list)
    num_evicted: int = 0  # blocks


# -- vLLM --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class UrgentRequest(vllm_scheduler.Request):
    """Ties of priority go by the time of arrival, not by the order of the queue's filling."""

    arrival_ns: int = 0

    @property
    def urgency(self):
        return (self.priority, self.arrival_ns, self.request_id)


class _Vllm(VllmScheduler):
    """Notes what a victim had computed."""

    def _choose_victim(self):
        victim = super()._choose_victim()
        self.lost[victim.request_id] = victim.num_computed_tokens
        return victim


class VllmSteps:
    scheduler_class = _Vllm

    def __init__(self, config, rules):
        self.scheduler = self.scheduler_class(config, rules)
        self.block_tokens = config.block_size
        self._pool = self.scheduler.pool
        self.num_inserted = 0
        register = self._pool.register

        def counted(block_id, chain_id):
            self.num_inserted += 1
            register(block_id, chain_id)

        self._pool.register = counted

    def add(self, sequence):
        keys = block_contents(sequence.runs, self.block_tokens)
        is_early = sequence.num_output < sequence.max_tokens
        request = UrgentRequest(
            sequence.number,
            None,
            sequence.num_prompt,
            block_keys=keys,
            namespace=sequence.namespace,
            max_tokens=sequence.max_tokens,
            num_output_to_eos=sequence.num_output if is_early else None,
            priority=sequence.priority,
            num_prompt_tokens=sequence.num_prompt,
            arrival_ns=sequence.arrival_ns,
        )
        self.scheduler.add(request)

    def cancel(self, number):
        """True: it is gone. (SGLang's are not, while they run.)"""
        return self.scheduler.abort(number)

    @property
    def is_idle(self):
        return self.scheduler.num_unfinished == 0

    def go_idle(self):
        pass

    def schedule(self):
        self.scheduler.lost = {}
        planned = self._planned = self.scheduler.schedule()
        return Plan(
            rows=[(number, row.start, row.num_tokens) for number, row in planned.rows.items()],
            admitted={number: planned.rows[number].start for number in planned.new + planned.resumed},
            preempted={number: self.scheduler.lost[number] for number in planned.preempted},
            num_evicted=len(planned.evicted),
        )

    def commit(self):
        """(sequences that emit a token, of these the ones that end)"""
        result = self.scheduler.update(self._planned)
        return result.emitted, [number for number, _ in result.finished]

    def drop_head(self):
        number = self.scheduler.waiting.peek().request_id
        self.scheduler.abort(number)
        return number

    @property
    def num_running(self):
        return len(self.scheduler.running)

    @property
    def num_waiting(self):
        return len(self.scheduler.waiting)

    @property
    def used_blocks(self):
        return self._pool.num_blocks - 1 - self._pool.num_free

    @property
    def cached_blocks(self):
        return sum(self._pool.chain_of[block] >= 0 for block in self._pool.free_queue)

    @property
    def free_blocks(self):
        return list(self._pool.free_queue)

    @property
    def wasted_tokens(self):
        """Slots of block tables that hold no token, once the planned step has run."""
        return sum(
            len(self.scheduler.tables.block_ids(r.request_id)) * self.block_tokens - r.num_computed_tokens
            for r in self.scheduler.running
        )

    def check_integrity(self):
        self.scheduler.check_integrity()


# -- SGLang ------------------------------------------------------------------------------------------------------


class RunContent:
    """Content of a request from its runs; the in-batch rule compares token by token."""

    in_batch_width = 1

    def __init__(self, runs, block_tokens):
        self._runs, self._block_tokens, self._tokens = runs, block_tokens, None
        self._keys = block_contents(runs, block_tokens)

    def block_keys(self, num_tokens):
        return self._keys[: num_tokens // self._block_tokens]

    def in_batch_keys(self, num_tokens):
        if self._tokens is None:
            self._tokens = tokens_of(self._runs)
        return self._tokens[:num_tokens]


class _Sglang(SglangScheduler):
    """Notes what a retracted request had computed, and ends outputs that are shorter than declared."""

    def _release(self, kept):
        self.lost[kept[-1].id] = kept[-1].num_kv
        return super()._release(kept)

    def _emit(self, request, result):
        if request.num_output + 1 >= request.num_final:
            request.is_abort_wanted = True  # how a request ends with its next token, whoever wants it to
        super()._emit(request, result)


class SglangSteps:
    scheduler_class = _Sglang

    def __init__(self, config):
        self.scheduler = self.scheduler_class(config)
        self.block_tokens = config.page_size
        self._memory = self.scheduler.memory
        self._num_evicted = 0

    def add(self, sequence):
        """The engine's own order of urgency is the other way round: greater is more urgent."""
        content = RunContent(sequence.runs, self.block_tokens)
        request = sglang_memory.Request(
            sequence.number,
            sequence.num_prompt,
            sequence.max_tokens,
            content,
            sequence.namespace,
            -sequence.priority,
        )
        request.num_final = sequence.num_output
        self.scheduler.add(request)

    def cancel(self, number):
        """True: it is gone; False: it goes with its next token."""
        is_waiting = any(request.id == number for request in self.scheduler.waiting)
        assert self.scheduler.abort(number)
        return is_waiting

    @property
    def is_idle(self):
        return self.scheduler.is_idle

    def go_idle(self):
        """A step with nothing to do drops the requests that ended, and starts the ratio anew."""
        assert self.scheduler.schedule().batch is None

    def schedule(self):
        continued = self.scheduler.chunked
        self.scheduler.lost = {}
        planned = self._planned = self.scheduler.schedule()
        plan = Plan(
            preempted={r.id: self.scheduler.lost[r.id] for r in planned.retracted},
            failed=[r.id for r in planned.oom_aborted],
            num_evicted=sum(map(len, planned.evicted)),
        )
        self._num_evicted += plan.num_evicted
        batch = planned.batch
        if batch is None:
            return plan
        if batch.mode is Mode.DECODE:
            plan.rows = [(number, num_kv - 1, 1) for number, num_kv in batch.rows]
            return plan
        plan.rows = list(batch.rows)
        known = {r.id for r in batch.decoding} | ({continued.id} if continued else set())
        plan.admitted = {number: start for number, start, _ in plan.rows if number not in known}
        return plan

    def commit(self):
        result = self.scheduler.update(self._planned)
        return [r.id for r in result.emitted], [r.id for r in result.finished]

    def drop_head(self):
        self.scheduler.running.is_full = False
        return self.scheduler.waiting.pop(0).id

    @property
    def num_running(self):
        return len(self.scheduler.running.requests)

    @property
    def num_waiting(self):
        return len(self.scheduler.waiting)

    @property
    def used_blocks(self):
        return self._memory.num_blocks - self._memory.allocator.num_free - self.cached_blocks

    @property
    def cached_blocks(self):
        return self._memory.tree.num_evictable

    @property
    def num_inserted(self):
        tree = self._memory.tree
        return tree.num_evictable + tree.num_protected + self._num_evicted

    @property
    def free_blocks(self):
        return list(self._memory.allocator._free)

    @property
    def wasted_tokens(self):
        return sum(len(r.row) * self.block_tokens - r.num_kv for r in self._memory.holders)

    def check_integrity(self):
        self.scheduler.check_integrity()
