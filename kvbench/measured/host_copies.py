"""Write-through copies on the measured clock: blocks are really copied to host memory, as late as they may be.

The engine says when a copy begins and when it has ended (memory.operations). The bytes are copied at its end, so a
block that is handed out before (the fence is what forbids it) has other bytes by then; they are compared with those at
its beginning.
"""

from __future__ import annotations

import zlib
from collections import deque

import numpy as np

from ..core.errors import KvbenchError
from ..core.requests import I64
from ..engine.observe import fields_of
from ..memory.operations import FREE_ROW, OP_COUNT, OP_FIRST, OP_NUMBER, OP_STATE
from ..scheduler.state import Engine
from .stepwise import Stepper
from .worker import Device


class HostCopies:
    """Copies under way, and the bytes copied so far. host: block contents by block, the last of each."""

    def __init__(self, engine: Engine, stepper: Stepper, device: Device) -> None:
        self._engine, self._stepper, self._device = engine, stepper, device
        self._under_way: deque[tuple[I64, list[int]]] = deque()
        self._begun = 0
        self._active = engine.rules.backs_up
        self.copied_bytes = 0

    def begin(self) -> None:
        """Note the copies that the last commit began: their blocks, and a checksum of each."""
        if not self._active:
            return
        begun = self._stepper.now().copies_begun
        if begun == self._begun:
            return
        rows, blocks = (fields_of(self._engine.operations)[name] for name in ("rows", "blocks"))
        fresh = np.flatnonzero((rows[:, OP_STATE] != FREE_ROW) & (rows[:, OP_NUMBER] > self._begun))
        for at in fresh[np.argsort(rows[fresh, OP_NUMBER])]:
            ids = blocks[rows[at, OP_FIRST] : rows[at, OP_FIRST] + rows[at, OP_COUNT]].astype(np.int64)
            self._under_way.append((ids, self._sums(ids)))
        self._begun = begun

    def end(self) -> None:
        """Copy what has ended by now. KvbenchError: a block was written meanwhile."""
        if not self._active:
            return
        self._finish(self._stepper.now().copies_open)

    def drain(self) -> None:
        """The run is over: copy what is still under way."""
        self._finish(0)

    def _finish(self, left: int) -> None:
        while len(self._under_way) > left:
            ids, sums = self._under_way.popleft()
            self.copied_bytes += self._device.read(ids).nbytes
            for block, before, after in zip(ids.tolist(), sums, self._sums(ids), strict=True):
                if before != after:
                    raise KvbenchError(f"block {block} was written while it was being copied to host memory")

    def _sums(self, ids: I64) -> list[int]:
        return [zlib.crc32(content) for content in self._device.read(ids)]
