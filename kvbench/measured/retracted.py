"""KV of who is retracted on the decode side of a push: it goes to host memory and comes back (SGLang).

No operation says so, since that takes no time here, on either clock. So it is seen in who is retracted: what such a
sequence had before the plan is read before anybody writes there, and written to the blocks that it comes back to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.requests import I64
from ..engine.observe import fields_of
from ..scheduler.side import DECODE
from ..scheduler.state_columns import BLOCKS, FREE_SLOT, PHASE, SEQ
from .seat import Seat


class Retracted:
    """Of one engine."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        rules = fields_of(seat.engine.rules)
        self._is_on = int(seat.engine.side.role) == DECODE and bool(rules["prefill_first"])
        self._blocks: dict[int, I64] = {}
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def before(self) -> None:
        """What everybody has, before the engine goes on."""
        if not self._is_on:
            return
        rec, table = self._seat.rec, self._seat.table
        self._blocks = {
            int(rec[slot, SEQ]): table[slot, : rec[slot, BLOCKS]].astype(np.int64)
            for slot in np.flatnonzero(rec[:, PHASE] != FREE_SLOT)
        }

    def after(self) -> None:
        """Who has gone is kept, who has come back is where it was."""
        if not self._is_on:
            return
        seat = self._seat
        side = fields_of(seat.engine.side)
        now = set(side["retracted"][: side["num_retracted"]].tolist())
        for seq in now - self._kept.keys():
            self._kept[seq] = seat.device.read(self._blocks[seq])
        for seq in self._kept.keys() - now:
            content, slot = self._kept.pop(seq), int(seat.seqs["slot"][seq])
            if slot >= 0:
                blocks = seat.table[slot, : seat.rec[slot, BLOCKS]].astype(np.int64)[: len(content)]
                seat.device.write(blocks, content[: blocks.size])

    def forget(self) -> None:
        """The engine is lost."""
        self._kept.clear()
