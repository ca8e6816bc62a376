"""Ranks of an instance in plain Python: they plan at one time, step together, and wait for the slowest.

A rank without work runs a dummy, and all are padded to the tokens of the widest. Lives here: who gets a request, how
long a step is, who waits how long. Does not belong: who runs on a rank (timed), clients and mail (world).
"""

from .cost import HOST, Step, on_line, whole
from .timed import Plan
from .world import ACCEPT, World

DEALS = {
    "least-waiting": lambda waiting, running: 4 * waiting + running,
    "shortest-queue": lambda waiting, running: waiting + running,
}
"""The others: round-robin."""


class _Nobody:
    """In the place of a router: a request goes to a rank when its engine gets it."""

    def choose(self, prompt, namespace, now):
        return 0

    def sent(self, *event):
        pass

    first_token = ended = sent


class Ranks(World):
    """deal: by which rule a request goes to a rank. wait_ns, busy_ns, dummy_steps: by rank."""

    def __init__(self, asks, schedulers, tables, options, deal):
        super().__init__(asks, schedulers, tables, options, _Nobody())
        self.deal, self.turns = deal, 0
        self.wait_ns, self.busy_ns = [0 for _ in schedulers], [0 for _ in schedulers]
        self.dummy_steps, self.dummy_ns = [0 for _ in schedulers], [0 for _ in schedulers]
        self.step_ns = self.num_steps = 0

    def _enqueue(self, row):
        if row.state == "tokenizing":
            self.engine_of[row.number] = self._dealt()
            super()._enqueue(row)

    def _dealt(self):
        self.turns += 1
        if self.deal == "round-robin":
            return (self.turns - 1) % len(self.lanes)
        coming = [sum(kind == ACCEPT for kind, _ in lane.mail) for lane in self.lanes]
        queues = [(lane.scheduler.num_waiting, lane.scheduler.num_running) for lane in self.lanes]
        loads = [DEALS[self.deal](w + c, r) for (w, r), c in zip(queues, coming, strict=True)]
        return loads.index(min(loads))

    def _turn(self):
        """As a world's, but what happens to one rank happens to all."""
        landing = [lane.lands for lane in self.lanes if lane.lands is not None]
        ready = [lane.ready for lane in self.lanes if lane.ready is not None]
        turns = [(at, 0) for at in landing] or [(at, 2) for at in ready]
        if self._events:
            turns.append((self._events[0][0], 1))
        self.at, kind = min(turns)
        if kind == 1:
            self._deliver_one()
        elif kind == 0:
            self._land_all()
        else:
            self._plan_all()

    def _land_all(self):
        for lane in self.lanes:
            if lane.lands is not None:
                lane.land()
                self._tell_ends(lane)
            lane.now = lane.ready = self.at

    def _plan_all(self):
        for lane in self.lanes:
            lane.now = self.at
            lane.read()
        if any(lane._ended for lane in self.lanes):
            for lane in self.lanes:
                self._tell_ends(lane)
            return
        plans = [self._planned(lane) for lane in self.lanes]
        if not any(plan is not None and plan.rows for plan in plans):
            for lane, plan in zip(self.lanes, plans, strict=True):
                self._nothing(lane, plan)
            return
        for lane, plan in zip(self.lanes, plans, strict=True):
            if plan is not None and not plan.rows:
                self._tell_ends(lane)
        self._start([plan if plan is not None else Plan() for plan in plans])

    def _planned(self, lane):
        """None: it has nothing to do."""
        if lane.scheduler.is_idle:
            lane.scheduler.go_idle()
            return None
        plan = lane.scheduler.schedule()
        lane._note_preempted(plan)
        if plan.rows:
            lane._note_admitted(plan)
            lane.num_empty = 0
        return plan

    def _nothing(self, lane, plan):
        """A rank alone: World._plan without its launch."""
        lane.ready = None
        if plan is None:
            return
        lane.launch = lambda: False
        self._plan(lane)
        del lane.launch

    def _start(self, plans):
        work = [_work(lane, plan) for lane, plan in zip(self.lanes, plans, strict=True)]
        tables = self.tables
        widest = max(Step(tables, *w).paid_tokens() if plan.rows else 1 for w, plan in zip(work, plans, strict=True))
        parts = [
            Step(tables, *w, padded=widest).resources() if plan.rows else _dummy(tables, widest)
            for w, plan in zip(work, plans, strict=True)
        ]
        slowest = max(map(sum, parts))
        self.num_steps += 1
        self.step_ns += slowest
        for rank, (lane, plan) in enumerate(zip(self.lanes, plans, strict=True)):
            own = sum(parts[rank])
            self.busy_ns[rank] += own
            self.wait_ns[rank] += slowest - own
            lane.ready = None
            if plan.rows:
                lane._account(plan, own, parts[rank][HOST], work[rank][1], work[rank][0])
                lane._num_rows = len(plan.rows)
            else:
                self.dummy_steps[rank] += 1
                self.dummy_ns[rank] += own
                lane._num_rows = 0
            lane.lands = self.at + slowest if plan.rows else None


def _work(lane, plan):
    """(chunks, decoding sequences, their contexts summed)."""
    chunks = [(n, start) for number, start, n in plan.rows if number not in lane._decoding]
    contexts = [start + 1 for number, start, _ in plan.rows if number in lane._decoding]
    return chunks, len(contexts), sum(contexts)


def _dummy(t, tokens):
    """Resources of a step of one token that is nobody's, padded."""
    linear = whole(on_line(t["linear_ns"], t["linear_bits"], tokens) + on_line(t["head_ns"], t["head_bits"], 1))
    communication, host = whole(on_line(t["comm_ns"], t["comm_bits"], tokens)), whole(t["host_step_ns"])
    launch = max(whole(t["launch_ns"]), whole(t["floor_ns"]) - linear - communication)
    return [linear, 0, 0, communication, host, 0, launch]
