"""A run of instances whose ranks step together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.journal import NEVER
from ..core.requests import I64, Requests
from ..costs.tables import CostTables
from ..engine.settings import EngineSettings
from .fleet import Fleet, Member
from .instances import Instances, make_instances
from .lockstep import compiled_lockstep
from .simulation import Simulation


@dataclass(frozen=True)
class BarrierTotals:
    """By rank: (ranks,). All in ns but dummy_steps. wait = steps' time - busy, summed over ranks, exactly.

    wait         for the slowest rank
    busy         own steps, dummies among them
    dummy        these alone
    step_ns      of the instance, all steps; steps: how many
    """

    wait_ns: I64
    busy_ns: I64
    dummy_ns: I64
    dummy_steps: I64
    step_ns: int
    steps: int


class LockstepSimulation(Simulation):
    """One instance of `ranks` engines behind a barrier."""

    def __init__(
        self,
        requests: Requests,
        settings: EngineSettings,
        tables: CostTables,
        ranks: int,
        deal: str,
        asks: bool = False,
        balance: bool = False,
    ) -> None:
        super().__init__(requests, settings, tables, Fleet((Member(settings, tables),) * ranks, is_instance=True))
        self.instances: Instances = make_instances([ranks], deal, asks, balance)

    def _turn(self, until_ns: int, max_steps: int) -> int:
        return compiled_lockstep()(self.world, self.instances, until_ns, max_steps)

    def _columns(self, sequences: dict[str, I64]) -> dict[str, I64]:
        """With the rank of every sequence."""
        rank = np.where(sequences["engine"] >= 0, sequences["engine"], NEVER)
        return {"rank": rank, **super()._columns(sequences)}

    def barrier(self) -> BarrierTotals:
        """Totals so far."""
        s = self.instances
        return BarrierTotals(
            np.array(s.wait_ns),
            np.array(s.busy_ns),
            np.array(s.dummy_ns),
            np.array(s.dummy_steps),
            int(s.step_ns[0]),
            int(s.steps[0]),
        )
