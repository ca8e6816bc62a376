"""vLLM's SimpleCPUOffloadConnector: the host is a second pool of blocks with a prefix cache of its own.

eager   blocks are copied as they are computed, and what is left when a request ends
lazy    blocks are copied when they come near the head of the device's free queue

Both ends of a copy are held until it is over. The pools are the product's (`memory/pool.py`, `prefix/block_hash.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..engine import probe_loading
from ..memory.pool import make_pool
from ..prefix.block_hash import make_map
from .recording import Row
from .scheduler_stream import Planned
from .stream import Observed
from .vllm_connector import ConnectorStream

Copies = list[tuple[int, int]]
"""(block of the device, block of the host)"""


class VllmSimpleConnector(ConnectorStream):
    """Transfers are events, numbered by direction."""

    FIXED: ClassVar[dict[str, Any]] = {"connector": "SimpleCPUOffloadConnector"}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows)
        blocks = self.params["cpu_chunks"] - 1  # one is a placeholder
        self.host, self.host_map = make_pool(blocks, "unhashed-first"), make_map(blocks)
        self.is_lazy = self.params["extra"].get("lazy_offload", False)
        self.walk = 2 * -(-self.params["max_num_batched_tokens"] // self.block_tokens)
        self.pins: dict[int, list[int]] = {}
        self.cursor = [0] * len(self.ids)
        self.at = 0  # lazy: the block of the device that was looked at last
        self.events: dict[tuple[str, int], tuple[Copies, list[int]]] = {}
        self.num_events = {"store": 0, "load": 0}
        self.loads: list[tuple[int, Copies]] = []
        self.left: Copies = []  # of those that ended since the last plan
        self.storing: set[int] = set()

    # ---------------------------------------------------------------- loads

    def _find(self, content: int) -> int:
        return int(probe_loading.find(self.host, self.host_map, np.int64(content)))

    def _unpin(self, seq: int) -> None:
        for block in self.pins.pop(seq, ()):
            probe_loading.drop(self.host, block)

    def ask(self, seq: int, local: int) -> int:
        self._unpin(seq)
        known = int(self.seqs["prompt"][seq] + self.seqs["generated"][seq])
        found: list[int] = []
        for name in self.names[seq][local : (known - 1) // self.block_tokens]:
            block = self._find(name)
            if block == 0:
                break
            found.append(block)
        for block in found:
            probe_loading.hold(self.host, block)
        if found:
            self.pins[seq] = found
        return len(found)

    def begin_load(self, seq: int, local: int, count: int) -> None:
        blocks = self.blocks(seq)[local : local + count]
        for block in blocks:
            probe_loading.hold(self.pool, block)
        self.loads.append((seq, list(zip(blocks, self.pins.pop(seq), strict=True))))

    # ---------------------------------------------------------------- stores

    def put_together(self, plan: Sequence[Planned], victims: Sequence[int]) -> Observed:
        for seq in victims:
            self.cursor[seq] = 0
        got: Observed = {"need_flush": bool(victims)}
        if self.loads:
            copies = [pair for _, pairs in self.loads for pair in pairs]
            seqs = [seq for seq, _ in self.loads]
            got["load"] = [*self._issue("load", copies, seqs), self.named(seqs)]
            self.loads = []
        copies = self._near_eviction() if self.is_lazy else self._computed(plan)
        copies += self.left
        self.left = []
        if copies:
            got["store"] = self._issue("store", copies, [])
        return got

    def _issue(self, kind: str, copies: Copies, seqs: list[int]) -> list[Any]:
        number = self.num_events[kind]
        self.num_events[kind] += 1
        self.events[kind, number] = copies, seqs
        return [number, [device for device, _ in copies], [host for _, host in copies]]

    def _computed(self, plan: Sequence[Planned]) -> Copies:
        """Eager: who is new, then who ran before, then who came back."""

        def turn(r: Planned) -> int:
            return 1 if r.seq in self.fresh else 2 if self.seqs["preemptions"][r.seq] else 0

        copies: Copies = []
        for r in sorted(plan, key=turn):
            copies += self._copy_up_to(r.seq, r.start)
        return copies

    def _copy_up_to(self, seq: int, tokens: int) -> Copies:
        blocks, chosen = self.blocks(seq), list[int]()
        room = int(self.host.num_free)
        while room > 0 and self.cursor[seq] < tokens // self.block_tokens:
            block = blocks[self.cursor[seq]]
            if self._is_wanted(block) and block not in chosen:
                if len(chosen) == room:
                    break
                chosen.append(block)
            self.cursor[seq] += 1
        return self._hold_both(chosen)

    def _is_wanted(self, block: int) -> bool:
        content = int(self.content[block])
        return content != 0 and block not in self.storing and self._find(content) == 0

    def _near_eviction(self) -> Copies:
        """Lazy: along the free queue, from where the last walk ended."""
        after, chosen, room = self.pool.after, list[int](), int(self.host.num_free)
        if self.pool.refs[self.at] > 0:  # it is in use: from the head
            self.at = 0
        block = int(after[self.at])
        for _ in range(self.walk):
            if block == 0 or len(chosen) == room:
                break
            self.at = block
            if self._is_wanted(block):
                chosen.append(block)
            block = int(after[block])
        return self._hold_both(chosen)

    def _hold_both(self, blocks: Sequence[int]) -> Copies:
        row = np.zeros(max(len(blocks), 1), np.int32)
        probe_loading.take(self.host, self.host_map, row, len(blocks))
        for block in blocks:
            probe_loading.hold(self.pool, block)
        self.storing.update(blocks)
        return [(block, int(host)) for block, host in zip(blocks, row, strict=False)]

    def ends(self, seq: int) -> None:
        self._unpin(seq)
        if self.seqs["slot"][seq] >= 0 and seq not in self.in_load and not self.is_lazy:
            self.left += self._copy_up_to(seq, self.tokens_at_end(seq))

    # ---------------------------------------------------------------- what is over, what is seen

    def done(self, transfers: Sequence[Any]) -> None:
        for kind, number in transfers:
            copies, seqs = self.events.pop((kind, number))
            if kind == "store":
                for device, host in copies:
                    probe_loading.register(self.host, self.host_map, host, np.int64(self.content[device]))
                self.storing.difference_update(device for device, _ in copies)
            self._drop(self.host, (host for _, host in copies))
            self._drop(self.pool, (device for device, _ in copies))
            for seq in seqs:
                self.load_is_over(seq)

    @staticmethod
    def _drop(pool: Any, blocks: Iterable[int]) -> None:
        for block in blocks:
            probe_loading.drop(pool, block)

    def memory(self) -> Observed:
        return {"cpu": [int(self.host.num_free), int(self.host_map.distinct)], "jobs": len(self.events)}
