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
    """By rank: (ranks,), of all instances. All in ns but dummy_steps and steps. wait = steps' time - busy, exactly.

    wait         for the slowest rank
    busy         own steps, dummies among them
    dummy        these alone
    step_ns      of its instance, all steps; steps: how many
    """

    wait_ns: I64
    busy_ns: I64
    dummy_ns: I64
    dummy_steps: I64
    step_ns: I64
    steps: I64


def one_instance(settings: EngineSettings, tables: CostTables, ranks: int) -> Fleet:
    """So many equal engines behind a barrier, and nobody in front of them."""
    return Fleet((Member(settings, tables),) * ranks, ranks=ranks)


class LockstepSimulation(Simulation):
    """Instances of `fleet.ranks` engines, each behind a barrier of its own."""

    def __init__(self, requests: Requests, fleet: Fleet, deal: str, asks: bool = False, balance: bool = False) -> None:
        first = fleet.members[0]
        super().__init__(requests, first.settings, first.tables, fleet)
        ranks = [fleet.ranks] * len(fleet.instances)
        self.instances: Instances = make_instances(ranks, deal, asks, balance)

    def _turn(self, until_ns: int, max_steps: int) -> int:
        return compiled_lockstep()(self.world, self.instances, until_ns, max_steps)

    def _columns(self, sequences: dict[str, I64]) -> dict[str, I64]:
        """With the rank of every sequence, in its instance."""
        engine = sequences["engine"]
        rank = np.where(engine >= 0, engine % self.fleet.ranks, NEVER)
        return {"rank": rank, **super()._columns(sequences)}

    def barrier(self) -> BarrierTotals:
        """Totals so far."""
        s = self.instances
        of = np.array(s.instance)
        return BarrierTotals(
            np.array(s.wait_ns),
            np.array(s.busy_ns),
            np.array(s.dummy_ns),
            np.array(s.dummy_steps),
            np.array(s.step_ns)[of],
            np.array(s.steps)[of],
        )
