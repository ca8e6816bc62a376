"""An engine of a run with its device: what it plans is taken down, and run by a worker."""

from __future__ import annotations

from ..core.requests import I64
from ..engine.observe import fields_of
from ..scheduler.state import Engine
from ..scheduler.state_columns import KNOWN, PLAN_SLOT, PLAN_START, PLAN_TOKENS, SEQ
from . import stepwise
from .copies import Place
from .worker import Device, PlannedStep, Worker


class Seat(Place):
    """See copies.Place. seqs: arrays of its sequences."""

    def __init__(self, engine: Engine, device: Device, worker: Worker, host_blocks: int) -> None:
        super().__init__(engine, device, device.another(host_blocks) if host_blocks else None)
        self.model, self.worker = device, worker
        self.take(engine)

    def take(self, engine: Engine) -> None:
        """An engine, or the one that has come in its place."""
        self.engine = engine
        e = fields_of(engine)
        self.seqs, slots = fields_of(e["seqs"]), fields_of(e["slots"])
        self.rec, self.table = slots["rec"], slots["table"]
        self._plan, self._copies, self._forks = e["plan"], e["copies"], e["forks"]
        self.beam_rank: I64 = e["beam_rank"]
        self._block_tokens = int(fields_of(e["rules"])["block_tokens"])

    def take_down(self) -> PlannedStep:
        """The plan as arrays of its own: the engine goes on while it runs."""
        now = stepwise.now(self.engine)
        rows = self._plan[: now.num_plan]
        slots, starts, tokens = (rows[:, column].copy() for column in (PLAN_SLOT, PLAN_START, PLAN_TOKENS))
        width = int((starts + tokens).max() - 1) // self._block_tokens + 1
        return PlannedStep(
            seqs=self.rec[slots, SEQ],
            starts=starts,
            tokens=tokens,
            known=self.rec[slots, KNOWN],
            tables=self.table[slots, :width],
            copies=self._copies[: now.num_copies].copy(),
        )

    def forks(self) -> I64:
        """(n, 3) of the last commit: donor, sequence, tokens."""
        forks: I64 = self._forks[: stepwise.now(self.engine).num_forks]
        return forks
