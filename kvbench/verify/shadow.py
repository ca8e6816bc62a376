"""What lies in every block, kept apart from the engine: a sequence reads only what was written there, and is its own.

After each step the plan says which tokens were written into which blocks, and which blocks before them were read.
The shadow names the content of a block by all tokens up to its end, so a block that was handed out and never written,
or written by somebody else since, is seen when it is read.

Only for the step path: the calendar has no rows of its decodes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from ..cluster.simulation import Simulation
from ..engine.observe import fields_of, view
from ..prefix.keys import sequence_keys
from ..scheduler.state_columns import PLAN_SLOT, PLAN_START, PLAN_TOKENS, SEQ


class _Row(NamedTuple):
    """A row of the plan that has run. blocks: its table up to its last token."""

    seq: int
    start: int
    tokens: int
    blocks: list[int]


class Shadow:
    """Contents of all blocks of one simulation.

    same_step   what a step writes may be read in that step (attention, which writes the KV of a batch before it
                reads); False: only what earlier steps wrote (layers that carry a state)
    """

    def __init__(self, simulation: Simulation, same_step: bool) -> None:
        self.engine, self.same_step = simulation.engine, same_step
        state = fields_of(self.engine)
        slots = fields_of(state["slots"])
        self.plan, self.rec, self.table = state["plan"], slots["rec"], slots["table"]
        self.seqs = fields_of(state["seqs"])
        self.keys, self.bt = state["block_keys"], simulation.settings.block_tokens
        self.request = self.seqs["request"]
        self.written: dict[int, Hashable] = {}
        self.names: dict[int, list[Hashable]] = {}

    def step(self, number: int) -> str:
        """Follow the step that has just run. Returns what was read and not there, as a sentence; "" if nothing."""
        rows = self._rows()
        wrong = self._unwritten(rows, number, strict=True)
        for row in rows:
            self._write(row)
        return wrong or self._unwritten(rows, number, strict=False)

    def _rows(self) -> list[_Row]:
        rows = []
        for slot, start, tokens in self.plan[
            : view(self.engine).num_plan, [PLAN_SLOT, PLAN_START, PLAN_TOKENS]
        ].tolist():
            blocks = self.table[slot, : -(-(start + tokens) // self.bt)].tolist()
            rows.append(_Row(int(self.rec[slot, SEQ]), start, tokens, blocks))
        return rows

    def _unwritten(self, rows: list[_Row], number: int, strict: bool) -> str:
        """strict: before the step's writes, so whole blocks count only where the step may not supply them itself."""
        for row in rows:
            whole, rest = divmod(row.start, self.bt)
            wanted = [(j, self._name(row.seq, j)) for j in range(whole)] if self.same_step != strict else []
            if strict and rest:
                wanted.append((whole, ("part", row.seq, whole, rest)))
            for j, name in wanted:
                if self.written.get(row.blocks[j]) != name:
                    return (
                        f"step {number}: request {int(self.request[row.seq])} reads block {row.blocks[j]} as block {j} "
                        "of its tokens, which nobody had written there"
                    )
        return ""

    def _write(self, row: _Row) -> None:
        end = row.start + row.tokens
        for j in range(row.start // self.bt, len(row.blocks)):
            tokens = min(end - j * self.bt, self.bt)
            self.written[row.blocks[j]] = self._name(row.seq, j) if tokens == self.bt else ("part", row.seq, j, tokens)

    def _name(self, seq: int, block: int) -> Hashable:
        """Of the tokens of a sequence up to the end of a block, and its namespace."""
        names = self.names.setdefault(seq, [])
        if len(names) <= block:
            name: Hashable = ("namespace", int(self.seqs["namespace"][seq]))
            names.clear()
            with np.errstate(over="ignore"):
                keys = sequence_keys(self.keys, seq, block + 64).tolist()
            for key in keys:
                name = hash((name, key))
                names.append(name)
        return names[block]
