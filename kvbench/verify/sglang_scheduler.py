"""SGLang's scheduler over its radix cache, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.errors import UsageError
from ..engine import probe
from ..engine.observe import fields_of
from ..engine.settings import EngineSettings
from ..scheduler.state_columns import FAILED, IN_DECODE, IN_PREFILL, PHASE, SEQ
from .recording import Row
from .scheduler_stream import Planned, SchedulerStream
from .sglang_rules import VERSIONS as KNOWN
from .sglang_rules import cache_rules, scheduler_rules
from .stream import Observed

UNBOUNDED = 10**6
MODES = {(True, True): "MIXED", (True, False): "EXTEND", (False, True): "DECODE", (False, False): None}
"""(some row prefills, some row decodes) -> mode"""


class SglangScheduler(SchedulerStream):
    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = KNOWN
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "page_size kv_tokens context_len max_running_requests max_prefill_tokens chunked_prefill_size "
        "enable_mixed_chunk schedule_policy eviction_policy disable_radix_cache schedule_conservativeness ignore_eos "
        "decay_steps init_new_token_ratio min_new_token_ratio new_token_ratio_decay clip_max_new_tokens "
        "retract_decode_steps in_batch_check_threshold in_batch_deprioritize_threshold retraction_policy "
        "eviction_policy_config".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        rules = scheduler_rules(
            header,
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
            in_batch_check_threshold=p["in_batch_check_threshold"],
            in_batch_deprioritize_threshold=p["in_batch_deprioritize_threshold"],
            retraction_policy=p.get("retraction_policy", "length"),
        )
        kind = "none" if p["disable_radix_cache"] else "radix"
        cache = cache_rules(header, kind, p["kv_tokens"] // p["page_size"], p["eviction_policy"])
        super().__init__(header, EngineSettings(rules, cache, p["page_size"], UNBOUNDED, fast=False))
        self._check_ratios(p)

    def _check_ratios(self, params: Row) -> None:
        """The recorded ratios must follow from conservativeness and decay, from which the product makes its own."""
        rules = fields_of(self.engine.rules)
        own = {
            "init_new_token_ratio": rules["ratio_start"],
            "min_new_token_ratio": rules["ratio_min"],
            "new_token_ratio_decay": rules["ratio_decay"],
        }
        for name, value in own.items():
            if params[name] != value:
                raise UsageError(f"{params.where}: {name} is {params[name]}; kvbench makes {value} of the others")

    def step(self, row: Row) -> Observed:
        busy = self.feed(row)
        logged, failed = self.view().evicted_nodes, self.seqs["state"] == FAILED
        now, plan = self.schedule()
        if not plan:
            probe.idle(self.engine)
        got: Observed = {
            "idle": not busy,
            "mode": MODES[self._any(plan, IN_PREFILL), self._any(plan, IN_DECODE)],
            "evicted_sched": [int(n) * self.block_tokens for n in self.evicted_nodes[logged : now.evicted_nodes, 1]],
        }
        if plan:
            got |= {
                "batch": self._batch(plan, got["mode"]),
                "chunked_req": self.ids[int(self.rec[now.chunk, SEQ])] if now.chunk >= 0 else None,
                "mem_sched": self.sizes(now),
                "retracted": self.named(self.victims[: now.num_victims]),
                "oom_aborted": self.named(np.flatnonzero((self.seqs["state"] == FAILED) & ~failed).tolist()),
                "emitted": self.commit(plan),
                "finished": self.ended(plan),
            }
            self._count(got)
        now = self.view()
        return got | {
            "mem": self.sizes(now),
            "batch_is_full": bool(now.batch_is_full),
            "new_token_ratio": round(now.new_token_ratio, 9),
            **self.queues(now),
        }

    def _any(self, plan: Sequence[Planned], phase: int) -> bool:
        return any(self.rec[row.slot, PHASE] == phase for row in plan)

    def _batch(self, plan: Sequence[Planned], mode: str | None) -> list[list[Any]]:
        if mode == "DECODE":
            return [[self.ids[row.seq], row.start + 1] for row in plan]
        return [[self.ids[row.seq], row.start, row.tokens] for row in plan]

    def _count(self, got: Observed) -> None:
        self.totals["retract"] += len(got["retracted"])
        self.totals["evicted"] += sum(got["evicted_sched"])
        self.totals["prefill_steps"] += got["mode"] in ("EXTEND", "MIXED")
        self.totals["decode_steps"] += got["mode"] == "DECODE"
        self.totals["mixed"] += got["mode"] == "MIXED"
        self.totals["chunked"] += got["chunked_req"] is not None

    def last(self) -> Observed:
        q = self.seqs
        rows = [
            self.outcome(seq) | {"cached_tokens": int(q["cached"][seq]), "retractions": int(q["preemptions"][seq])}
            for seq in range(len(self.ids))
        ]
        self.totals["hit"] = sum(row["cached_tokens"] > 0 for row in rows)
        names = ("retract", "evicted", "hit", "prefill_steps", "decode_steps", "mixed", "chunked")
        return {"summary": rows, "steps": self.steps, "totals": {name: self.totals[name] for name in names}}
