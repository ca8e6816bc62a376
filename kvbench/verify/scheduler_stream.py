"""Recordings of whole schedulers: requests arrive, a step is planned, a fake model emits a token for each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..engine import probe
from ..engine.observe import View
from ..engine.settings import EngineSettings
from ..scheduler.state_columns import (
    FINISHED,
    FIRST_TERMINAL,
    GENERATED,
    NEXT,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
)
from .content import Asked
from .recording import Row
from .stream import EngineStream, Observed, follow


class Planned(NamedTuple):
    """A row of the engine's plan."""

    seq: int
    slot: int
    start: int
    tokens: int
    blocks_before: int


class SchedulerStream(EngineStream):
    """An engine on the step-by-step path; a step's number is its time."""

    def __init__(self, header: Mapping[str, Any], settings: EngineSettings) -> None:
        requests = header["requests"]
        asked = [_asked(r, header["engine"] == "sglang") for r in requests]
        super().__init__([r["id"] for r in requests], asked, settings)
        self.totals: Counter[str] = Counter()
        self.steps = 0

    def feed(self, row: Row) -> bool:
        """The row's arrivals and aborts happen. True when there is something to schedule."""
        self.steps += 1
        probe.set_now(self.engine, row["step"])
        for name in row.get("arrive", ()):
            probe.arrive(self.engine, self.index[name], self.index[name])
        for name in row.get("abort", ()):
            self.leave(self.index[name])
        now = self.view()
        return now.queue_head >= 0 or now.holders > 0

    def schedule(self) -> tuple[View, list[Planned]]:
        self.discipline.schedule(self.engine)
        now = self.view()
        columns = (PLAN_SLOT, PLAN_START, PLAN_TOKENS, PLAN_BLOCKS_BEFORE)
        rows = [[int(row[c]) for c in columns] for row in self.plan_array[: now.num_plan]]
        return now, [Planned(int(self.rec[slot, SEQ]), slot, *rest) for slot, *rest in rows]

    def commit(self, plan: Sequence[Planned]) -> list[str]:
        """The step has run. Returns who emitted a token."""
        before = [self.generated(row.seq) for row in plan]
        self.discipline.commit(self.engine)
        after = [self.generated(row.seq) for row in plan]
        probe.settle(self.engine)
        return self.named(row.seq for row, a, b in zip(plan, after, before, strict=True) if a > b)

    def ended(self, plan: Sequence[Planned]) -> list[str]:
        return self.named(row.seq for row in plan if self.seqs["state"][row.seq] == FINISHED)

    def generated(self, seq: int) -> int:
        slot = self.seqs["slot"][seq]
        return int(self.seqs["generated"][seq] if slot < 0 else self.rec[slot, GENERATED])

    def queues(self, now: View) -> Observed:
        return {
            "running": self.named(int(self.rec[s, SEQ]) for s in follow(now.running_head, self.rec[:, NEXT], -1)),
            "waiting": self.named(follow(now.queue_head, self.seqs["queue_next"], -1)),
        }

    def outcome(self, seq: int) -> Observed:
        """What both engines' summaries say of a request."""
        q = self.seqs
        return {
            "id": self.ids[seq],
            "first_sched": _happened(q["scheduled"][seq]),
            "finish": _happened(q["finish"][seq]) if q["state"][seq] >= FIRST_TERMINAL else None,
            "num_output": self.generated(seq),
        }


def _happened(step: Any) -> int | None:
    return None if step < 0 else int(step)


def output_of(request: Mapping[str, Any]) -> list[int]:
    """The tokens that the fake model emits: up to the declared length, or to the one that stops it."""
    output: list[int] = request["output"][: request["max_tokens"]]
    eos = request.get("eos")
    return output[: output.index(eos) + 1] if eos in output else output


def _asked(request: Mapping[str, Any], greater_is_more_urgent: bool) -> Asked:
    namespace, priority = request.get("salt", request.get("ns")), request.get("priority", 0)
    urgency = -priority if greater_is_more_urgent else priority
    return Asked(request["prompt"], output_of(request), request["max_tokens"], namespace, urgency)
