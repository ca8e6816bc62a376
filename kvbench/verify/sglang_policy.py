"""SGLang's order of the waiting queue and its admission, request by request, over one radix tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..engine import probe
from ..engine import probe_admission as admission
from ..engine import probe_memory as memory
from ..engine.settings import EngineSettings
from ..scheduler.prefill_admission import CONTINUE, NO_TOKEN, OTHER
from ..scheduler.waiting_order import HRRN, LPM, SEES_PREFIXES
from .content import Asked
from .recording import Row
from .sglang_rules import VERSIONS as KNOWN
from .sglang_rules import cache_rules, scheduler_rules
from .sglang_scheduler import UNBOUNDED
from .stream import EngineStream, Observed, follow

RESULTS = {CONTINUE: "CONTINUE", NO_TOKEN: "NO_TOKEN", OTHER: "OTHER"}
TALLY = {CONTINUE: "cont", NO_TOKEN: "no_token", OTHER: "other"}


class SglangPolicy(EngineStream):
    """Every request of every operation is a sequence of its own, in the order in which they are named."""

    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = KNOWN
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "page_size schedule_policy vocab kv_tokens namespaces ignore_eos".split()
    )
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("insert evict calc_priority prefill_adder".split())

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        asked = [_asked(spec) for row in rows for spec in _named(row)]
        rules = scheduler_rules(
            header,
            policy=p["schedule_policy"],
            max_running_requests=len(asked) + 1,
            ignore_eos=p.get("ignore_eos", False),
        )
        cache = cache_rules(header, "radix", p["kv_tokens"] // p["page_size"], "lru")
        settings = EngineSettings(rules, cache, p["page_size"], UNBOUNDED, fast=False)
        super().__init__([""] * len(asked), asked, settings)
        self.matches = self.engine.rules.order in SEES_PREFIXES
        self.fallback = rules.lpm_fallback_waiting if self.engine.rules.order in (LPM, HRRN) else UNBOUNDED
        self.held = np.zeros(p["kv_tokens"], np.int32)
        self.next = 0
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Observed:
        first = self.next
        self.next += sum(1 for _ in _named(row))
        got: Observed = getattr(self, f"_{row['op']}")(row, first)
        return got

    def _insert(self, row: Row, seq: int) -> Observed:
        blocks = len(row["key"]) // self.block_tokens
        admission.make_room(self.engine, blocks * self.block_tokens)
        present = admission.insert(self.engine, seq, blocks)
        return {"prefix_len": present * self.block_tokens, "mem": self.sizes(self.view())}

    def _evict(self, row: Row, seq: int) -> Observed:
        blocks = memory.evict(self.engine, -(-row["n"] // self.block_tokens))
        return {"evicted": blocks * self.block_tokens, "mem": self.sizes(self.view())}

    def _calc_priority(self, row: Row, first: int) -> Observed:
        names = [spec["id"] for spec in row["waiting"]]
        for seq in range(first, first + len(names)):
            spec = row["waiting"][seq - first]
            self._queue(seq, len(spec.get("output_so_far", ())))
            admission.age(self.engine, seq, row.get("processed", 0), spec.get("arrival_processed", 0))
        admission.sort(self.engine)
        order = [seq - first for seq in follow(self.view().queue_head, self.seqs["queue_next"], -1)]
        got: Observed = {"order": [names[i] for i in order], "mem": self.sizes(self.view())}
        if self.matches and len(names) <= self.fallback:
            got["prefix_lens"] = {name: int(self.seqs["matched"][first + i]) for i, name in enumerate(names)}
        for seq in range(first, first + len(names)):
            self.leave(seq)
        self.totals["calc"] += 1
        self.totals["moved"] += got["order"] != names
        return got

    def _queue(self, seq: int, generated: int) -> None:
        probe.arrive(self.engine, seq, seq)
        memory.learn(self.engine, seq, generated)

    def _prefill_adder(self, row: Row, first: int) -> Observed:
        e, held = self.engine, min(row["held_tokens"] // self.block_tokens, self.view().free)
        admission.hold(e, self.held, held)
        for seq, spec in enumerate(row["running"], first):
            probe.arrive(e, seq, seq)
            admission.run(e, seq, spec["num_output"])
        chunk = row["rem_chunk_tokens"]
        numbers = (row["rem_input_tokens"], -1 if chunk is None else chunk, row["num_mixed_decode_tokens"])
        admission.open_budget(e, row["new_token_ratio"], *numbers, row["prefill_max_requests"] or 0)
        got: Observed = {"mem0": self.sizes(self.view()), "budget0": self._budget(chunk is not None)}
        fed = enumerate(row["reqs"], first + len(row["running"]))
        got["steps"] = [self._feed(seq, spec, chunk is not None) for seq, spec in fed]
        got["mem1"] = self.sizes(self.view())
        admission.drop_all(e)
        admission.let_go(e, self.held, held)
        probe.settle(e)
        self.totals["adder"] += 1
        return got

    def _feed(self, seq: int, spec: Row, chunked: bool) -> Observed:
        self._queue(seq, len(spec.get("output_so_far", ())))
        hits, result, tokens, cut = admission.offer(self.engine, seq)
        added = tokens != admission.NOT_ADMITTED
        if not added:
            self.leave(seq)
        self.totals[TALLY[result]] += 1
        self.totals["chunked"] += bool(cut)
        return {
            "id": spec["id"],
            "prefix_len": hits * self.block_tokens,
            "added": added,
            "result": RESULTS[result],
            "extend_len": int(tokens) if added else None,
            "chunked": bool(cut),
            "budget": self._budget(chunked),
        }

    def _budget(self, chunked: bool) -> Observed:
        total, current, rem_input, rem_chunk = admission.budget_left(self.engine)
        return {
            "rem_total": round(total, 6),
            "cur_rem": current,
            "rem_input": rem_input,
            "rem_chunk": rem_chunk if chunked else None,
        }

    def last(self) -> Observed:
        names = ("calc", "adder", "moved", "chunked", "no_token", "other", "cont")
        return {"summary": {name: self.totals[name] for name in names}}


def _named(row: Row) -> list[Row]:
    """The sequences that an operation needs: those it names, or the key that it inserts."""
    if row["op"] == "insert":
        return [row]
    return [*row.get("waiting", ()), *row.get("running", ()), *row.get("reqs", ())]


def _asked(spec: Row) -> Asked:
    if "key" in spec:
        return Asked(spec["key"], (0,), 1, spec.get("ns"))
    if "num_output" in spec:  # one that runs: only its counts matter
        return Asked((0,), (0,), spec["max_tokens"])
    return Asked(spec["prompt"], spec.get("output_so_far", ()), spec["max_tokens"], spec.get("ns"))
