"""Several engines behind a router in plain Python: clients, mail, engines that take turns.

At one instant steps land first, then what clients do, then engines plan; ties by number. An engine whose step is under
way reads its mail when it lands. Lives here: who has its turn when. Does not belong: who runs on an engine (timed), who
chooses (router).
"""

import heapq

from .cost import HOST, Step
from .engine import CANCEL, LAST_TOKEN_OUT, NUM_EMPTY_PLANS, READY, TimedEngine
from .timed import tokens_of

ACCEPT, LEAVE = "accept", "leave"


class Lane(TimedEngine):
    """One engine: a step is launched, and lands."""

    def __post_init__(self):
        """Nothing of the client's."""
        self._decoding, self._ended = set(), []
        self._output_free, self._delay = 0, self.options.detokenize_ns
        self.mail, self.ready, self.lands, self.num_empty = [], None, None, 0

    def launch(self):
        """Plan a step; False: there is nothing to do."""
        plan = self.scheduler.schedule()
        self._note_preempted(plan)
        if not plan.rows:
            return False
        self._note_admitted(plan)
        chunks = [(n, start) for number, start, n in plan.rows if number not in self._decoding]
        contexts = [start + 1 for number, start, _ in plan.rows if number in self._decoding]
        parts = Step(self.tables, chunks, len(contexts), sum(contexts)).resources()
        self._account(plan, sum(parts), parts[HOST], len(contexts), chunks)
        self.lands, self._num_rows = self.now + sum(parts), len(plan.rows)
        return True

    def land(self):
        self.now, self.lands = self.lands, None
        self.world.tell_first_tokens(self, self._landed())

    def _landed(self):
        before = {number for number, row in enumerate(self.rows) if row.first_token_ns is None}
        self._hand_out(self._num_rows)
        self._commit()
        return [number for number in sorted(before) if self.rows[number].first_token_ns is not None]

    def read(self):
        """The mail that has come since its last step began."""
        mail, self.mail = self.mail, []
        for kind, row in mail:
            if kind == ACCEPT:
                self.scheduler.add(row)
            elif row.state == "in engine":
                row.is_cancelled = True
                if self.scheduler.cancel(row.number):
                    self._end(row, "cancelled", self.now)

    def _end(self, row, state, when, was_in_flight=True):
        row.finish_ns = when + (self._delay if state == "finished" else 0)
        row.state = state
        self._decoding.discard(row.number)
        self._ended.append(row)

    def _settle(self):
        """Nothing: the world tells the clients."""


class World(TimedEngine):
    """The clients of several engines. scheduler: a list of them; router: tests.reference.router."""

    def __init__(self, asks, schedulers, tables, options, router):
        super().__init__(asks, None, tables, options)
        self.router = router
        self.prompts = [tuple(tokens_of(ask.prompt)) for ask in asks]
        self.lanes = []
        for scheduler in schedulers:
            lane = Lane(asks, scheduler, tables, options)
            lane.rows, lane.world, lane.gaps = self.rows, self, self.gaps
            self.lanes.append(lane)
        self.engine_of = {}
        self._input_frees = [0] * len(schedulers)

    def run(self):
        while any(row.finish_ns is None for row in self.rows):
            self._turn()

    def _turn(self):
        """Whatever happens next: a landing (0), an event (1), a plan (2); ties by number."""
        turns = [(lane.lands, 0, k) for k, lane in enumerate(self.lanes) if lane.lands is not None]
        turns += [
            (lane.ready, 2, k) for k, lane in enumerate(self.lanes) if lane.lands is None and lane.ready is not None
        ]
        if self._events:
            turns.append((self._events[0][0], 1, -1))
        self.at, kind, k = min(turns)
        if kind == 1:
            self._deliver_one()
            return
        lane = self.lanes[k]
        if kind == 0:
            lane.land()
            self._tell_ends(lane)
            lane.ready = lane.now
            return
        lane.now = self.at
        lane.read()
        if lane._ended:
            self._tell_ends(lane)
            return
        self._plan(lane)

    def _plan(self, lane):
        lane.ready = None
        if lane.scheduler.is_idle:
            lane.scheduler.go_idle()
        elif lane.launch():
            lane.num_empty = 0
        elif lane._ended:  # a retraction gave up on the last one that ran
            self._tell_ends(lane)
            lane.ready = lane.now
        elif lane.num_empty < NUM_EMPTY_PLANS:
            lane.num_empty += 1
            lane.ready = lane.now
        else:
            lane.num_empty = 0
            if not lane.scheduler.num_running:
                lane._end(self.rows[lane.scheduler.drop_head()], "failed", lane.now)
                self._tell_ends(lane)
                lane.ready = lane.now

    def _deliver_one(self):
        self.at, kind, _, number = heapq.heappop(self._events)
        self._happen[kind](self.rows[number])
        self._settle()

    # -- what the client does otherwise when there are several engines ---------------------------------------------

    def _post(self, k, kind, row):
        lane = self.lanes[k]
        lane.mail.append((kind, row))
        if lane.lands is None:
            at = max(self.at, lane.now)
            lane.ready = at if lane.ready is None else min(lane.ready, at)

    def _send(self, row, sent_ns):
        ask = self.asks[row.request]
        self._num_in_flight += 1
        if self.options.closed_loop:
            row.arrival_ns = sent_ns
            if ask.cancel_ns is not None:
                self._push(sent_ns + ask.cancel_ns, CANCEL, row)
        row.state = "tokenizing"
        k = self.router.choose(self.prompts[row.request], None, sent_ns)
        self.engine_of[row.number] = k
        self.router.sent(row.number, k, self.prompts[row.request], sent_ns)
        took = self.options.tokenize_ns_per_request + self.options.tokenize_ns_per_token * row.num_prompt
        row.ready_ns = sent_ns + took
        self._push(row.ready_ns, READY, row)

    def _enqueue(self, row):
        if row.state == "tokenizing":
            row.state = "in engine"
            row.queued_ns = row.ready_ns
            self._post(self.engine_of[row.number], ACCEPT, row)

    def _cancel(self, row):
        if row.state == "in engine":
            self._post(self.engine_of[row.number], LEAVE, row)
            return
        if row.state == "tokenizing":
            self.router.ended(row.number, self.engine_of.pop(row.number))
        super()._cancel(row)

    def tell_first_tokens(self, lane, numbers):
        for number in numbers:
            self.router.first_token(number, self.engine_of[number])

    def _tell_ends(self, lane):
        for row in lane._ended:
            self.router.ended(row.number, self.engine_of[row.number])
            if self.options.concurrency:
                self._push(row.finish_ns, LAST_TOKEN_OUT, row)
            self._ended.append(row)
            self._settle()
        lane._ended.clear()
