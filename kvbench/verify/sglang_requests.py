"""SGLang's requests over radix cache, allocator and request table, one request a batch and no scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from ..engine import probe
from ..engine import probe_memory as memory
from ..engine.settings import EngineSettings
from ..scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from ..scheduler.state_columns import BLOCKS, COMPUTED, KNOWN, PUBLISHED
from .content import Asked, slot_ranges, tokens_of_keys
from .recording import Row
from .sglang_scheduler import UNBOUNDED
from .stream import EngineStream, Observed
from .tree_rows import tree_rows


class SglangRequests(EngineStream):
    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.12",)
    PARAMS: ClassVar[frozenset[str]] = frozenset("page_size policy kv_tokens namespaces".split())
    OPERATIONS: ClassVar[frozenset[str]] = frozenset(
        "start lookup_only prefill_done chunk_done continue decode finish retract evict".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        asked = _asked(rows)
        rules = SchedulerRules(discipline=PREFILL_FIRST, max_running_requests=len(asked) + 1)
        cache = CacheRules("radix", p["kv_tokens"] // p["page_size"], p["policy"], "auto")
        settings = EngineSettings(rules, cache, p["page_size"], UNBOUNDED, fast=False)
        super().__init__(list(asked), list(asked.values()), settings)
        self.namespaces = list(dict.fromkeys(a.namespace for a in asked.values()))
        self.tokens_of = tokens_of_keys(self.engine.block_keys, list(asked.values()), self.block_tokens)
        self.blocks = self.engine.tree.blocks
        self.reserved: dict[int, int] = {}
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Observed:
        logged = self.view().evicted_nodes
        seq = self.index[row["id"]] if "id" in row else -1
        got: Observed = getattr(self, f"_{row['op']}")(row, seq)
        now = self.view()
        nodes = self.evicted_nodes[logged : now.evicted_nodes].tolist()
        self.totals["ops"] += 1
        self.totals["evicted"] += sum(n for _, n in nodes) * self.block_tokens
        if "tree" in row["out"]:
            got["tree"] = tree_rows(
                self.engine.tree, self.namespaces, self.tokens_of, self.block_tokens, self._first_slot
            )
        evicted = [self._ranges(self.blocks[first : first + n].tolist()) for first, n in nodes]
        return got | {"evicted": evicted, "mem": self.sizes(now)}

    def _first_slot(self, block: int) -> int:
        return block * self.block_tokens

    def _ranges(self, blocks: Sequence[int], tokens: int | None = None) -> list[list[int]]:
        return slot_ranges(map(self._first_slot, blocks), self.block_tokens, tokens)

    def _slots(self, slot: int, tokens: int) -> Observed:
        return {"slots": self._ranges(self.table[slot, : self.rec[slot, BLOCKS]].tolist(), tokens)}

    def _start(self, row: Row, seq: int) -> Observed:
        if not row.get("resumed", False):
            probe.arrive(self.engine, seq, seq)
        slot = memory.begin(self.engine, seq)
        got = self._extend(row, slot)
        self.totals["hit"] += got["prefix_len"] > 0
        self.totals["full"] += got["prefix_len"] > 0 and got["extend_len"] <= self.block_tokens
        return got

    def _continue(self, row: Row, seq: int) -> Observed:
        return self._extend(row, int(self.seqs["slot"][seq]))

    def _extend(self, row: Row, slot: int) -> Observed:
        """Memory for the rest of the prompt, or for a chunk of it, if whole blocks of it are left by the cut."""
        done, known = int(self.rec[slot, COMPUTED]), int(self.rec[slot, KNOWN])
        upto, chunk = known, row["chunk"]
        if chunk is not None and known - done > chunk:
            cut = (done + chunk) // self.block_tokens * self.block_tokens
            upto = cut if cut > done else known
        memory.reserve(self.engine, slot, upto - done)
        self.reserved[slot] = upto - done
        self.totals["chunked"] += upto < known
        return {"prefix_len": done, "extend_len": upto - done, "chunked": upto < known, **self._slots(slot, upto)}

    def _compute(self, slot: int, tokens: int) -> None:
        memory.plan(self.engine, slot, tokens)
        self.discipline.commit(self.engine)

    def _prefill_done(self, row: Row, seq: int) -> Observed:
        slot = int(self.seqs["slot"][seq])
        self._compute(slot, self.reserved.pop(slot))
        return {"cache_protected_len": self._shared(slot), **self._slots(slot, int(self.rec[slot, COMPUTED]))}

    def _shared(self, slot: int) -> int:
        return int(self.rec[slot, PUBLISHED]) * self.block_tokens

    def _chunk_done(self, row: Row, seq: int) -> Observed:
        slot = int(self.seqs["slot"][seq])
        self._compute(slot, self.reserved.pop(slot))
        memory.share_chunk(self.engine, slot)
        done = int(self.rec[slot, COMPUTED])
        return {"cache_protected_len": self._shared(slot), "prefix_len": done, **self._slots(slot, done)}

    def _decode(self, row: Row, seq: int) -> Observed:
        slot = int(self.seqs["slot"][seq])
        memory.reserve_decode(self.engine, slot)
        self._compute(slot, 1)
        done = int(self.rec[slot, COMPUTED])
        return {"kv_len": done, **self._slots(slot, done)}

    def _lookup_only(self, row: Row, seq: int) -> Observed:
        return {"prefix_len": memory.find(self.engine, seq) * self.block_tokens}

    def _finish(self, row: Row, seq: int) -> Observed:
        memory.finish(self.engine, int(self.seqs["slot"][seq]))
        probe.settle(self.engine)
        self.totals["finish"] += 1
        return {}

    def _retract(self, row: Row, seq: int) -> Observed:
        memory.retract(self.engine, int(self.seqs["slot"][seq]), seq)
        self.totals["retract"] += 1
        return {}

    def _evict(self, row: Row, seq: int) -> Observed:
        blocks = -(-row["n"] // self.block_tokens)
        return {"num_evicted": memory.evict(self.engine, blocks) * self.block_tokens}

    def last(self) -> Observed:
        names = ("hit", "full", "evicted", "finish", "retract", "chunked", "ops")
        return {"summary": {name: self.totals[name] for name in names}}


def _asked(rows: Sequence[Row]) -> dict[str, Asked]:
    """Prompt and all later tokens of every request; one output more, so that none ends by itself.

    The recorded priorities rise with urgency, those of a request table fall.
    """
    prompts: dict[str, Row] = {row["id"]: row for row in rows if "prompt" in row}
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    for row in rows:
        if "token" in row:
            outputs[row["id"]].append(row["token"])
    return {
        name: Asked(row["prompt"], [*outputs[name], 0], UNBOUNDED, row.get("ns"), -row.get("priority", 0))
        for name, row in prompts.items()
    }
