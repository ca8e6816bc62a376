"""A recording of a scheduler, step by step through the product's own code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.core.requests import Requests
from kvbench.costs.deployment import Deployment
from kvbench.costs.devices import find_device
from kvbench.costs.models import find_model
from kvbench.costs.roofline import roofline
from kvbench.engine import probe
from kvbench.engine.build import build_engine
from kvbench.engine.settings import PREFILL_FIRST, CacheRules, EngineSettings, SchedulerRules
from kvbench.scheduler.state_columns import (
    BLOCKS,
    FINISHED,
    GENERATED,
    IN_DECODE,
    IN_PREFILL,
    NEXT,
    PHASE,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
)

Header = dict[str, Any]
_LOG = 1 << 16


def requests_of(header: Header) -> Requests:
    """The requests of a recording, with explicit token ids; an output ends at its eos."""
    asked = header["requests"]
    ids: list[int] = []
    starts, out_starts, outs = [], [], []
    for request in asked:
        starts.append(len(ids))
        ids += request["prompt"]
        out_starts.append(len(ids))
        outs.append(_output(request))
        ids += outs[-1]
    n = len(asked)
    spaces = [r.get("salt") or r.get("ns") for r in asked]
    names = list(dict.fromkeys(spaces))
    zero, lengths = np.zeros(n, np.int64), _int64(len(r["prompt"]) for r in asked)
    return Requests(
        arrival_ns=zero,
        prompt_tokens=lengths,
        output_tokens=_int64(len(out) for out in outs),
        max_tokens=_int64(r["max_tokens"] for r in asked),
        samples=zero + 1,
        session_id=zero - 1,
        turn=zero,
        after=zero - 1,
        think_ns=zero,
        tenant=zero,
        namespace=_int64(names.index(space) for space in spaces),
        priority=_int64(r.get("priority", 0) for r in asked),
        phase=zero,
        cancel_ns=zero - 1,
        output_stream=zero,
        output_start=_int64(out_starts),
        segment_offset=np.arange(n + 1, dtype=np.int64),
        segment_stream=zero,
        segment_start=_int64(starts),
        segment_length=lengths,
        token_ids=_int64(ids),
        namespaces=tuple(str(name) for name in names),
    )


def _output(request: dict[str, Any]) -> list[int]:
    out: list[int] = request["output"][: request["max_tokens"]]
    eos = request.get("eos")
    return out[: out.index(eos) + 1] if eos in out else out


def _int64(values: Any) -> np.ndarray:
    return np.array(list(values), np.int64)


@dataclass
class Replay:
    """An engine that is led through a recording. Observations have the names of the recorded fields."""

    header: Header
    settings: EngineSettings
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        requests = requests_of(self.header)
        costs = roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b"))).tables
        with np.errstate(over="ignore"):
            self.engine = build_engine(requests, self.settings, costs, refuse=False, log=_LOG)
        self.names = [r["id"] for r in self.header["requests"]]
        self.index = {name: i for i, name in enumerate(self.names)}

    def feed(self, step: dict[str, Any], number: int) -> None:
        probe.set_now(self.engine, number)
        for name in step.get("arrive", []):
            probe.arrive(self.engine, self.index[name], self.index[name])
        for name in step.get("abort", []):
            probe.cancel(self.engine, self.index[name])

    def plan(self) -> list[tuple[int, int, int, int, int]]:
        """(sequence, slot, start, tokens, blocks before) of each row."""
        e = self.engine
        rows = e.plan[: e.num_plan]
        return [
            (
                int(e.slots.rec[r[PLAN_SLOT], SEQ]),
                *(int(r[c]) for c in (PLAN_SLOT, PLAN_START, PLAN_TOKENS, PLAN_BLOCKS_BEFORE)),
            )
            for r in rows
        ]

    def generated(self, seq: int) -> int:
        q, slot = self.engine.seqs, self.engine.seqs.slot[seq]
        return int(q.generated[seq] if slot < 0 else self.engine.slots.rec[slot, GENERATED])

    def commit(self, plan: list[tuple[int, int, int, int, int]]) -> dict[str, Any]:
        before = [self.generated(seq) for seq, *_ in plan]
        probe.commit(self.engine)
        emitted = [seq for (seq, *_), had in zip(plan, before, strict=True) if self.generated(seq) > had]
        finished = [seq for seq, *_ in plan if self.engine.seqs.state[seq] == FINISHED]
        probe.settle(self.engine)
        return {"emitted": self.named(emitted), "finished": self.named(finished)} | self.queues()

    def queues(self) -> dict[str, Any]:
        e = self.engine
        return {
            "running": self.named(int(e.slots.rec[s, SEQ]) for s in _follow(e.slots.head, e.slots.rec[:, NEXT], -1)),
            "waiting": self.named(_follow(e.queue_head, e.seqs.queue_next, -1)),
        }

    def named(self, seqs: Any) -> list[str]:
        return [self.names[seq] for seq in seqs]


def _follow(at: int, links: np.ndarray, end: int) -> Iterator[int]:
    while at != end:
        yield int(at)
        at = int(links[at])


class VllmReplay(Replay):
    def __init__(self, header: Header) -> None:
        p, new = header["params"], header["version"] == "0.33.0"
        rules = SchedulerRules(
            policy=p["policy"],
            max_num_seqs=p["max_num_seqs"],
            max_num_batched_tokens=p["max_num_batched_tokens"],
            enable_chunked_prefill=p["enable_chunked_prefill"],
            long_prefill_token_threshold=p["long_prefill_token_threshold"],
            long_prefill_threshold_when_alone=not new,
            reserve_full_isl=p["scheduler_reserve_full_isl"],
            self_preemption_ends_step=not new,
        )
        kind = "hash" if p["enable_prefix_caching"] else "none"
        cache = CacheRules(kind, p["num_blocks"] - 1, free_order="unhashed-first" if new else "tail")
        super().__init__(header, EngineSettings(rules, cache, p["block_size"], p["max_model_len"], fast=False))

    def step(self, recorded: dict[str, Any], number: int) -> dict[str, Any]:
        self.feed(recorded, number)
        if recorded.get("idle"):
            return {}
        e = self.engine
        logged, scheduled = e.hashes.log_size, e.seqs.scheduled.copy()
        probe.schedule(e)
        plan = self.plan()
        got = {
            "sched": [
                [self.names[seq], start, n, [int(b) for b in e.slots.table[slot, had : e.slots.rec[slot, BLOCKS]]]]
                for seq, slot, start, n, had in plan
            ],
            "new": self.named(seq for seq, *_ in plan if scheduled[seq] < 0),
            "resumed": self.named(seq for seq, *_, had in plan if scheduled[seq] >= 0 and had == 0),
            "preempted": self.named(e.victims[: e.num_victims]),
            "evicted": [int(b) for b in e.hashes.log[logged : e.hashes.log_size]],
            "free_sched": e.pool.num_free,
        } | self.commit(plan)
        got["finished"] = [[name, self._reason(name)] for name in got["finished"]]
        return got | {
            "free": e.pool.num_free,
            "cached_hashes": e.hashes.distinct,
            "free_queue": list(_follow(int(e.pool.after[0]), e.pool.after, 0)),
        }

    def _reason(self, name: str) -> str:
        request = self.header["requests"][self.index[name]]
        return "stop" if request.get("eos") in request["output"][: request["max_tokens"]] else "length"


class SglangReplay(Replay):
    def __init__(self, header: Header) -> None:
        p = header["params"]
        rules = SchedulerRules(
            discipline=PREFILL_FIRST,
            policy=p["schedule_policy"],
            max_running_requests=p["max_running_requests"],
            max_prefill_tokens=p["max_prefill_tokens"],
            chunked_prefill_size=p["chunked_prefill_size"] or 0,
            enable_mixed_chunk=p["enable_mixed_chunk"],
            schedule_conservativeness=p["schedule_conservativeness"],
            new_token_ratio_decay_steps=p.get("decay_steps", 600),
            ignore_eos=p["ignore_eos"],
            clip_max_new_tokens=p["clip_max_new_tokens"],
            retract_decode_steps=p["retract_decode_steps"],
        )
        page = p["page_size"]
        kind = "none" if p["disable_radix_cache"] else "radix"
        cache = CacheRules(kind, p["kv_tokens"] // page, p["eviction_policy"], "auto")
        super().__init__(header, EngineSettings(rules, cache, page, 10**6, fast=False))
        self.page = page

    def step(self, recorded: dict[str, Any], number: int) -> dict[str, Any]:
        self.feed(recorded, number)
        e = self.engine
        logged = e.tree.log_size
        probe.schedule(e)
        plan = self.plan()
        phases = {int(e.slots.rec[slot, PHASE]) for _, slot, *_ in plan}
        prefill = IN_PREFILL in phases
        modes = {(True, True): "MIXED", (True, False): "EXTEND", (False, True): "DECODE"}
        got: dict[str, Any] = {
            "mode": modes.get((prefill, IN_DECODE in phases)),
            "batch": [[self.names[s], a, n] if prefill else [self.names[s], a + 1] for s, _, a, n, _ in plan],
            "chunked_req": self.names[int(e.slots.rec[e.chunk, SEQ])] if e.chunk >= 0 else None,
            "retracted": self.named(e.victims[: e.num_victims]),
            "oom_aborted": [],
            "mem_sched": self.memory(),
            "evicted_sched": [int(n) * self.page for n in e.tree.log[logged : e.tree.log_size, 1]],
        }
        if not plan:
            probe.idle(e)
        got |= self.commit(plan)
        return got | {
            "mem": self.memory(),
            "batch_is_full": bool(e.batch_is_full),
            "new_token_ratio": round(e.ratio, 9),
        }

    def memory(self) -> list[int]:
        e = self.engine
        return [self.page * n for n in (e.pool.num_free, e.tree.evictable, e.tree.protected)]
