"""SGLang's prefill and decode queues (0.5.12, overlap off) in plain Python: the oracle of push.

    prefill   bootstrap -> waiting -> running -> inflight: pages go out chunk by chunk, rows stay until all have arrived
    decode    prealloc -> transfer -> waiting -> running: memory for the prompt before anything is computed

Lives here: both schedulers' queues, budgets and slots. Who moves pages when is the wire's (test_pd_golden.py): it sets
Link.status, and reads what went out in `sent`.
"""

from collections import deque
from dataclasses import dataclass, field

from .sglang_memory import Request, RequestMemory
from .sglang_scheduler import SglangScheduler

CLIP_TOKENS = 4096
RETRACT_STEPS = 20

BOOTSTRAPPING, READY, SUCCESS, FAILED = "bootstrapping", "ready", "success", "failed"


@dataclass(eq=False)
class Link:
    """One request's end of the connection, with what it holds on this side.

    status    set by the wire, by time-outs and by aborts
    since     P: arrival, D: when the page list went out; time-outs run from here
    prefix    tokens that lie on D already; P sends from there on
    """

    request: Request
    room: int
    since: int = 0
    status: str = BOOTSTRAPPING
    slot: int | None = None
    prefix: int = 0
    num_sent_pages: int = 0
    is_ready: bool = False  # D: as its queue saw it last

    @property
    def id(self):
        return self.request.id


@dataclass
class Slots:
    """Places for first tokens, taken from the front, returned to the end."""

    free: deque = field(default_factory=deque)

    @classmethod
    def of(cls, num):
        return cls(deque(range(num)))


class PrefillQueues(SglangScheduler):
    def __init__(self, config, bootstrap_timeout):
        super().__init__(config)
        self.bootstrap_timeout = bootstrap_timeout
        self.bootstrap: list[Link] = []
        self.inflight: list[Link] = []
        self.links: dict = {}  # id -> Link of whoever is waiting or later
        self.slots = Slots.of(2 * config.max_running_requests)
        self.log: list = []
        self.sent: list = []  # links whose last pages went out in this step

    def arrive(self, link: Link) -> None:
        self.bootstrap.append(link)

    def abort(self, link: Link) -> bool:
        """True when it ends at once; else its sender fails, which the next poll sees."""
        if link.request in self.waiting:
            self.waiting.remove(link.request)
            self.slots.free.append(link.slot)
            return True
        link.status = FAILED
        return False

    def step(self, now):
        self.log, self.sent = [], []
        bootstrapped = self._pop_bootstrapped(now)
        self.running.is_full = False
        if self.chunked is not None:
            self._send(self.links[self.chunked.id], is_last=False)
        plan = self.schedule()
        result = self.update(plan)
        for request in result.emitted:
            link = self.links[request.id]
            self._send(link, is_last=True)
            self.inflight.append(link)
            self.sent.append(link)
        return bootstrapped, plan, self._poll_inflight()

    def _merge_last_prefill(self) -> None:
        """Nobody decodes here."""

    def _emit(self, request, result) -> None:
        request.num_output += 1
        result.emitted.append(request)

    def _pop_bootstrapped(self, now) -> list:
        for link in self.bootstrap:
            if link.status == BOOTSTRAPPING and now - link.since >= self.bootstrap_timeout:
                link.status = FAILED
                self.log.append(["bootstrap_timeout", link.room])
        kept, popped, is_over = [], [], False
        for link in self.bootstrap:
            if is_over or link.status == BOOTSTRAPPING:
                kept.append(link)
            elif link.status == FAILED:
                self.log.append(["out", "P", link.id, "FINISH_ABORT"])
            elif not self.slots.free:
                kept.append(link)
                is_over = True
            else:
                link.slot = self.slots.free.popleft()
                self.links[link.id] = link
                self.add(link.request)
                popped.append(link)
        self.bootstrap = kept
        return popped

    def _send(self, link: Link, is_last: bool) -> None:
        """Whole pages so far; at the end the partial one too. Nothing to send says nothing, but for the last."""
        size = self.config.page_size
        num_kv = link.request.num_kv
        stop = -(-num_kv // size) if is_last else num_kv // size
        start = link.prefix // size + link.num_sent_pages
        if stop <= start and not is_last:
            return
        link.num_sent_pages += max(stop - start, 0)
        self.log.append(["send", link.room, max(stop - start, 0), is_last])

    def _poll_inflight(self) -> list:
        ended = [link for link in self.inflight if link.status in (SUCCESS, FAILED)]
        self.inflight = [link for link in self.inflight if link not in ended]
        for link in ended:
            self.memory.finish(link.request)
        done = []
        for link in ended:
            reason = "FINISH_LENGTH" if link.status == SUCCESS else "FINISH_ABORT"
            self.log.append(["out", "P", link.id, reason])
            done.append([link.id, reason])
            self.slots.free.append(link.slot)
        return done


@dataclass(frozen=True)
class DecodeConfig:
    kv_tokens: int
    page_size: int
    max_running: int
    pre_alloc: int
    reserved: int
    waiting_timeout: int
    poll_interval: int = 1
    is_radix: bool = False


class DecodeQueues:
    def __init__(self, config: DecodeConfig):
        self.config = config
        self.memory = RequestMemory(config.kv_tokens, config.page_size, "lru", config.is_radix)
        self.slots = Slots.of(2 * config.max_running)
        self.slot_rooms: dict[int, int] = {}  # written by the wire
        self.prealloc: list[Link] = []
        self.transfer: list[Link] = []
        self.waiting: list[Request] = []
        self.retracted: list[Request] = []
        self.running: list[Request] = []  # with those that finished in the last step
        self.log: list = []
        self.page_lists: list[Link] = []  # links whose page list went out in this step
        self._num_polls = 0

    @property
    def num_free_rows(self) -> int:
        return self.config.max_running + self.config.pre_alloc - len(self.memory.holders)

    def arrive(self, link: Link) -> None:
        self.prealloc.append(link)

    def abort(self, link: Link) -> bool:
        """True when it ends at once."""
        request = link.request
        if request in self.waiting:
            self.waiting.remove(request)
            if self.config.is_radix:
                self.memory.finish(request)
            else:
                self._release(request)
            return True
        if request in self.retracted:
            self.retracted.remove(request)
            return True
        if request in self.running:
            request.is_abort_wanted = True
        else:
            link.status = FAILED
        return False

    def step(self, now):
        self.log, self.page_lists = [], []
        self.memory.evicted = []
        retractable = self._retractable()
        out = {"allocatable": self._budget(retractable, 0)}
        out["resumed"] = self._resume()
        if not self.retracted:
            self._num_polls += 1
            if self._num_polls % self.config.poll_interval == 0:
                self._preallocate(now)
                out["transferred"] = self._poll_transfers(now)
        self._start()
        return out | self._decode()

    # -- memory

    def _release(self, request: Request) -> None:
        """Nothing is inserted. Without a tree it is one call, whose pages are sorted together."""
        if self.config.is_radix:
            self.memory.retract(request)
            return
        self.memory.allocator.free(request.row)
        request.row = []
        self.memory.retract(request)

    def _available(self) -> int:
        memory = self.memory
        return memory.num_free + (memory.num_evictable if self.config.is_radix else 0)

    def _retractable(self) -> int:
        return sum(r.num_tokens for r in self.running)

    def _num_live(self) -> int:
        return len(self.running) + len(self.transfer) + len(self.waiting)

    def _need_back(self, request: Request) -> int:
        return request.num_prompt + max(request.num_output - 1, 0) + self.config.reserved

    def _budget(self, retractable: int, num_preallocated: int) -> int:
        """Tokens that may be preallocated: what decoding requests are expected to take stays free."""
        reserve = self.config.reserved * (self._num_live() + num_preallocated)
        lone = max((min(r.max_new_tokens, CLIP_TOKENS) + r.num_prompt for r in self.running), default=retractable)
        waiting_back = sum(map(self._need_back, self.retracted))
        return self._available() - max(reserve, lone - retractable) - waiting_back

    # -- queues

    def _resume(self) -> list:
        budget = self._available() - self.config.reserved * self._num_live()
        resumed = []
        for request in list(self.retracted):
            need = self._need_back(request)
            if self.num_free_rows == 0 or need > budget:
                break
            budget -= need
            request.last_node = self.memory.tree.root
            self.memory._grow_row(request, request.num_prompt + max(request.num_output - 1, 0))
            self.retracted.remove(request)
            self.waiting.append(request)
            resumed.append(request.id)
        return resumed

    def _preallocate(self, now) -> None:
        if not all(link.is_ready for link in self.prealloc):
            for link in self.prealloc:
                link.is_ready = link.status == READY
            for link in self.prealloc:
                if link.status == FAILED:
                    self.log.append(["out", "D", link.id, "FINISH_ABORT"])
            self.prealloc = [link for link in self.prealloc if link.status != FAILED]
        retractable = self._retractable()
        taken: list[Link] = []
        for link in self.prealloc:
            if not link.is_ready:
                continue
            if self.num_free_rows == 0 or not self.slots.free:
                break
            if not self._try_preallocate(link, retractable, len(taken)):
                break
            link.slot = self.slots.free.popleft()
            link.since = now
            size = self.config.page_size
            pages = link.request.row[link.prefix // size :]
            self.log.append(["prealloc", link.room, pages, link.slot, link.prefix])
            taken.append(link)
        self.prealloc = [link for link in self.prealloc if link not in taken]
        self.transfer += taken
        self.page_lists = taken

    def _try_preallocate(self, link: Link, retractable: int, num_preallocated: int) -> bool:
        request, memory = link.request, self.memory
        if self.config.is_radix:
            match = memory.match(request, request.num_tokens)
            request.last_node = match.node
            memory.lock(request)
            prefix = len(match.values) * memory.block_size
            need = memory.round_up(request.num_prompt - prefix)
        else:
            match, prefix, need = None, 0, request.num_prompt
        growth = request.num_prompt - prefix + min(request.max_new_tokens, CLIP_TOKENS) - retractable
        if max(need + self.config.reserved, growth) > self._budget(retractable, num_preallocated):
            if match is not None:
                memory.unlock(request)
            return False
        if match is None:
            request.last_node = memory.tree.root
        else:
            request.row = list(match.values)
        request.num_prefix = request.num_protected = link.prefix = prefix
        missing = need - memory.num_free
        if missing > 0:
            memory.evict(missing)
        memory._grow_row(request, request.num_prompt)
        return True

    def _poll_transfers(self, now) -> list:
        for link in self.transfer:
            if link.status == READY and now - link.since >= self.config.waiting_timeout:
                link.status = FAILED
                self.log.append(["waiting_timeout", link.room])
        ended, transferred = [], []
        for link in self.transfer:
            room = self.slot_rooms.get(link.slot, 0)
            if link.status == READY or (link.status == SUCCESS and room == 0):
                continue
            ended.append(link)
            if link.status == SUCCESS and room == link.room:
                link.request.num_output = 1
                self.waiting.append(link.request)
                transferred.append(link.id)
            else:
                self.log.append(["out", "D", link.id, "FINISH_ABORT"])
                self._release(link.request)
        self.transfer = [link for link in self.transfer if link not in ended]
        self.slots.free.extend(link.slot for link in ended)
        return transferred

    def _start(self) -> None:
        num = self.config.max_running - len(self.running)
        started, self.waiting = self.waiting[:num], self.waiting[num:]
        for request in started:
            self.memory.insert_unfinished(request)
        self.running += started

    # -- decoding

    def _decode(self) -> dict:
        self.running = [r for r in self.running if r.finish_reason is None]
        if not self.running:
            return {}
        out: dict = {}
        if not self._is_room(self.running):
            out = self._retract()
        if not self.running:
            return out
        self.memory.allocate_decode(self.running)
        out["batch"] = [[r.id, r.num_kv] for r in self.running]
        self.memory.allocator.begin_group()
        for request in self.running:
            self._emit(request)
        self.memory.allocator.end_group()
        return out

    def _is_room(self, requests) -> bool:
        return self.memory.make_room(self.memory.num_tokens_next_decode(requests))

    def _retract(self) -> dict:
        kept = sorted(self.running, key=lambda r: (r.num_output, -r.num_prompt), reverse=True)
        retracted: list[Request] = []
        while len(kept) > 1 and (not retracted or not self._is_room(kept)):
            request = kept.pop()
            self._release(request)
            self.memory.make_room(len(kept) * RETRACT_STEPS)
            retracted.append(request)
        self.running = kept
        self.retracted += retracted
        decoded, expected = sum(r.num_output for r in kept), sum(r.max_new_tokens for r in kept)
        ratio = min(1.0, (decoded + RETRACT_STEPS * len(kept)) / (expected + 1))
        return {"retracted": [r.id for r in retracted], "ratio": round(ratio, 9)}

    def _emit(self, request: Request) -> None:
        request.num_output += 1
        if request.is_abort_wanted:
            request.finish_reason = "FINISH_ABORT"
        elif request.num_output >= request.max_new_tokens:
            request.finish_reason = "FINISH_LENGTH"
        if request.finish_reason is not None:
            self.memory.finish(request)
            self.log.append(["out", "D", request.id, request.finish_reason])
