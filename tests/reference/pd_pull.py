"""A vLLM prefill engine and a decode engine that pulls (NIXL connector), in plain Python: the oracle of pull.

    prefill   a finished request keeps its blocks under a lease until somebody has read them or it ends
    decode    a request is admitted into memory first (loading), its prompt is read, then it is admitted to run

Lives here: what both schedulers do differently from vllm_scheduler.py, leases and heartbeats. Who reads what when, and
how long it takes, is the wire's (test_pd_golden.py).
"""

from dataclasses import dataclass, field

from .vllm_scheduler import PlannedRow, Request, StepPlan, VllmScheduler


@dataclass(frozen=True)
class LeaseRules:
    """Seconds. A heartbeat at t makes a lease end at t + extension, unless it ends later anyway."""

    duration: int

    @property
    def interval(self) -> int:
        return self.duration // 6

    @property
    def extension(self) -> int:
        return 2 * self.duration // 3


class PrefillSide(VllmScheduler):
    """Prefill for others: what ends by length stays as a zombie, with its blocks and without a place in the batch."""

    def __init__(self, config, rules, lease: LeaseRules):
        super().__init__(config, rules)
        self.lease = lease
        self.zombies: dict[str, Request] = {}
        self.leases: dict[str, float] = {}  # what the worker knows: request id -> when it ends
        self._finished: dict[str, float] = {}  # the worker learns of them in the next step
        self.now = 0.0

    def _finish(self, request: Request, reason: str) -> None:
        if reason != "length":
            super()._finish(request, reason)
            return
        request.finish_reason = reason
        del self._unfinished[request.request_id]
        self.zombies[request.request_id] = request
        self._finished[request.request_id] = self.now + self.lease.duration

    def start_leases(self) -> list[str]:
        started, self._finished = self._finished, {}
        self.leases.update(started)
        return sorted(started)

    def heartbeat(self, request_ids) -> None:
        for request_id in request_ids:
            if request_id in self.leases:
                extended = self.now + self.lease.extension
                self.leases[request_id] = max(self.leases[request_id], extended)

    def read(self, request_id: str) -> bool:
        """Somebody has read it. False: too late, its lease has ended."""
        return self.leases.pop(request_id, None) is not None

    def expired(self) -> list[str]:
        """Leases that end now; they are gone afterwards."""
        ended = sorted(i for i, end in self.leases.items() if self.now >= end)
        for request_id in ended:
            del self.leases[request_id]
        return ended

    def let_go(self, request_ids) -> None:
        for request_id in sorted(request_ids):
            del self.zombies[request_id]
            self.tables.release(request_id)


@dataclass
class Loading:
    """outcome: None while the read is under way, else whether it went well."""

    block_ids: list[int]
    outcome: bool | None = None


@dataclass
class DecodePlan(StepPlan):
    loads: list[str] = field(default_factory=list)


class DecodeSide(VllmScheduler):
    """Decode with KV that others have computed."""

    def __init__(self, config, rules, lease: LeaseRules, fails: bool):
        super().__init__(config, rules)
        self.lease = lease
        self.fails = fails  # a failed read ends its request; else the prompt is computed here
        self.holding: list[Request] = []  # they hold blocks and do not run
        self.loading: dict[str, Loading] = {}
        self.zombies: dict[str, Request] = {}  # over, while the read still writes into their blocks
        self.remote: set[str] = set()  # not admitted yet: the KV lies elsewhere
        self.tracked: set[str] = set()  # whose lease the heartbeats keep up
        self.last_heartbeat = 0.0

    def add(self, request: Request) -> None:
        super().add(request)
        self.remote.add(request.request_id)
        self.tracked.add(request.request_id)

    def abort(self, request_id: str) -> bool:
        """In any state. Blocks that are being written wait for the end of the read."""
        self.tracked.discard(request_id)
        request = self._unfinished.get(request_id)
        if request is None or request not in self.holding:
            return super().abort(request_id)
        self.holding.remove(request)
        self._drain(request, "abort")
        return True

    def _drain(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        del self._unfinished[request.request_id]
        if self.loading[request.request_id].outcome is None:
            self.zombies[request.request_id] = request
        else:
            self._forget(request.request_id)

    def _forget(self, request_id: str) -> None:
        del self.loading[request_id]
        self.tables.release(request_id)

    # -- the step

    def schedule(self) -> DecodePlan:
        plan = DecodePlan(num_budget_tokens=self.config.max_num_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._walk(plan)
        for row in plan.rows.values():
            row.request.num_computed_tokens += row.num_tokens
        return plan

    def _walk(self, plan: DecodePlan) -> None:
        """Who holds blocks comes before all others. A head that does not fit ends the walk, a read only passes."""
        passed: list[Request] = []
        while plan.num_budget_tokens > 0 and len(self.running) < self.config.max_num_seqs:
            if self.holding:
                request = self.holding[0]
                if self._is_loading(request):
                    passed.append(self.holding.pop(0))
                    continue
                row = self._admit_loaded(request, plan.num_budget_tokens)
                if row is None:
                    break
                self.holding.pop(0)
            elif self.waiting:
                request = self.waiting.peek()
                if request.request_id in self.remote:
                    if not self._try_load(request):
                        break
                    passed.append(self.waiting.pop())
                    plan.loads.append(request.request_id)
                    continue
                row = self._try_admit(request, plan.num_budget_tokens)
                if row is None:
                    break
                self.waiting.pop()
            else:
                break
            self._start(row, plan)
        self.holding = passed + self.holding

    def _is_loading(self, request: Request) -> bool:
        loading = self.loading.get(request.request_id)
        return loading is not None and loading.outcome is None

    def _try_load(self, request: Request) -> bool:
        """Blocks for the whole prompt; those beyond the local hits stay without content until they are read."""
        tables = self.tables
        hits = tables.match(request)
        if not tables.fits(request, request.num_tokens, hits, 0):
            return False
        taken = tables.hold(request, request.num_tokens, hits)
        self.remote.remove(request.request_id)
        self.loading[request.request_id] = Loading(taken)
        return True

    def _admit_loaded(self, request: Request, num_budget_tokens: int) -> PlannedRow | None:
        """Its read has ended: well, then one token is left to compute; else nothing of it is of use."""
        loading = self.loading.pop(request.request_id)
        if not loading.outcome:
            self.tables.release(request.request_id)
            return self._try_admit(request, num_budget_tokens)
        self.tables.publish(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens - 1
        assert self.tables.allocate(request, 1) == []
        return PlannedRow(request, request.num_computed_tokens, 1, self.tables.block_ids(request.request_id))

    def heartbeat(self, now: float) -> list[str]:
        """Whose leases are to be kept up, if it is time to say so."""
        if not self.tracked or now - self.last_heartbeat < self.lease.interval:
            return []
        self.last_heartbeat = now
        return sorted(self.tracked)

    def end_reads(self, ended: list[tuple[str, bool]]) -> list[str]:
        """Reads that ended in this step, in the order they were started. Returns who failed with them."""
        failed = []
        for request_id, is_good in ended:
            self.tracked.discard(request_id)
            if not is_good and self.fails and request_id not in self.zombies:
                request = self._unfinished[request_id]
                self.holding.remove(request)
                self._drain(request, "error")
                failed.append(request_id)
        for request_id, is_good in ended:
            if request_id in self.zombies:
                del self.zombies[request_id]
                self._forget(request_id)
            else:
                self.loading[request_id].outcome = is_good
        return failed

    def _finish(self, request: Request, reason: str) -> None:
        self.tracked.discard(request.request_id)
        super()._finish(request, reason)
