"""What a fleet is: its engines, each with rules and step times of its own, and the router in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry
from ..core.requests import I64, Requests
from ..core.units import NS_PER_MS
from ..costs.tables import NUM_RESOURCES, QUERY_SIZE, CostTables, add_prefill, clear, step_ns
from ..engine.arrival import takers
from ..engine.build import Shared
from ..engine.settings import EngineSettings
from ..pairs.settings import PairRules
from ..routing.build import decision_ns, make_router
from ..routing.policies import no_verbs, verbs_of
from ..routing.router import PREFILL_STEP
from ..routing.settings import PREDICTING, RouterSettings
from .incidents import Incident, check_incidents
from .world import Routing


@dataclass(frozen=True)
class Member:
    """One engine. group: a name that the user gave, or "" """

    settings: EngineSettings
    tables: CostTables
    group: str = ""


@dataclass(frozen=True)
class Fleet:
    """Engines in order of their numbers.

    ranks        so many in a row are an instance: they step together, the router chooses between instances, and each
                 deals to its ranks what it gets
    router       None = there is one instance, and nobody has to choose
    pairs        the first engines prefill, the others decode; None = all do both
    incidents    what happens to instances
    sends_again  what an engine loses when it restarts is routed again; else it fails
    """

    members: tuple[Member, ...]
    router: RouterSettings | None = None
    pairs: PairRules | None = None
    ranks: int = 1
    incidents: tuple[Incident, ...] = ()
    sends_again: bool = False

    @property
    def settings(self) -> tuple[EngineSettings, ...]:
        """Of every engine."""
        return tuple(member.settings for member in self.members)

    @property
    def instances(self) -> tuple[Member, ...]:
        """The first engine of each: what the router chooses between."""
        return self.members[:: self.ranks]

    def engines_of(self, instance: int) -> range:
        """Numbers of the engines of an instance."""
        return range(instance * self.ranks, (instance + 1) * self.ranks)

    def check(self) -> None:
        """UsageError: engines that cannot work on one workload."""
        if len(self.instances) > 1 and self.router is None:
            raise UsageError("several engines need a router; set router.policy")
        for name in ("block_tokens", "max_model_len"):
            if len({getattr(settings, name) for settings in self.settings}) > 1:
                raise UsageError(f"the engines of a fleet share {name}; leave it out of [[fleet.group]]")
        for settings in self.settings:
            check_incidents(self.incidents, settings)
        cold = all(settings.cache.state == "cold" for settings in self.settings)
        if len(self.members) > 1 and not cold:
            raise UsageError(
                "cache.state of a fleet is cold: what lies where depends on the router; "
                "let a first [[phase]] with exclude = true warm it up"
            )


def routing_of(fleet: Fleet, requests: Requests, shared: Shared) -> Routing:
    """The router of a fleet at t = 0."""
    settings = fleet.router or RouterSettings()
    first = fleet.members[0].settings
    router = make_router(
        settings,
        requests,
        fleet.pairs.num_prefill if fleet.pairs else len(fleet.instances),
        shared.block_keys,
        first.block_tokens,
        prefill_table([m.tables for m in fleet.instances], requests) if settings.policy in PREDICTING else None,
        first.seed,
        fleet.ranks,
    )
    if fleet.router is None:
        return Routing(router, no_verbs(), np.zeros(0, np.int64))
    request = np.repeat(np.arange(len(requests)), requests.samples)
    return Routing(
        router,
        verbs_of(settings),
        decision_ns(settings, requests.prompt_tokens[request]),
        round(settings.refresh_ms * NS_PER_MS),
        takers(requests, [m.settings for m in fleet.instances] if fleet.pairs is None else [first]),
    )


def prefill_table(tables: Sequence[CostTables], requests: Requests) -> I64:
    """(engines, points) ns of a prefill of so many times PREFILL_STEP tokens by each engine's own tables."""
    points = int(requests.prompt_tokens.max()) // PREFILL_STEP + 2
    out = np.zeros((len(tables), points), np.int64)
    for number, of in enumerate(tables):
        _fill_prefill_ns(of, PREFILL_STEP, out[number])
    return out


@entry
def _fill_prefill_ns(costs, step_tokens, out):
    """Chunk on chunk, each a step of its own on top of those before."""
    query, resources = np.zeros(QUERY_SIZE, np.float64), np.zeros(NUM_RESOURCES, np.int64)
    for i in range(out.size - 1):
        clear(query)
        add_prefill(costs, query, step_tokens, i * step_tokens)
        out[i + 1] = out[i] + step_ns(costs, query, resources)
