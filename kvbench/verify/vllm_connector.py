"""vLLM's scheduler around a connector: who is admitted, who is set aside while somebody else's KV is loaded for it.

A step is the engine's own, decision by decision (`engine/probe_loading.py`); what a connector knows is its subclass's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from ..engine import probe, probe_loading
from ..engine.observe import fields_of
from ..engine.settings import CacheRules, EngineSettings, SchedulerRules
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import sequence_keys
from ..scheduler.state_columns import (
    BLOCKS,
    CANCELLED,
    COMPUTED,
    FINAL,
    FINISHED,
    GENERATED,
    IN_PREFILL,
    KNOWN,
    NEXT,
    PHASE,
    SEQ,
)
from .pull_pair import tokens_of_runs
from .recording import Row
from .scheduler_stream import Planned, SchedulerStream
from .stream import Observed, follow

LATER = -1
"""A connector does not know yet."""

_LOADING, _WAITING, _PREEMPTED = "WAITING_FOR_REMOTE_KVS", "WAITING", "PREEMPTED"


class ConnectorStream(SchedulerStream):
    """holding: sequences that have memory and do not run, and the status of each. in_load: not reported yet."""

    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.33.0",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "max_num_seqs max_num_batched_tokens max_model_len block_size num_blocks store_delay load_delay max_steps "
        "connector extra cpu_chunks gpu_block_bytes".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = self.params = header["params"]
        rules = SchedulerRules(
            max_num_seqs=p["max_num_seqs"],
            max_num_batched_tokens=p["max_num_batched_tokens"],
            long_prefill_threshold_when_alone=False,
            reserve_full_isl=True,
            self_preemption_ends_step=False,
        )
        cache = CacheRules("hash", p["num_blocks"] - 1, free_order="unhashed-first")
        settings = EngineSettings(rules, cache, p["block_size"], p["max_model_len"], fast=False)
        specs = [_with_tokens(i, spec) for i, spec in enumerate(header["requests"])]
        super().__init__({**header, "requests": specs}, settings)
        state = fields_of(self.engine)
        self.pool, self.hashes, self.keys = state["pool"], state["hashes"], state["block_keys"]
        self.content = self.pool.content
        self.names = [self._names(seq) for seq in range(len(self.ids))]
        self.holding: dict[int, str] = {}
        self.in_load: set[int] = set()
        self.reported: dict[int, int] = {}  # loaded and not looked at yet: tokens that are there
        self.draining: set[int] = set()
        self.loaded_tokens: dict[int, int] = {}

    def _names(self, seq: int) -> list[int]:
        blocks = int(self.seqs["prompt"][seq] + self.seqs["output"][seq]) // self.block_tokens
        content, names = root_hash(int(self.seqs["namespace"][seq])), []
        for key in sequence_keys(self.keys, seq, blocks):
            content = chain(content, key)
            names.append(int(content))
        return names

    # ---------------------------------------------------------------- what a connector says

    @abstractmethod
    def ask(self, seq: int, local: int) -> int:
        """Blocks that it has behind the first `local` of a waiting sequence, or LATER."""

    @abstractmethod
    def begin_load(self, seq: int, local: int, count: int) -> None:
        """A sequence has memory for them."""

    @abstractmethod
    def put_together(self, plan: Sequence[Planned], victims: Sequence[int]) -> Observed:
        """Stores and loads of the step that is planned."""

    @abstractmethod
    def ends(self, seq: int) -> None:
        """A sequence is about to end, and still has its memory; or it was never admitted."""

    @abstractmethod
    def done(self, transfers: Sequence[Any]) -> None:
        """Transfers are over."""

    @abstractmethod
    def memory(self) -> Observed:
        """What is seen of it after a step."""

    # ---------------------------------------------------------------- one step

    def step(self, row: Row) -> Observed:
        self.steps += 1
        out = row["out"]
        probe.set_now(self.engine, row["t"])
        self.planned: dict[int, int] = {}
        for name in row.get("arrive", ()):
            probe.arrive(self.engine, self.index[name], self.index[name])
        for name in row.get("abort", ()):
            self._abort(self.index[name])
        self.fresh = {int(self.rec[s, SEQ]): int(self.rec[s, BLOCKS]) for s in self._running()}
        budget = int(probe_loading.begin(self.engine))
        victims = [int(seq) for seq in self.victims[: self.view().num_victims]]
        if not victims:
            self._admit(budget)
        probe_loading.close(self.engine)
        plan = self._plan()
        got: Observed = {
            "sched": [[self.ids[r.seq], r.start, r.tokens, self._new_blocks(r)] for r in plan],
            "preempted": sorted(self.named(victims)),
            "done": out.get("done", []),
        }
        got |= self.put_together(plan, victims)
        self.planned = {r.seq: r.tokens for r in plan}
        for r in plan:
            if self._will_end(r):
                self.ends(r.seq)
        got["emitted"] = self.commit(plan)
        got["finished"] = [[name, "length"] for name in self.ended(plan)]
        self.done(out.get("done", []))
        for seq in sorted(self.draining - self.in_load):
            self.draining.discard(seq)
            probe_loading.let_go(self.engine, seq)
        probe.settle(self.engine)
        holding = [[self.ids[seq], status] for seq, status in self.holding.items()]
        return got | self.queues(self.view()) | {"free": self.view().free, "holding": holding} | self.memory()

    def last(self) -> Observed:
        over = (FINISHED, CANCELLED)
        left = [name for seq, name in enumerate(self.ids) if self.seqs["state"][seq] not in over]
        summary = {"steps": self.steps, "free": self.view().free, "left": left, "cpu": self.memory()["cpu"]}
        return {"summary": summary}

    def _running(self) -> list[int]:
        return list(follow(self.view().running_head, self.rec[:, NEXT], -1))

    def _plan(self) -> list[Planned]:
        rows = [[int(v) for v in row[:4]] for row in self.plan_array[: self.view().num_plan]]
        return [Planned(int(self.rec[slot, SEQ]), slot, *rest) for slot, *rest in rows]

    def _new_blocks(self, r: Planned) -> list[int]:
        return self.blocks(r.seq)[r.blocks_before :]

    def blocks(self, seq: int) -> list[int]:
        slot = int(self.seqs["slot"][seq])
        return [int(b) for b in self.table[slot, : self.rec[slot, BLOCKS]]]

    def computed(self, seq: int) -> int:
        return int(self.rec[self.seqs["slot"][seq], COMPUTED])

    def tokens_at_end(self, seq: int) -> int:
        """Computed tokens of a sequence that ends: with this step's, if it is in its plan."""
        return self.computed(seq) + self.planned.get(seq, 0)

    def _will_end(self, r: Planned) -> bool:
        rec = self.rec[r.slot]
        return bool(rec[COMPUTED] + r.tokens >= rec[KNOWN] and rec[GENERATED] + 1 >= rec[FINAL])

    def _abort(self, seq: int) -> None:
        if seq in self.holding:
            del self.holding[seq]
            self.ends(seq)
            probe_loading.drain(self.engine, seq)
            if seq in self.in_load:
                self.draining.add(seq)
            else:
                self.reported.pop(seq, None)
                probe_loading.let_go(self.engine, seq)
        elif self.seqs["finish"][seq] < 0:
            self.ends(seq)
            self.leave(seq)

    # ---------------------------------------------------------------- admission

    def _has_place(self, budget: int) -> bool:
        return budget > 0 and self.view().running < self.params["max_num_seqs"]

    def _admit(self, budget: int) -> None:
        for seq in list(self.holding):
            if not self._has_place(budget):
                return
            if seq in self.in_load:
                continue
            slot = int(self.seqs["slot"][seq])
            if seq in self.reported:
                probe_loading.loaded(self.engine, slot, self.reported.pop(seq))
                self.holding[seq] = _PREEMPTED if self.seqs["preemptions"][seq] else _WAITING
            tokens = int(probe_loading.start(self.engine, slot, budget))
            if tokens == 0:
                return
            del self.holding[seq]
            budget -= tokens
        waiting = list(follow(self.view().queue_head, self.seqs["queue_next"], -1))
        for seq in waiting:
            if not self._has_place(budget):
                return
            local, tied = (int(v) for v in probe_loading.look_up(self.engine, seq))
            more = self.ask(seq, local)
            if more == LATER:
                continue
            if more > 0:
                if not self._load(seq, local, tied, more):
                    return
                continue
            tokens = int(probe_loading.admit_next(self.engine, seq, budget))
            if tokens == 0:
                return
            budget -= tokens

    def _load(self, seq: int, local: int, tied: int, more: int) -> bool:
        free, whole = self.view().free, self._whole(int(self.seqs["prompt"][seq] + self.seqs["generated"][seq]))
        if whole - local + tied > free or more + tied > free - self._reserved():
            return False
        probe_loading.load(self.engine, seq, more)
        self.holding[seq] = _LOADING
        self.in_load.add(seq)
        self.loaded_tokens[seq] = (local + more) * self.block_tokens
        self.begin_load(seq, local, more)
        return True

    def load_is_over(self, seq: int) -> None:
        self.in_load.discard(seq)
        if seq in self.holding:
            self.reported[seq] = self.loaded_tokens[seq]

    def _whole(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _reserved(self) -> int:
        """Blocks that who loads, or is in its prefill, has still to come."""
        slots = [int(self.seqs["slot"][seq]) for seq in self.holding]
        slots += [s for s in self._running() if self.rec[s, PHASE] == IN_PREFILL]
        return sum(max(self._whole(int(self.rec[s, KNOWN])) - int(self.rec[s, BLOCKS]), 0) for s in slots)


def _with_tokens(number: int, spec: Row) -> dict[str, Any]:
    output = [900000 + 1000 * number + i for i in range(spec["max_tokens"])]
    return {**spec, "prompt": tokens_of_runs(spec["prompt"]), "output": output}
