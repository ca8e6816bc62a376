"""vLLM's prefill and decode engines joined by a pull connector, step by step.

Router, network and workers are played as the script beside the recorded engines played them: everything takes whole
ticks, and what is lost is in the recording's header.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..engine import probe
from ..engine.arrival import as_asked
from ..engine.build import build_engine, share
from ..engine.observe import fields_of, view
from ..engine.settings import EngineSettings
from ..pairs import leases, pull_decode, pull_prefill
from ..scheduler.rules import CacheRules, SchedulerRules
from ..scheduler.state_columns import (
    BLOCKS,
    COMPUTED,
    DRAINS,
    FINISHED,
    GENERATED,
    LOADED,
    LOADING,
    LOST,
    NEXT,
    PARKED,
    PHASE,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
)
from .content import Asked, request_table
from .recording import Row
from .stream import Observed, follow, no_costs

START_NS = 1000 * 10**9
_WAITS = "WAITING_FOR_REMOTE_KVS"


class PullSide:
    """An engine, and what is read of it."""

    def __init__(self, ids: Sequence[str], asked: Sequence[Asked], p: Row, role: str, module: Any) -> None:
        rules = SchedulerRules(
            max_num_seqs=p["max_num_seqs"],
            max_num_batched_tokens=p["max_num_batched_tokens"],
            long_prefill_threshold_when_alone=False,
            self_preemption_ends_step=False,
        )
        kind = "hash" if p.get("enable_prefix_caching", True) else "none"
        cache = CacheRules(kind, p["num_blocks"] - 1, free_order="unhashed-first")
        settings = EngineSettings(rules, cache, p["block_size"], p["max_model_len"], fast=False, role=role)
        self.ids, self.verbs = ids, module
        requests = request_table(asked)
        self.engine = build_engine(share(requests, settings, taken=as_asked(requests, settings)), settings, no_costs())
        state = fields_of(self.engine)
        self.seqs = fields_of(state["seqs"])
        slots = fields_of(state["slots"])
        self.rec, self.table = slots["rec"], slots["table"]
        self.plan, self.victims = state["plan"], state["victims"]
        self.holding_slots = fields_of(state["side"])["holding"]

    def named(self, seqs: Iterable[int]) -> list[str]:
        return [self.ids[int(seq)] for seq in seqs]

    def phase(self, seq: int) -> int:
        slot = self.seqs["slot"][seq]
        return int(self.rec[slot, PHASE]) if slot >= 0 else -1

    def blocks(self, seq: int) -> list[int]:
        slot = self.seqs["slot"][seq]
        return [int(b) for b in self.table[slot, : self.rec[slot, BLOCKS]]]

    def generated(self, seq: int) -> int:
        slot = self.seqs["slot"][seq]
        return int(self.seqs["generated"][seq] if slot < 0 else self.rec[slot, GENERATED])

    def cancel(self, seq: int) -> None:
        self.verbs.cancel(self.engine, seq)

    def step(self, now_ns: int, commit: Any) -> Observed:
        """Schedule and commit. Returns what both engines of a pair show of a step."""
        probe.set_now(self.engine, now_ns)
        self.verbs.schedule(self.engine)
        now = view(self.engine)
        rows = [[int(v) for v in row] for row in self.plan[: now.num_plan]]
        seqs = [int(self.rec[row[PLAN_SLOT], SEQ]) for row in rows]
        got: Observed = {
            "sched": [self._row(seq, row) for seq, row in zip(seqs, rows, strict=True)],
            "preempted": self.named(self.victims[: now.num_victims]),
        }
        before = [self.generated(seq) for seq in seqs]
        commit(self.engine)
        emitted = [seq for seq, count in zip(seqs, before, strict=True) if self.generated(seq) > count]
        got["emitted"] = self.named(emitted)
        over = [seq for seq in emitted if self.seqs["state"][seq] == FINISHED or self.phase(seq) == PARKED]
        return got | {"finished": [[self.ids[seq], "length"] for seq in over]}

    def _row(self, seq: int, row: list[int]) -> list[Any]:
        slot = row[PLAN_SLOT]
        blocks = self.table[slot, row[PLAN_BLOCKS_BEFORE] : self.rec[slot, BLOCKS]].tolist()
        return [self.ids[seq], row[PLAN_START], row[PLAN_TOKENS], blocks]

    def queues(self) -> Observed:
        probe.settle(self.engine)
        now, side = view(self.engine), fields_of(self.engine.side)
        holding = self.holding_slots[: side["num_holding"]]
        phases = [self.phase(seq) for seq in range(len(self.ids))]
        return {
            "running": self.named(self.rec[s, SEQ] for s in follow(now.running_head, self.rec[:, NEXT], -1)),
            "waiting": self.named(follow(now.queue_head, self.seqs["queue_next"], -1)),
            "holding": [[name, _WAITS] for name in self.named(self.rec[holding, SEQ])],
            "free": now.free,
            "zombies": sorted(self.named(s for s, phase in enumerate(phases) if phase in (PARKED, DRAINS))),
        }


class PullPair:
    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.33.0",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "lease dt transfer_delay notif_delay router_delay failure_policy max_ticks P D hb_loss".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.params = p = header["params"]
        self.specs = header["requests"]
        self.ids = [spec["id"] for spec in self.specs]
        prompts = [tokens_of_runs(spec["prompt"]) for spec in self.specs]
        outputs = [[900000 + 1000 * i + k for k in range(spec["max_tokens"])] for i, spec in enumerate(self.specs)]
        ones = [Asked(prompt, output[:1], 1) for prompt, output in zip(prompts, outputs, strict=True)]
        alls = [Asked(prompt, output, len(output)) for prompt, output in zip(prompts, outputs, strict=True)]
        self.prefill = PullSide(self.ids, ones, p["P"], "prefill", pull_prefill)
        self.decode = PullSide(self.ids, alls, p["D"], "decode", pull_decode)
        self.decode.seqs["present"][:] = self.decode.seqs["prompt"]
        self.leases = leases.make_leases(len(self.ids), p["lease"] * 10**9)
        self.ends = fields_of(self.leases)["ends"]
        self.computed: list[tuple[int, int]] = []  # prefilled in the last step: sequence, ns
        self.handed: list[tuple[int, int, int]] = []  # tick at which D is told, number of the hand-off, sequence
        self.num_handed = 0
        self.remote_blocks: dict[int, list[int]] = {}
        self.mail: list[tuple[int, str, list[int]]] = []  # to P: tick, kind, sequences
        self.reads: list[tuple[int, int]] = []  # tick at which it is done, sequence; in the order they began
        self.tracked: set[int] = set()
        self.last_beat_ns = 0
        self.aborted: set[int] = set()
        self.ticks = 0

    # -- a tick

    def step(self, row: Row) -> Observed:
        t = row["t"]
        self.ticks = t + 1
        now = START_NS + round(t * self.params["dt"] * 10**9)
        for seq, spec in enumerate(self.specs):
            if spec["arrive"] == t:
                probe.arrive(self.prefill.engine, seq, seq)
            if spec.get("abort_p") == t:
                self.prefill.cancel(seq)
        p = self._step_prefill(t, now)
        due = sorted((h for h in self.handed if h[0] <= t), key=lambda h: h[1])
        self.handed = [h for h in self.handed if h[0] > t]
        for _, _, seq in due:
            probe.arrive(self.decode.engine, seq, seq)
            self.tracked.add(seq)
        told = self._abort_decode()
        d = self._step_decode(t, now, told)
        return {f"P.{k}": v for k, v in p.items()} | {f"D.{k}": v for k, v in d.items()}

    def _step_prefill(self, t: int, now: int) -> Observed:
        side = self.prefill
        for seq, computed_ns in self.computed:
            leases.begin(self.leases, seq, computed_ns)
        started = sorted(self.prefill.named(seq for seq, _ in self.computed))
        got = side.step(now, self._commit_prefill(t, now))
        return got | {"lease_start": started} | self.seen | side.queues()

    def _commit_prefill(self, t: int, now: int) -> Any:
        """The worker hears its mail before the step's results are dealt with; its leases are over afterwards."""

        def commit(engine: Any) -> None:
            read, late = self._read_mail(t, now)
            over = [seq for seq in range(len(self.ids)) if leases.expire(self.leases, seq, now)]
            lease = {self.ids[s]: (self.ends[s] - START_NS) / 10**9 for s in np.flatnonzero(self.ends >= 0)}
            before = [self.prefill.phase(seq) for seq in range(len(self.ids))]
            self.prefill.verbs.commit(engine)
            plan = [int(self.prefill.rec[row[PLAN_SLOT], SEQ]) for row in self.prefill.plan[: view(engine).num_plan]]
            parked = [seq for seq in plan if self.prefill.phase(seq) == PARKED and before[seq] != PARKED]
            self.computed = [(seq, now) for seq in parked]
            handoff = [self._hand_over(seq, t) for seq in parked]
            for seqs in (read, over):
                for seq in sorted(seqs, key=lambda s: self.ids[s]):
                    pull_prefill.let_go(engine, seq)
            self.seen = {
                "read_done": sorted(self.prefill.named(read)),
                "lease_expired": sorted(self.prefill.named(over)),
                "late_notifs": late,
                "handoff": [row for row in handoff if row],
                "lease": lease,
            }

        return commit

    def _read_mail(self, t: int, now: int) -> tuple[list[int], int]:
        read, late = [], 0
        for due, kind, seqs in self.mail:
            for seq in seqs if due <= t else ():
                if kind == "beat":
                    leases.beat(self.leases, seq, now)
                elif leases.read(self.leases, seq):
                    read.append(seq)
                else:
                    late += 1
        self.mail = [m for m in self.mail if m[0] > t]
        return read, late

    def _hand_over(self, seq: int, t: int) -> list[Any]:
        blocks, spec = self.prefill.blocks(seq), self.specs[seq]
        self.remote_blocks[seq] = blocks
        if spec.get("never_d"):
            return []
        self.num_handed += 1
        self.handed.append((t + spec.get("router", self.params["router_delay"]), self.num_handed, seq))
        return [self.ids[seq], blocks, int(self.prefill.rec[self.prefill.seqs["slot"][seq], COMPUTED])]

    def _abort_decode(self) -> list[int]:
        """Returns those whose read has not begun: P is told with an empty one."""
        told = []
        for seq, spec in enumerate(self.specs):
            if "abort_d" not in spec or seq in self.aborted or not self._is_there(seq, spec["abort_d"]):
                continue
            self.aborted.add(seq)
            self.tracked.discard(seq)
            if spec["abort_d"] == "queued":
                told.append(seq)
            self.decode.cancel(seq)
        return told

    def _is_there(self, seq: int, where: str) -> bool:
        side, phase = self.decode, self.decode.phase(seq)
        if where == "queued":
            return seq in self.tracked and phase < 0 and side.seqs["scheduled"][seq] < 0
        if where == "loading":
            return phase in (LOADING, LOADED, LOST)
        return phase >= 0 and phase not in (LOADING, LOADED, LOST, DRAINS) and side.generated(seq) >= 2

    def _step_decode(self, t: int, now: int, told: list[int]) -> Observed:
        side, p = self.decode, self.params
        loading = {seq for seq in range(len(self.ids)) if side.phase(seq) == LOADING}
        seen: Observed = {}

        def commit(engine: Any) -> None:
            holding = self.decode.holding_slots[: fields_of(engine.side)["num_holding"]]
            starts = [int(seq) for seq in side.rec[holding, SEQ] if int(seq) not in loading]
            starts = [seq for seq in starts if side.phase(seq) == LOADING]
            for seq in starts:
                self.reads.append((t + self.specs[seq].get("delay", p["transfer_delay"]), seq))
            self.mail += [(t + p["notif_delay"], "read", [seq]) for seq in told]
            beat = self._beat(t, now)
            ended = self._end_reads(t)
            own = [
                side.blocks(seq)[side.rec[side.seqs["slot"][seq], COMPUTED] // side.engine.rules.block_tokens :]
                for seq in starts
            ]
            pull_decode.commit(engine)
            seen.update(
                recv_start=[
                    [self.ids[s], blocks, self.remote_blocks[s]] for s, blocks in zip(starts, own, strict=True)
                ],
                notify_only=side.named(told),
                recv_done=side.named(seq for seq, good in ended if good),
                recv_failed=side.named(seq for seq, good in ended if not good),
                heartbeat=sorted(side.named(beat)),
                heartbeat_lost=bool(beat) and self._is_beat_lost(t),
            )
            failed = [seq for seq, good in ended if not good and p["failure_policy"] == "fail"]
            failed = [seq for seq in failed if side.phase(seq) != DRAINS]
            for seq in failed:
                pull_decode.fail(engine, seq)
            for seq, good in ended:
                pull_decode.read_ended(engine, seq, good)
            self.failed = failed

        got = side.step(now, commit)
        for seq in np.flatnonzero(side.seqs["state"] == FINISHED):
            self.tracked.discard(int(seq))
        got["finished"] += [[self.ids[seq], "error"] for seq in self.failed]
        return got | seen | side.queues()

    def _beat(self, t: int, now: int) -> list[int]:
        if not self.tracked or now - self.last_beat_ns < self.leases.interval:
            return []
        self.last_beat_ns = now
        beat = sorted(self.tracked)
        if not self._is_beat_lost(t):
            self.mail.append((t + self.params["notif_delay"], "beat", beat))
        return beat

    def _is_beat_lost(self, t: int) -> bool:
        return any(a <= t < b for a, b in self.params.get("hb_loss", ()))

    def _end_reads(self, t: int) -> list[tuple[int, bool]]:
        """At most one fails a tick, the next one a tick later."""
        ended, left, has_failed = [], [], False
        for due, seq in self.reads:
            fault = self.specs[seq].get("fault")
            if due > t or (fault == "xfer_fail" and has_failed):
                left.append((due, seq))
                continue
            good = fault != "xfer_fail"
            has_failed |= not good
            ended.append((seq, good))
            self.tracked.discard(seq)
            if good and fault != "notif_lost":
                self.mail.append((t + self.params["notif_delay"], "read", [seq]))
        self.reads = left
        return ended

    def last(self) -> Observed:
        left_p = [s for s in range(len(self.ids)) if self.prefill.phase(s) >= 0]
        left_d = [s for s in range(len(self.ids)) if self.decode.phase(s) >= 0]
        summary = {
            "ticks": self.ticks,
            "P_free": view(self.prefill.engine).free,
            "D_free": view(self.decode.engine).free,
            "left_P": self.prefill.named(left_p),
            "left_D": self.decode.named(left_d),
            "lease_left": [self.ids[s] for s in np.flatnonzero(self.ends >= 0)],
        }
        return {"summary": summary}


def tokens_of_runs(runs: Iterable[Sequence[int]]) -> list[int]:
    return [doc * 10000 + start + j for doc, start, count in runs for j in range(count)]
