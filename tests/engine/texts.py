"""What the blocks of a copy-on-write run hold: every planned copy and write done on a memory of tokens, then read back.

The engine moves block ids only. Here each step's copies are made and its tokens written, in that order, and before the
step is committed every planned sequence must read its own text through its table. A shared block that is written, a
copy that is missing or late, a fork of the wrong length or a hit on another's block all show as a wrong text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.engine import disciplines
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler import beams
from kvbench.scheduler.beams import parent_of
from kvbench.scheduler.state_columns import (
    COMPUTED,
    COPY_DESTINATION,
    COPY_SOURCE,
    GENERATED,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
)

from ..reference.engine import Ask
from .compare import finish, small_tables
from .workloads import request_table

Token = tuple[int, int]


@dataclass
class Texts:
    """The tokens that each sequence should have, and those that lie in memory.

    grown   (sequence, position) -> token, where beams have taken over another's text
    """

    asks: list[Ask]
    width: int
    memory: dict[int, dict[int, Token]] = field(default_factory=dict)
    grown: dict[int, dict[int, Token]] = field(default_factory=dict)
    num_copies: int = 0
    most_shared: int = 0

    def __post_init__(self) -> None:
        self.sequences = [(ask, k) for ask in self.asks for k in range(self.width or ask.samples)]

    def token(self, seq: int, position: int) -> Token:
        if position in self.grown.get(seq, {}):
            return self.grown[seq][position]
        ask, sample = self.sequences[seq]
        for runs, shift in ((ask.prompt, 0), (ask.output, sample)):
            for stream, start, length in runs:
                if position < length:
                    return (0, start) if stream == 0 else (stream + shift, start + position)
                position -= length
        raise AssertionError(f"sequence {seq} has no token there")

    def scheduled(self, e: Any) -> None:
        """Copies, then writes, then everybody reads."""
        bt, rec, table = e.rules.block_tokens, e.slots.rec, e.slots.table
        for row in e.copies[: e.num_copies]:
            self.memory[int(row[COPY_DESTINATION])] = dict(self.memory.get(int(row[COPY_SOURCE]), {}))
        self.num_copies += int(e.num_copies)
        plan = [(int(r[PLAN_SLOT]), int(r[PLAN_START]), int(r[PLAN_TOKENS])) for r in e.plan[: e.num_plan]]
        writers: dict[int, int] = {}
        for slot, start, tokens in plan:
            assert start == rec[slot, COMPUTED]
            for position in range(start, start + tokens):
                block = int(table[slot, position // bt])
                assert writers.setdefault(block, slot) == slot, "two sequences write one block"
                # a whole block may be hit in the very step that computes it
                assert e.pool.refs[block] == 1 or e.pool.content[block] != 0, "a shared block is written"
                self.memory.setdefault(block, {})[position % bt] = self.token(int(rec[slot, SEQ]), position)
        for slot, start, tokens in plan:
            seq = int(rec[slot, SEQ])
            read = [self.memory[int(table[slot, i // bt])].get(i % bt) for i in range(start + tokens)]
            assert read == [self.token(seq, i) for i in range(start + tokens)]
        self.most_shared = max(self.most_shared, e.table_blocks - (e.pool.num_blocks - e.pool.num_free))

    def survived(self, e: Any, request: int, slots: Any, n: int) -> None:
        """Beams drew their parents: by place, the text of each is its parent's."""
        rec, rules = e.slots.rec, e.rules
        before = [int(rec[slot, SEQ]) for slot in slots[:n]]
        known = {seq: [self.token(seq, i) for i in range(int(rec[e.seqs.slot[seq], COMPUTED]))] for seq in before}
        token = int(rec[slots[0], GENERATED])
        _survive(e, request, slots, n)
        for place in range(n):
            parent = before[parent_of(rules.beam_seed, request, token, place, n, rules.beam_skew)]
            self.grown[int(rec[slots[place], SEQ])] = dict(enumerate(known[parent]))

    def won(self, e: Any, slot: int, first: int) -> None:
        """The best beam's text is, from now on, what the request's output says."""
        self.grown.pop(first, None)
        bt = e.rules.block_tokens
        for i in range(int(e.slots.rec[slot, COMPUTED])):
            self.memory[int(e.slots.table[slot, i // bt])][i % bt] = self.token(first, i)
        _publish_result(e, slot, first)


_survive, _publish_result = beams.survive, beams.publish_result


def run_with_texts(asks: list[Ask], settings: EngineSettings) -> tuple[Simulation, Texts]:
    """Run to the end, checking integrity and texts in every step."""
    texts = Texts(asks, settings.beam.width)
    own = disciplines.DISCIPLINES["copy_on_write"]

    def schedule(e: Any) -> None:
        own.schedule(e)
        texts.scheduled(e)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(disciplines.DISCIPLINES, "copy_on_write", replace(own, schedule=schedule))
        patch.setattr(beams, "survive", texts.survived)
        patch.setattr(beams, "publish_result", texts.won)
        simulation = Simulation(request_table(asks), replace(settings, check=True), small_tables())
        finish(simulation)
    return simulation, texts
