"""A run of ranks whose experts are spread over their devices: Python prices these between plan and start of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.requests import I64, Requests
from ..engine.step import PLANNED
from ..experts.mixture import Mixture
from ..experts.popularity import DECODE, PREFILL
from ..scheduler.state_columns import IN_DECODE, PHASE, PLAN_SLOT, PLAN_TOKENS, SEQ
from .fleet import Fleet
from .lockstep import ASKS
from .lockstep_simulation import LockstepSimulation


class ExpertSimulation(LockstepSimulation):
    """Instances of ranks, each with a mixture of experts of its own."""

    def __init__(
        self,
        requests: Requests,
        fleet: Fleet,
        deal: str,
        mixtures: Sequence[Mixture],
        balance: bool = False,
        domains: I64 | None = None,
    ) -> None:
        """mixtures: of each instance. domains: (requests,) whose popularity the tokens of each have; None: all are one.

        With domains every row of a step has to be in its plan: settings without the calendar path.
        """
        super().__init__(requests, fleet, deal, asks=True, balance=balance)
        self.mixtures, self.domains = tuple(mixtures), domains
        s = self.instances
        self._now, self._steps, self._tokens, self._terms = s.now, s.steps, s.tokens, s.terms
        self._together, self._pause, self._instance = s.together_ns, s.pause_ns, s.instance
        self._step_ns = s.step_ns
        self.step_ends: list[list[int]] = [[] for _ in self.mixtures]
        """By instance, (steps before the one at hand,) ns of all steps up to each, summed."""

    def _turn(self, until_ns: int, max_steps: int) -> int:
        before = int(self._steps.sum())
        while True:
            done = int(self._steps.sum()) - before
            status = super()._turn(until_ns, max(max_steps - done, 1))
            if status != ASKS:
                return status
            self._price(int(self._instance[int(self.world.at)]))

    def _price(self, i: int) -> None:
        """The step that an instance has planned."""
        index, ranks = int(self._steps[i]), self.fleet.engines_of(i)
        if index > len(self.step_ends[i]):
            self.step_ends[i].append(int(self._step_ns[i]))
        own = slice(ranks.start, ranks.stop)
        by_domain = None if self.domains is None else self._by_domain(i, self.domains)
        together, pause = self.mixtures[i].step(
            index, int(self._now[i]), self._tokens[own], self._terms[own], by_domain
        )
        self._together[i], self._pause[i] = together, pause

    def _by_domain(self, i: int, domains: I64) -> I64:
        """(2, domains) prefill and decode tokens of the step that an instance has planned. Dummies are of the first."""
        found = np.zeros((2, self.mixtures[i].domains), np.int64)
        for k in self.fleet.engines_of(i):
            e = self.engines[k]
            if self.instances.statuses[k] != PLANNED:
                found[DECODE, 0] += 1
                continue
            plan = e.plan[: e.num_plan]
            slots = e.slots.rec[plan[:, PLAN_SLOT]]
            of_rows, decodes = domains[e.seqs.request[slots[:, SEQ]]], slots[:, PHASE] == IN_DECODE
            np.add.at(found[DECODE], of_rows[decodes], 1)
            np.add.at(found[PREFILL], of_rows[~decodes], plan[~decodes, PLAN_TOKENS])
        return found

    def step_lengths(self, i: int) -> I64:
        """(steps,) ns of each step of an instance, its pause among them."""
        return np.diff([0, *self.step_ends[i], int(self._step_ns[i])])[: int(self._steps[i])]
