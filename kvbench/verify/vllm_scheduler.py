"""vLLM's scheduler over its cache manager, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..engine.settings import EngineSettings
from ..scheduler.rules import CacheRules, SchedulerRules
from ..scheduler.state_columns import BLOCKS, CANCELLED, FINISHED
from .recording import Row
from .scheduler_stream import Planned, SchedulerStream, output_of
from .stream import Observed, follow

OLD, NEW = "0.19.0", "0.33.0"


def free_order_of(version: str) -> str:
    """Where a version puts freed blocks without a hash."""
    return "tail" if version == OLD else "unhashed-first"


class VllmScheduler(SchedulerStream):
    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = (OLD, NEW)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "block_size num_blocks max_num_seqs max_num_batched_tokens max_model_len enable_chunked_prefill "
        "enable_prefix_caching policy long_prefill_token_threshold scheduler_reserve_full_isl max_num_active_seqs "
        "long_prefill_token_threshold_adaptive prefill_schedule_interval watermark".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {"async_scheduling": False}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p, old = header["params"], header["version"] == OLD
        rules = SchedulerRules(
            policy=p["policy"],
            max_num_seqs=p["max_num_seqs"],
            max_num_batched_tokens=p["max_num_batched_tokens"],
            enable_chunked_prefill=p["enable_chunked_prefill"],
            long_prefill_token_threshold=p["long_prefill_token_threshold"],
            long_prefill_threshold_when_alone=old,
            long_prefill_token_threshold_adaptive=p.get("long_prefill_token_threshold_adaptive", False),
            max_num_active_seqs=p.get("max_num_active_seqs") or 0,
            prefill_schedule_interval=p.get("prefill_schedule_interval", 1),
            watermark=p.get("watermark", 0.0),
            reserve_full_isl=p["scheduler_reserve_full_isl"],
            self_preemption_ends_step=old,
        )
        kind = "hash" if p["enable_prefix_caching"] else "none"
        # One of the recorded blocks is a placeholder that is never handed out.
        cache = CacheRules(kind, p["num_blocks"] - 1, free_order=free_order_of(header["version"]))
        super().__init__(header, EngineSettings(rules, cache, p["block_size"], p["max_model_len"], fast=False))
        self.specs = header["requests"]
        self.after = self.engine.pool.after

    def step(self, row: Row) -> Observed:
        if not self.feed(row):
            return {"idle": True}
        logged, scheduled = self.view().evicted_blocks, self.seqs["scheduled"].copy()
        now, plan = self.schedule()
        got: Observed = {
            "sched": [self._row(planned) for planned in plan],
            "new": self.named(r.seq for r in plan if scheduled[r.seq] < 0),
            "resumed": self.named(r.seq for r in plan if scheduled[r.seq] >= 0 and r.blocks_before == 0),
            "preempted": self.named(self.victims[: now.num_victims]),
            "evicted": self.evicted_blocks[logged : now.evicted_blocks].tolist(),
            "free_sched": now.free,
        }
        got["emitted"] = self.commit(plan)
        got["finished"] = [[name, self._reason(self.index[name])] for name in self.ended(plan)]
        self._count(got)
        now = self.view()
        got |= {"free": now.free, "cached_hashes": now.distinct_hashes} | self.queues(now)
        if "free_queue" in row["out"]:
            got["free_queue"] = list(follow(self.after[0], self.after, 0))
        return got

    def _row(self, r: Planned) -> list[Any]:
        blocks = self.table[r.slot, r.blocks_before : self.rec[r.slot, BLOCKS]].tolist()
        return [self.ids[r.seq], r.start, r.tokens, blocks]

    def _reason(self, seq: int) -> str | None:
        state = self.seqs["state"][seq]
        if state == FINISHED:
            eos, said = self.specs[seq].get("eos"), output_of(self.specs[seq])[: self.seqs["generated"][seq]]
            return "stop" if eos is not None and said[-1:] == [eos] else "length"
        return "abort" if state == CANCELLED else None

    def _count(self, got: Observed) -> None:
        admitted = {*got["new"], *got["resumed"]}
        self.totals["preempt"] += len(got["preempted"])
        self.totals["evict"] += len(got["evicted"])
        self.totals["hit"] += sum(name in admitted and start > 0 for name, start, *_ in got["sched"])

    def last(self) -> Observed:
        rows = []
        for seq in range(len(self.ids)):
            never = self.seqs["scheduled"][seq] < 0
            rows.append(
                self.outcome(seq)
                | {
                    "reason": self._reason(seq),
                    "num_cached_tokens": -1 if never else int(self.seqs["cached"][seq]),
                    "num_preemptions": int(self.seqs["preemptions"][seq]),
                }
            )
        totals = {name: self.totals[name] for name in ("preempt", "evict", "hit")}
        return {"summary": rows, "steps": self.steps, "totals": totals}
