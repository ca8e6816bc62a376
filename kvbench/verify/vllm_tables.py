"""vLLM's KV cache manager: look-ups, block tables, the free queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from ..core.errors import UsageError
from ..engine import probe
from ..engine import probe_memory as memory
from ..engine.settings import EngineSettings
from ..scheduler.rules import CacheRules, SchedulerRules
from ..scheduler.state_columns import BLOCKS, KNOWN
from .content import Asked
from .recording import Row
from .stream import EngineStream, Observed, follow
from .vllm_scheduler import NEW, OLD, free_order_of


class VllmTables(EngineStream):
    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = (OLD, NEW)
    PARAMS: ClassVar[frozenset[str]] = frozenset("num_blocks block_size enable_prefix_caching max_model_len".split())

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        asked = _asked(rows)
        self.caching = p["enable_prefix_caching"]
        # Only what is asked for is allocated, so the whole prompt need not fit.
        rules = SchedulerRules(max_num_seqs=len(asked) + 1, reserve_full_isl=False)
        cache = CacheRules(
            "hash" if self.caching else "none", p["num_blocks"] - 1, free_order=free_order_of(header["version"])
        )
        settings = EngineSettings(rules, cache, p["block_size"], p["max_model_len"], fast=False)
        super().__init__(list(asked), list(asked.values()), settings)
        self.after = self.engine.pool.after
        self.hits = dict.fromkeys(asked, 0)
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Observed:
        logged = self.view().evicted_blocks
        name = row["op"]
        if name == "reset_prefix_cache":
            got: Observed = {"ok": bool(memory.forget_prefixes(self.engine))}
        else:
            got = getattr(self, f"_{name}")(row, self.index[row["id"]])
        now = self.view()
        evicted = self.evicted_blocks[logged : now.evicted_blocks].tolist()
        self.totals["ops"] += 1
        self.totals["evict"] += len(evicted)
        return got | {
            "free": now.free,
            "cached_hashes": now.distinct_hashes,
            "evicted": evicted,
            "free_queue": list(follow(self.after[0], self.after, 0)),
        }

    OPERATIONS: ClassVar[frozenset[str]] = frozenset(
        "new get_computed allocate append free preempt reset_prefix_cache".split()
    )

    def _new(self, row: Row, seq: int) -> Observed:
        probe.arrive(self.engine, seq, seq)
        return self._hashes(seq)

    def _append(self, row: Row, seq: int) -> Observed:
        memory.learn(self.engine, seq, len(row["tokens"]))
        return self._hashes(seq)

    def _hashes(self, seq: int) -> Observed:
        return {"num_hashes": self._known(seq) // self.block_tokens if self.caching else 0}

    def _known(self, seq: int) -> int:
        slot = self.seqs["slot"][seq]
        waiting = self.seqs["prompt"][seq] + self.seqs["generated"][seq]
        return int(waiting if slot < 0 else self.rec[slot, KNOWN])

    def _get_computed(self, row: Row, seq: int) -> Observed:
        found = memory.find(self.engine, seq)
        self.hits[row["id"]] = found
        return {"blocks": self._next_table()[:found].tolist(), "n": found * self.block_tokens}

    def _next_table(self) -> Any:
        slots = self.engine.slots
        return self.table[slots.free[slots.num_free - 1]]

    def _allocate(self, row: Row, seq: int) -> Observed:
        hits = self.hits[row["id"]] if self.seqs["slot"][seq] < 0 else 0
        if row["n_computed"] != hits * self.block_tokens:
            raise UsageError(f"{row.where}: an allocation has to come right after the look-up of its request")
        full = hits > 0 and hits == (self._known(seq) - 1) // self.block_tokens
        had = 0 if self.seqs["slot"][seq] < 0 else int(self.rec[self.seqs["slot"][seq], BLOCKS])
        done = bool(memory.allocate(self.engine, seq, row["n_new"]))
        # The recorder counts a hit when it was allocated, but a full one when it was tried.
        self.totals.update({"fail": not done, "hit": done and hits > 0, "full": full})
        if not done:
            return {"ok": False}
        slot = self.seqs["slot"][seq]
        blocks = self.table[slot, : self.rec[slot, BLOCKS]].tolist()
        return {"ok": True, "new_blocks": blocks[had or hits :], "all_blocks": blocks}

    def _free(self, row: Row, seq: int) -> Observed:
        self.leave(seq)
        return {}

    def _preempt(self, row: Row, seq: int) -> Observed:
        memory.give_up(self.engine, seq)
        return {}

    def last(self) -> Observed:
        return {"summary": {name: self.totals[name] for name in ("evict", "hit", "fail", "full", "ops")}}


def _asked(rows: Sequence[Row]) -> dict[str, Asked]:
    """Prompt and all later tokens of every request; one output more, so that none ends by itself."""
    prompts: dict[str, Row] = {row["id"]: row for row in rows if row["op"] == "new"}
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    for row in rows:
        if row["op"] == "append":
            outputs[row["id"]] += row["tokens"]
    return {
        name: Asked(row["prompt"], [*outputs[name], 0], len(outputs[name]) + 1, row.get("salt"))
        for name, row in prompts.items()
    }
