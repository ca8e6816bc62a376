"""An engine on a virtual clock in plain Python: schedule, price, commit, around a reference scheduler.

Lives here: time. Arrivals (free ones and those of sessions), tokenising, the client's cap on what is in flight,
cancels, refusals, and what a journal keeps of each sequence. Does not belong: who runs (vllm_scheduler,
sglang_scheduler), what a step costs (cost).

Times are ints of nanoseconds. The client acts at an event's own time (`at`), also within a step; the engine sees it at
the end of the step (`now`). At one instant arrivals come before tokenised sequences, these before places that become
free, these before cancels, these before places that become free since an engine has seen to a cancel; then the order in
which the events came to be known.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from .cost import HOST, Step
from .timed import Sequence

ARRIVAL, READY, LAST_TOKEN_OUT, CANCEL, GIVEN_UP = 0, 1, 4, 5, 6
NUM_EMPTY_PLANS = 4  # more of them in a row, and nothing will come of it at this instant


@dataclass
class Ask:
    """One request. prompt: runs of tokens (stream, start, length), explicit ids being (0, id, 1).

    output   runs of what the first sample generates; the k-th one's stream is k higher, explicit ids are the same
    after    index of the request whose end it waits for
    joins    index of the request whose successors wait for this one too
    """

    prompt: list
    output: list
    arrival_ns: int = 0
    output_tokens: int = 1
    max_tokens: int = 1
    samples: int = 1
    after: int | None = None
    joins: int | None = None
    think_ns: int = 0
    namespace: int = 0
    priority: int = 0
    cancel_ns: int | None = None

    def __repr__(self):
        """Only what is not the default, for a failing case to be readable."""
        own = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Ask({', '.join(f'{name}={value!r}' for name, value in own)})"

    @property
    def num_prompt(self):
        return sum(length for _, _, length in self.prompt)


@dataclass(frozen=True)
class Options:
    """judge: (prompt, max_tokens, output) -> (max_tokens, output) as the engine takes it, or None: refused."""

    num_blocks: int
    judge: Callable
    tokenize_ns_per_request: int = 0
    tokenize_ns_per_token: int = 0
    serial_tokenizer: bool = False
    detokenize_ns: int = 0
    output_ns_per_token: int = 0
    concurrency: int = 0
    closed_loop: bool = False


@dataclass(eq=False)
class Row(Sequence):
    """A sequence and its journal row; None is what did not happen."""

    request: int = 0
    state: str = "arrived"  # tokenizing, in engine, then one of the ends
    is_cancelled: bool = False
    ready_ns: int | None = None  # when it will be tokenised
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finish_ns: int | None = None
    num_generated: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    lost_tokens: int = 0


@dataclass
class Totals:
    """Counters of a run; the *_us are weighted by the microseconds of each step."""

    num_steps: int = 0
    decode_steps: int = 0
    prefill_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    matched_tokens: int = 0
    admitted_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    used_blocks_peak: int = 0
    used_us: int = 0
    waste_us: int = 0
    busy_us: int = 0
    busy_ns: int = 0


@dataclass
class TimedEngine:
    """scheduler: see timed. tables: fields of the cost tables as lists."""

    asks: list
    scheduler: object
    tables: dict
    options: Options
    keeps_steps: bool = False
    now: int = 0
    at: int = 0
    gaps: Counter = field(default_factory=Counter)
    steps: list = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self):
        self.rows = []
        self._rows_of = [[self._new_row(r, ask, k) for k in range(ask.samples)] for r, ask in enumerate(self.asks)]
        self._leads = [i if ask.joins is None else ask.joins for i, ask in enumerate(self.asks)]
        self._num_pending = [0 for _ in self.asks]
        for lead, ask in zip(self._leads, self.asks, strict=True):
            self._num_pending[lead] += ask.samples
        self._successors = [[] for _ in self.asks]
        self._events, self._num_events = [], 0
        self._happen = {
            ARRIVAL: self._arrive,
            READY: self._enqueue,
            LAST_TOKEN_OUT: self._free_place,
            CANCEL: self._cancel,
            GIVEN_UP: self._free_place,
        }
        self._held = deque()
        self._num_in_flight = 0
        self._input_free = self._output_free = 0
        self._delay = self.options.detokenize_ns
        self._ended = []
        self._decoding = set()
        for request, ask in enumerate(self.asks):
            if ask.after is None:
                for row in self._rows_of[request]:
                    self._push(ask.arrival_ns, ARRIVAL, row)
            else:
                self._successors[ask.after].append(request)

    def _new_row(self, request, ask, sample):
        max_tokens, num_output = self.options.judge(ask.num_prompt, ask.max_tokens, ask.output_tokens) or (0, 0)
        output = [(stream + sample if stream else 0, start, length) for stream, start, length in ask.output]
        row = Row(
            number=len(self.rows),
            runs=ask.prompt + output,
            num_prompt=ask.num_prompt,
            num_output=num_output,
            max_tokens=max_tokens,
            namespace=ask.namespace,
            priority=ask.priority,
            arrival_ns=ask.arrival_ns,
            request=request,
        )
        self.rows.append(row)
        return row

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self):
        num_empty = 0
        while True:
            self._deliver()
            if self.scheduler.is_idle:
                self.scheduler.go_idle()
                if all(row.finish_ns is not None for row in self.rows):
                    return
                self.now = max(self.now, self._next_ns())
            elif self._step():
                num_empty = 0
            else:
                num_empty += 1
                if num_empty > NUM_EMPTY_PLANS:
                    self._unstick()
                    num_empty = 0

    def _next_ns(self):
        """When something happens next."""
        return self._events[0][0]

    def _lengthened(self, parts, chunks):
        """ns of a step whose parts these are."""
        return sum(parts)

    def _unstick(self):
        """Where nothing runs, nothing that happens later lets the head of the queue in."""
        if self.scheduler.num_running and self._events:
            self.now = max(self.now, self._events[0][0])
        else:
            self._end(self.rows[self.scheduler.drop_head()], "failed", self.now)
            self._settle()

    def _step(self):
        plan = self.scheduler.schedule()
        self._note_preempted(plan)
        if not plan.rows:
            return False
        self._note_admitted(plan)
        chunks = [(n, start) for number, start, n in plan.rows if number not in self._decoding]
        contexts = [start + 1 for number, start, _ in plan.rows if number in self._decoding]
        parts = Step(self.tables, chunks, len(contexts), sum(contexts)).resources()
        duration = self._lengthened(parts, chunks)
        self._account(plan, duration, parts[HOST], len(contexts), chunks)
        self.now += duration
        self._hand_out(len(plan.rows))
        self._commit()
        return True

    def _hand_out(self, num_rows):
        """The rows of a step pass through the output stage behind those of the steps before."""
        if self.options.output_ns_per_token:
            self._output_free = max(self._output_free, self.now) + num_rows * self.options.output_ns_per_token
            self._delay = self._output_free - self.now + self.options.detokenize_ns

    def _commit(self):
        emitted, finished = self.scheduler.commit()
        for number in emitted:
            row = self.rows[number]
            row.num_generated += 1
            if row.last_token_ns is None:
                row.first_token_ns = self.now + self._delay
            else:
                self.gaps[self.now - row.last_token_ns] += 1
            row.last_token_ns = self.now
            self._decoding.add(number)
        for number in finished:
            state = "cancelled" if self.rows[number].is_cancelled else "finished"
            self._end(self.rows[number], state, self.now)
        self._settle()

    def _note_preempted(self, plan):
        for number, lost in plan.preempted.items():
            self.rows[number].lost_tokens = lost
            self.rows[number].num_preemptions += 1
            self.totals.preemptions += 1
            self._decoding.discard(number)
        for number in plan.failed:
            self._end(self.rows[number], "failed", self.now)

    def _note_admitted(self, plan):
        for number, matched in plan.admitted.items():
            row = self.rows[number]
            if row.scheduled_ns is None:
                row.scheduled_ns = self.now
                row.cached_tokens = matched
                self.totals.matched_tokens += matched
                self.totals.admitted_prompt_tokens += row.num_prompt
            else:
                again = max(row.lost_tokens - matched, 0)
                row.recomputed_tokens += again
                self.totals.recomputed_tokens += again

    def _account(self, plan, duration, host, num_decodes, chunks):
        total, scheduler = self.totals, self.scheduler
        used, waste = scheduler.used_blocks, scheduler.wasted_tokens
        micros = (self.now + duration) // 1000 - self.now // 1000
        num_prefill_tokens = sum(new for new, _ in chunks)
        total.num_steps += 1
        total.decode_steps += num_decodes > 0
        total.prefill_steps += len(chunks) > 0
        total.prefill_tokens += num_prefill_tokens
        total.decode_tokens += num_decodes
        total.evicted_blocks += plan.num_evicted
        total.used_blocks_peak = max(total.used_blocks_peak, used)
        total.used_us += used * micros
        total.waste_us += waste * micros
        total.busy_us += micros
        total.busy_ns += duration
        if self.keeps_steps:
            work = [self.now, duration, num_decodes, len(chunks), num_prefill_tokens]
            queues = [scheduler.num_running, scheduler.num_waiting]
            memory = [used, scheduler.cached_blocks, waste, len(plan.preempted), plan.num_evicted]
            self.steps.append([*work, *queues, *memory, host])

    # -- events ---------------------------------------------------------------------------------------------------

    def _push(self, time_ns, kind, row):
        heapq.heappush(self._events, (time_ns, kind, self._num_events, row.number))
        self._num_events += 1

    def _deliver(self):
        while self._events and self._events[0][0] <= self.now:
            self.at, kind, _, number = heapq.heappop(self._events)
            self._happen[kind](self.rows[number])
            self._settle()

    def _arrive(self, row):
        ask, options = self.asks[row.request], self.options
        if row.num_output < 1:
            row.queued_ns = row.arrival_ns
            self._end(row, "refused", self.at, was_in_flight=False)
            return
        if ask.cancel_ns is not None and not options.closed_loop:
            self._push(row.arrival_ns + ask.cancel_ns, CANCEL, row)
        if options.concurrency and self._num_in_flight >= options.concurrency:
            self._held.append(row)
        else:
            self._send(row, row.arrival_ns)

    def _send(self, row, sent_ns):
        ask = self.asks[row.request]
        self._num_in_flight += 1
        if self.options.closed_loop:  # the client asks when it may
            row.arrival_ns = sent_ns
            if ask.cancel_ns is not None:
                self._push(sent_ns + ask.cancel_ns, CANCEL, row)
        row.state = "tokenizing"
        row.ready_ns = self._tokenized(row, sent_ns)
        if row.ready_ns > sent_ns:
            self._push(row.ready_ns, READY, row)
        else:
            self._enqueue(row)

    def _tokenized(self, row, sent_ns):
        """When its prompt has become tokens; the samples of a request that are sent together have one prompt."""
        took = self.options.tokenize_ns_per_request + self.options.tokenize_ns_per_token * row.num_prompt
        if not self.options.serial_tokenizer:
            return sent_ns + took
        twin = self._rows_of[row.request][0].ready_ns
        if twin != self._input_free or sent_ns + took > twin:
            self._input_free = max(sent_ns, self._input_free) + took
        return self._input_free

    def _enqueue(self, row):
        if row.state == "tokenizing":  # else cancelled meanwhile
            row.state = "in engine"
            row.queued_ns = row.ready_ns
            self.scheduler.add(row)

    def _cancel(self, row):
        if row.state == "arrived":
            self._held.remove(row)
            self._end(row, "cancelled", self.at, was_in_flight=False)
        elif row.state == "tokenizing":
            row.ready_ns = None
            self._end(row, "cancelled", self.at)
        elif row.state == "in engine":
            row.is_cancelled = True
            if self.scheduler.cancel(row.number):
                self._end(row, "cancelled", self.now, leaves=GIVEN_UP)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _end(self, row, state, when, was_in_flight=True, leaves=LAST_TOKEN_OUT):
        """Under a cap the client keeps the place of a sequence until it has its last token."""
        row.finish_ns = when + (self._delay if state == "finished" else 0)
        row.state = state
        if was_in_flight and self.options.concurrency:
            self._push(row.finish_ns, leaves, row)
        self._decoding.discard(row.number)
        self._ended.append(row)

    def _free_place(self, row):
        """Those held back move up."""
        self._num_in_flight -= 1
        while self._held and self._num_in_flight < self.options.concurrency:
            self._send(self._held.popleft(), self.at)

    def _settle(self):
        """What ends bring about: the turns that come after them."""
        for row in self._ended:
            lead = self._leads[row.request]
            self._num_pending[lead] -= 1
            if self._num_pending[lead] == 0:
                group = [i for i, other in enumerate(self._leads) if other == lead]
                self._start_successors(lead, max(row.finish_ns for i in group for row in self._rows_of[i]))
        self._ended.clear()

    def _start_successors(self, request, end_ns):
        for successor in self._successors[request]:
            for row in self._rows_of[successor]:
                row.arrival_ns = end_ns + self.asks[successor].think_ns
                self._push(row.arrival_ns, ARRIVAL, row)
