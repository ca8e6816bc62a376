"""A run of ranks whose experts are spread over their devices: Python prices these between plan and start of a step."""

from __future__ import annotations

import numpy as np

from ..core.requests import I64, Requests
from ..costs.tables import CostTables
from ..engine.settings import EngineSettings
from ..experts.mixture import Mixture
from .lockstep import ASKS
from .lockstep_simulation import LockstepSimulation


class ExpertSimulation(LockstepSimulation):
    """One instance of ranks with a mixture of experts."""

    def __init__(
        self,
        requests: Requests,
        settings: EngineSettings,
        tables: CostTables,
        ranks: int,
        deal: str,
        mixture: Mixture,
        balance: bool = False,
    ) -> None:
        super().__init__(requests, settings, tables, ranks, deal, asks=True, balance=balance)
        self.mixture = mixture
        s = self.instances
        self._now, self._steps, self._tokens, self._terms = s.now, s.steps, s.tokens, s.terms
        self._together, self._pause = s.together_ns, s.pause_ns
        self._step_ns = s.step_ns
        self.step_ends: list[int] = []
        """(steps before the one at hand,) ns of all steps up to each, summed."""

    def _turn(self, until_ns: int, max_steps: int) -> int:
        before = int(self._steps[0])
        while True:
            status = super()._turn(until_ns, max(max_steps - int(self._steps[0]) + before, 1))
            if status != ASKS:
                return status
            index = int(self._steps[0])
            if index > len(self.step_ends):
                self.step_ends.append(int(self._step_ns[0]))
            together, pause = self.mixture.step(index, int(self._now[0]), self._tokens, self._terms)
            self._together[0], self._pause[0] = together, pause

    def step_lengths(self) -> I64:
        """(steps,) ns of each step of the instance, its pause among them."""
        return np.diff([0, *self.step_ends, int(self._step_ns[0])])[: int(self._steps[0])]
