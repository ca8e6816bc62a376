"""What a fleet is: its engines, each with rules and step times of its own, and the router in front of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.errors import UsageError
from ..core.requests import Requests
from ..core.units import NS_PER_MS
from ..costs.tables import CostTables
from ..engine.build import Shared
from ..engine.settings import EngineSettings
from ..routing.policies import no_verbs, verbs_of
from ..routing.router import decision_ns, make_router
from ..routing.settings import RouterSettings
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

    router       None = there is one engine, or one instance, and nobody has to choose
    is_instance  they are the ranks of one instance, which deals requests to them itself
    """

    members: tuple[Member, ...]
    router: RouterSettings | None = None
    is_instance: bool = False

    @property
    def settings(self) -> tuple[EngineSettings, ...]:
        """Of every engine."""
        return tuple(member.settings for member in self.members)

    def check(self) -> None:
        """UsageError: engines that cannot work on one workload."""
        if len(self.members) > 1 and self.router is None and not self.is_instance:
            raise UsageError("several engines need a router; set router.policy")
        for name in ("block_tokens", "max_model_len"):
            if len({getattr(settings, name) for settings in self.settings}) > 1:
                raise UsageError(f"the engines of a fleet share {name}; leave it out of [[fleet.group]]")
        cold = all(settings.cache.state == "cold" for settings in self.settings)
        if len(self.members) > 1 and not cold:
            raise UsageError(
                "cache.state of a fleet is cold: what lies where depends on the router; "
                "let a first [[phase]] with exclude = true warm it up"
            )


def routing_of(fleet: Fleet, requests: Requests, shared: Shared) -> Routing:
    """The router of a fleet at t = 0."""
    settings = fleet.router or RouterSettings()
    router = make_router(
        settings, requests, len(fleet.members), shared.block_keys, fleet.members[0].settings.block_tokens
    )
    if fleet.router is None:
        return Routing(router, no_verbs(), np.zeros(0, np.int64))
    request = np.repeat(np.arange(len(requests)), requests.samples)
    return Routing(
        router,
        verbs_of(settings),
        decision_ns(settings, requests.prompt_tokens[request]),
        round(settings.refresh_ms * NS_PER_MS),
    )
