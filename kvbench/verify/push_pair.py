"""SGLang's prefill and decode queues joined by a wire, tick by tick.

Router, network and workers are played as the script beside the recorded engines played them: everything takes whole
ticks, and what goes wrong is in the recording's header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..engine import probe
from ..engine.arrival import as_asked
from ..engine.build import build_engine, share
from ..engine.observe import fields_of, view
from ..engine.settings import EngineSettings
from ..pairs import push_decode, push_memory, push_prefill, push_queue
from ..scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from ..scheduler.side import BROKEN, CONNECTED, TIMED_OUT_CONNECTION, UNCONNECTED
from ..scheduler.state_columns import (
    BLOCKS,
    BOOTSTRAPPING,
    CANCELLED,
    DECODING,
    FAILED,
    FINISHED,
    FIRST_TERMINAL,
    GENERATED,
    NEXT,
    PARKED,
    PHASE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    PREEMPTED,
    SEQ,
    TIMED_OUT,
    TRANSFERRING,
    WAITING,
)
from .content import Asked, request_table
from .pull_pair import tokens_of_runs
from .recording import Row
from .stream import Observed, follow, no_costs

_ENDED_BADLY = (CANCELLED, FAILED, TIMED_OUT)


@dataclass
class _Wire:
    """What is under way for one request. Ticks; None = has not happened.

    listed   D's page list went out; its slot for the first token, and tokens that lie there already
    sent     P's last pages went out; pages: sent before
    """

    arrived_at_d: int | None = None
    listed: int | None = None
    mark: int = 0
    prefix: int = 0
    sent: int | None = None
    pages: int = 0
    is_over: bool = False
    p_status: str = ""
    d_status: str = ""


class PushPair:
    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.12",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "page_size reserved handshake_delay meta_delay transfer_delay bootstrap_timeout waiting_timeout max_ticks "
        "poll_interval d_radix P D".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.params = p = header["params"]
        self.specs = header["requests"]
        self.ids = [spec["id"] for spec in self.specs]
        self.rooms = [spec["room"] for spec in self.specs]
        self.size = p["page_size"]
        prompts = [tokens_of_runs(spec["prompt"]) for spec in self.specs]
        outputs = [[900000 + 1000 * i + k for k in range(spec["max_tokens"])] for i, spec in enumerate(self.specs)]
        ones = [Asked(prompt, output[:1], 1) for prompt, output in zip(prompts, outputs, strict=True)]
        alls = [Asked(prompt, output, len(output)) for prompt, output in zip(prompts, outputs, strict=True)]
        self.p = self._side(ones, p["P"], "prefill", "radix", chunk=p["P"]["chunk"])
        kind = "radix" if p.get("d_radix") else "none"
        self.d = self._side(
            alls,
            p["D"],
            "decode",
            kind,
            reserved_decode_tokens=p["reserved"],
            preallocated_requests=p["D"]["pre_alloc"],
            poll_interval=p.get("poll_interval", 1),
        )
        self.wires = [_Wire() for _ in self.specs]
        self.inflight: list[int] = []
        self.in_marks: dict[int, int] = {}  # place for a first token -> sequence whose token lies there
        self.aborted: dict[str, set[int]] = {"P": set(), "D": set()}
        self.last_mem: dict[str, Any] = {}
        self.ticks = 0

    def _side(self, asked: list[Asked], p: Row, role: str, kind: str, chunk: int = 0, **more: Any) -> _Side:
        rules = SchedulerRules(
            discipline=PREFILL_FIRST, max_running_requests=p["max_running"], chunked_prefill_size=chunk
        )
        cache = CacheRules(kind, p["kv_tokens"] // self.size, free_order="auto")
        settings = EngineSettings(rules, cache, self.size, 10**6, fast=False, role=role, **more)
        requests = request_table(asked)
        engine = build_engine(share(requests, settings, taken=as_asked(requests, settings)), settings, no_costs())
        rows = p["max_running"] + p.get("pre_alloc", 0)
        return _Side(engine, self.ids, rows, self.size)

    # -- a tick

    def step(self, row: Row) -> Observed:
        t = row["t"]
        self.ticks = t + 1
        transport: list[list[Any]] = []
        for seq in range(len(self.specs)):
            self._move(seq, t, transport)
        for seq, spec in enumerate(self.specs):
            if spec["arrive"] == t:
                self.p.arrive(seq, push_prefill)
                self.wires[seq].p_status = "bootstrapping"
        for seq, spec in enumerate(self.specs):
            if spec["arrive"] + spec.get("d_lag", 0) == t:
                self.d.arrive(seq, push_decode)
                self.wires[seq].arrived_at_d = t
                self.wires[seq].d_status = "bootstrapping"
        self._abort("P", self.p, push_prefill, transport)
        self._abort("D", self.d, push_decode, transport)
        p, d = self._step_prefill(t), self._step_decode(t)
        seen: Observed = {f"P.{k}": v for k, v in p.items()} | {f"D.{k}": v for k, v in d.items()}
        return seen | {"transport": transport}

    def _move(self, seq: int, t: int, transport: list[list[Any]]) -> None:
        p, w, spec, room = self.params, self.wires[seq], self.specs[seq], self.rooms[seq]
        fault = spec.get("fault")
        if w.arrived_at_d is not None and t == w.arrived_at_d + p["handshake_delay"]:
            how = BROKEN if fault == "handshake_fail" else CONNECTED
            if push_queue.connect(self.d.engine, seq, how):
                w.d_status = "connected"
                transport.append(["d_failed" if how == BROKEN else "handshake", room])
        if w.listed is not None and t == w.listed + p["meta_delay"] and fault != "meta_lost":
            if push_queue.connect(self.p.engine, seq, CONNECTED):
                w.p_status = "connected"
            transport.append(["meta_at_p", room])
        if w.sent is None or w.is_over or w.p_status == "failed":
            return
        due = w.sent + (1 if fault == "p_dies" else spec.get("delay", p["transfer_delay"]))
        if t < due:
            return
        w.is_over = True
        if fault in ("p_dies", "xfer_fail"):
            w.p_status = "failed"
            w.d_status = "failed"
            push_decode.transferred(self.d.engine, seq, BROKEN)
            transport.append(["both_failed", room])
            return
        w.p_status = "success"
        if fault == "done_lost":
            transport.append(["p_success", room])
            return
        transport.append(["success", room])
        w.d_status = "success" if w.d_status != "failed" else "failed"
        self.in_marks[w.mark] = -1 if fault == "corrupt" else seq
        push_decode.transferred(self.d.engine, seq, CONNECTED if self.in_marks[w.mark] == seq else BROKEN)

    def _abort(self, name: str, side: _Side, verbs: Any, transport: list[list[Any]]) -> None:
        for seq, spec in enumerate(self.specs):
            where = spec.get(f"abort_{name.lower()}")
            if where is None or seq in self.aborted[name] or not side.is_at(seq, where):
                continue
            self.aborted[name].add(seq)
            before = int(side.seqs["state"][seq])
            verbs.cancel(side.engine, seq)
            if name == "P" and before != WAITING:
                self.wires[seq].p_status = "failed"
            if name == "D" and before == TRANSFERRING:
                self.wires[seq].d_status = "failed"
            if side.seqs["state"][seq] == CANCELLED:
                side.reported.add(seq)
                transport.append(["out", name, self.ids[seq], "AbortReq"])

    def _step_prefill(self, t: int) -> Observed:
        side, log = self.p, []
        for seq in side.queue():
            connected = side.connection[seq]
            late = t - self.specs[seq]["arrive"] >= self.params["bootstrap_timeout"]
            if connected == UNCONNECTED and late:
                push_queue.connect(side.engine, seq, TIMED_OUT_CONNECTION)
                self.wires[seq].p_status = "failed"
                log.append(["bootstrap_timeout", self.rooms[seq]])
        before = {int(s) for s in np.flatnonzero(side.seqs["state"] == BOOTSTRAPPING)}
        chunk = side.chunk()
        probe.set_now(side.engine, t)
        order = side.queue()
        push_prefill.schedule(side.engine)
        state = side.seqs["state"]
        log += side.report(state, "P")
        let_in = [s for s in order if s in before and state[s] != BOOTSTRAPPING and state[s] < FIRST_TERMINAL]
        if chunk is not None:
            self._send(chunk, False, log)
        rows = side.plan_rows()
        chunked = side.chunk()
        push_prefill.commit(side.engine)
        for seq, _, _ in rows:
            if side.phase(seq) == PARKED:
                self._send(seq, True, log)
                self.wires[seq].sent = t
                self.inflight.append(seq)
        done = self._poll_inflight()
        log += [["out", "P", name, reason] for name, reason in done]
        return {
            "bootstrapped": [self.ids[s] for s in let_in],
            "batch": [[self.ids[s], start, tokens] for s, start, tokens in rows],
            "chunked": self.ids[chunked] if chunked is not None else None,
            "log": log,
            "done": done,
            "q": [[self.ids[s] for s in q] for q in (side.queue(), side.waiting(), self.inflight)],
            "mem": side.mem(),
        }

    def _send(self, seq: int, is_last: bool, log: list[list[Any]]) -> None:
        """Whole pages so far; at the end the partial one too. Nothing to send says nothing, but for the last."""
        w, tokens = self.wires[seq], int(self.p.computed(seq))
        stop = -(-tokens // self.size) if is_last else tokens // self.size
        pages = max(stop - w.prefix // self.size - w.pages, 0)
        if pages or is_last:
            w.pages += pages
            log.append(["send", self.rooms[seq], pages, is_last])

    def _poll_inflight(self) -> list[list[str]]:
        ended = [s for s in self.inflight if self.wires[s].p_status in ("success", "failed")]
        self.inflight = [s for s in self.inflight if s not in ended]
        done = []
        for seq in ended:
            good = self.wires[seq].p_status == "success"
            push_prefill.let_go(self.p.engine, seq, good)
            self.p.reported.add(seq)
            done.append([self.ids[seq], "FINISH_LENGTH" if good else "FINISH_ABORT"])
        return done

    def _step_decode(self, t: int) -> Observed:
        side, log = self.d, []
        state = side.seqs["state"]
        loading = [s for s in side.holding() if self.wires[s].d_status == "connected"]
        got: Observed = {"allocatable": int(push_memory.allocatable(side.engine))}
        late = [s for s in loading if t - (self.wires[s].listed or 0) >= self.params["waiting_timeout"]]
        if not side.will_poll(self.params.get("poll_interval", 1)):
            late = []
        for seq in late:
            push_decode.transferred(side.engine, seq, TIMED_OUT_CONNECTION)
            self.wires[seq].d_status = "failed"
        before = state.copy()
        held = dict.fromkeys(side.holding())
        probe.set_now(side.engine, t)
        push_decode.schedule(side.engine)
        outs = side.report(state, "D")
        first = [o for o in outs if before[self.ids.index(o[2])] == BOOTSTRAPPING]
        log += first
        for seq in side.holding() + [s for s in range(len(self.ids)) if s not in held]:
            w = self.wires[seq]
            if before[seq] != BOOTSTRAPPING or w.listed is not None or side.seqs["slot"][seq] < 0:
                continue
            w.listed, w.mark = t, int(side.marks[seq])
            w.prefix = int(side.seqs["cached"][seq])
            pages = side.blocks(seq)[w.prefix // self.size :]
            log.append(["prealloc", self.rooms[seq], pages, w.mark, w.prefix])
        log += [["waiting_timeout", self.rooms[s]] for s in late]
        log += [o for o in outs if o not in first]
        now = view(side.engine)
        got["resumed"] = [self.ids[s] for s in side.in_order(before, PREEMPTED) if state[s] != PREEMPTED]
        moved = [s for s in held if before[s] == TRANSFERRING and state[s] in (WAITING, DECODING)]
        got["transferred"] = [self.ids[s] for s in moved]
        victims = [int(s) for s in side.victims[: now.num_victims]]
        got["retracted"] = [self.ids[s] for s in victims]
        if victims:
            got["ratio"] = round(now.new_token_ratio, 9)
        got["batch"] = [[self.ids[s], start + 1] for s, start, _ in side.plan_rows()]
        side.retracted = [s for s in side.retracted if state[s] == PREEMPTED]
        side.retracted += [s for s in victims if s not in side.retracted]
        push_decode.commit(side.engine)
        log += side.report(state, "D")
        queues = [side.holding(), side.waiting(), side.retracted, side.running()]
        got["q"] = [
            [[self.ids[s], bool(side.seen[s])] for s in side.queue()],
            *([self.ids[s] for s in q] for q in queues),
        ]
        return got | {"log": log, "mem": side.mem()}

    def last(self) -> Observed:
        return {"summary": {"ticks": self.ticks, "P_mem": self.p.mem(), "D_mem": self.d.mem()}}


class _Side:
    """An engine, and what is read of it."""

    def __init__(self, engine: Any, ids: list[str], rows: int, size: int) -> None:
        self.engine, self.ids, self.rows, self.size = engine, ids, rows, size
        state = fields_of(engine)
        self.seqs, slots = fields_of(state["seqs"]), fields_of(state["slots"])
        self.rec, self.table = slots["rec"], slots["table"]
        self.plan, self.victims = state["plan"], state["victims"]
        side = fields_of(state["side"])
        self.connection, self.seen, self.marks = side["connection"], side["seen"], side["mark"]
        self.reported: set[int] = set()
        self.retracted: list[int] = []

    def arrive(self, seq: int, verbs: Any) -> None:
        self.seqs["engine"][seq] = 0
        self.seqs["state"][seq] = 2
        verbs.accept(self.engine, seq)

    def _of_side(self) -> dict[str, Any]:
        return fields_of(self.engine.side)

    def queue(self) -> list[int]:
        side = self._of_side()
        return [int(s) for s in side["queue"][: side["num_queued"]]]

    def holding(self) -> list[int]:
        side = self._of_side()
        return [int(self.rec[s, SEQ]) for s in side["holding"][: side["num_holding"]]]

    def will_poll(self, interval: int) -> bool:
        """Whether the next step looks at transfers, if no retracted sequence stays."""
        side = self._of_side()
        return not self.retracted and (side["polls"] + 1) % interval == 0

    def waiting(self) -> list[int]:
        return list(follow(view(self.engine).queue_head, self.seqs["queue_next"], -1))

    def running(self) -> list[int]:
        return [int(self.rec[s, SEQ]) for s in follow(view(self.engine).running_head, self.rec[:, NEXT], -1)]

    def in_order(self, before: Any, state: Any) -> list[int]:
        return [s for s in self.retracted if before[s] == state]

    def chunk(self) -> int | None:
        slot = view(self.engine).chunk
        return int(self.rec[slot, SEQ]) if slot >= 0 else None

    def phase(self, seq: int) -> int:
        slot = self.seqs["slot"][seq]
        return int(self.rec[slot, PHASE]) if slot >= 0 else -1

    def computed(self, seq: int) -> int:
        return int(self.rec[self.seqs["slot"][seq], 1])

    def blocks(self, seq: int) -> list[int]:
        slot = self.seqs["slot"][seq]
        return [int(b) for b in self.table[slot, : self.rec[slot, BLOCKS]]]

    def plan_rows(self) -> list[tuple[int, int, int]]:
        rows = self.plan[: view(self.engine).num_plan]
        return [(int(self.rec[r[PLAN_SLOT], SEQ]), int(r[PLAN_START]), int(r[PLAN_TOKENS])) for r in rows]

    def is_at(self, seq: int, where: str) -> bool:
        state, phase = self.seqs["state"][seq], self.phase(seq)
        if where in ("bootstrap", "prealloc"):
            return bool(state == BOOTSTRAPPING)
        if where == "inflight":
            return phase == PARKED
        if where == "transfer":
            return bool(state == TRANSFERRING)
        if where == "running":
            return bool(state == DECODING) and self.rec[self.seqs["slot"][seq], GENERATED] >= 2
        return bool(state == (PREEMPTED if where == "retracted" else WAITING))

    def report(self, state: Any, name: str) -> list[list[Any]]:
        """Who has ended since it was asked last, in that order, and has not been told of otherwise."""
        head, links, ended = int(self.engine.ended_head), self.seqs["ended_next"], []
        while head >= 0:
            ended.append(head)
            head = -1 if head == int(self.engine.ended_tail) else int(links[head])
        probe.settle(self.engine)
        ended = [s for s in ended if s not in self.reported]
        return [["out", name, self.ids[s], "FINISH_LENGTH" if state[s] == FINISHED else "FINISH_ABORT"] for s in ended]

    def mem(self) -> list[int]:
        now = view(self.engine)
        tokens = [n * self.size for n in (now.free, now.evictable, now.protected)]
        return [*tokens, int(self._of_side()["num_marks"]), self.rows - now.holders]
