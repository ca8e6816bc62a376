"""vLLM's OffloadingConnector: prompt chunks are offered to the host as they are computed, and loaded before admission.

Its host side is the manager of offloaded blocks (`vllm_offload.py`); here is who offers what, and when a store has to
be waited for: stores do not hold the device's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..tiers.copies import CONFIRMED
from .recording import Row
from .scheduler_stream import Planned
from .stream import Observed
from .vllm_connector import LATER, ConnectorStream
from .vllm_offload import Request, VllmOffload


@dataclass
class _Job:
    """Of one sequence. blocks: of the device; keys: of the host's chunks."""

    seq: int
    blocks: list[int]
    keys: list[int]
    is_load: bool


class VllmOffloadConnector(ConnectorStream):
    """A chunk is a block."""

    FIXED: ClassVar[dict[str, Any]] = {"connector": "OffloadingConnector"}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows)
        extra = self.params["extra"]
        self.host = VllmOffload.of(
            self.params["cpu_chunks"],
            extra.get("eviction_policy", "lru"),
            extra.get("store_threshold", 0),
            extra.get("max_tracker_size", 64000),
        )
        places = [{key: self.block_tokens * (i + 1) for i, key in enumerate(names)} for names in self.names]
        self.shown = [Request(names, place) for names, place in zip(self.names, places, strict=True)]
        self.cursor = [0] * len(self.ids)
        self.jobs: dict[int, _Job] = {}
        self.num_jobs = 0
        self.loads: list[list[Any]] = []
        self.over: list[tuple[int, int, list[int]]] = []  # ended since the last plan: sequence, tokens, its blocks
        self.watched: set[int] = set()  # jobs of the ended

    def _open(self, job: _Job) -> int:
        self.jobs[self.num_jobs] = job
        self.num_jobs += 1
        return self.num_jobs - 1

    # ---------------------------------------------------------------- loads

    def _is_present(self, key: int) -> bool:
        return key in self.host.chunk_of

    def ask(self, seq: int, local: int) -> int:
        self.cursor[seq] = 0
        if any(job.seq == seq for job in self.jobs.values()):
            return LATER
        whole = int(self.seqs["prompt"][seq] + self.seqs["generated"][seq]) // self.block_tokens
        if whole <= local:
            return 0
        found: list[int] = []
        for key in self.names[seq][local:whole]:
            if not self._is_present(key):
                break
            found.append(key)
        if not found:
            return 0
        if any(self.host.state_of(key) != CONFIRMED for key in found):
            return LATER
        loading = {key for job in self.jobs.values() if job.is_load for key in job.keys}
        return LATER if loading & set(found) else len(found)

    def begin_load(self, seq: int, local: int, count: int) -> None:
        keys = self.names[seq][local : local + count]
        chunks = self.host.prepare_load(self.shown[seq], keys)
        blocks = self.blocks(seq)[local : local + count]
        self.cursor[seq] = local + count
        job = self._open(_Job(seq, blocks, keys, True))
        self.loads.append([job, self.ids[seq], chunks, blocks])

    # ---------------------------------------------------------------- stores

    def put_together(self, plan: Sequence[Planned], victims: Sequence[int]) -> Observed:
        stores = [self._offer(r.seq, r.start + r.tokens, self.blocks(r.seq)) for r in plan]
        stores += [self._offer(seq, tokens, blocks) for seq, tokens, blocks in self.over]
        for seq, _, _ in self.over:
            self.watched |= {number for number, job in self.jobs.items() if job.seq == seq and not job.is_load}
            self.host.finish(self.shown[seq])
        self.over = []
        got: Observed = {"store": [s for s in stores if s], "load": self.loads, "flush": self._flush(plan, victims)}
        self.loads = []
        return got

    def _offer(self, seq: int, tokens: int, blocks: list[int]) -> list[Any]:
        """[job, request, blocks of the device, chunks], or nothing."""
        stop = min(tokens, int(self.seqs["prompt"][seq])) // self.block_tokens
        start = self.cursor[seq]
        if stop <= start:
            return []
        keys = self.names[seq][start:stop]
        answer = self.host.prepare_store(self.shown[seq], keys)
        if not answer["ok"]:
            return []
        self.cursor[seq] = stop
        kept = set(answer["store"])
        if not kept:
            return []
        own = [blocks[start + i] for i, key in enumerate(keys) if key in kept]
        job = self._open(_Job(seq, own, answer["store"], False))
        return [job, self.ids[seq], own, answer["chunks"]]

    def _flush(self, plan: Sequence[Planned], victims: Sequence[int]) -> list[int]:
        """Stores whose blocks somebody gets in this step."""
        used: set[int] = set()
        for r in plan:
            used.update(self.blocks(r.seq)[self.fresh.get(r.seq, 0) :])
        for _, _, _, blocks in self.loads:
            used.update(blocks)
        for seq in self.in_load:
            if any(self.jobs[row[0]].seq == seq for row in self.loads):
                used.update(self.blocks(seq))
        lost = {n for n, job in self.jobs.items() if job.seq in victims and not job.is_load}
        reused = {n for n in self.watched if used & set(self.jobs[n].blocks)}
        return sorted(lost | reused)

    def ends(self, seq: int) -> None:
        slot = int(self.seqs["slot"][seq])
        blocks = self.blocks(seq) if slot >= 0 else []
        self.over.append((seq, self.tokens_at_end(seq) if slot >= 0 else 0, blocks))

    # ---------------------------------------------------------------- what is over, what is seen

    def done(self, transfers: Sequence[Any]) -> None:
        for kind, number in transfers:
            job = self.jobs.pop(number)
            self.watched.discard(number)
            if kind == "store":
                self.host.complete_store(job.keys, True)
            else:
                self.host.complete_load(job.keys)
                self.load_is_over(job.seq)

    def memory(self) -> Observed:
        now = self.host.state()
        return {"cpu": [now["free"], now["evictable"], now["writing"]], "jobs": len(self.jobs)}
