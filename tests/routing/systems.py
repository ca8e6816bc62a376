"""A router of the product beside the reference, led through the same things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.engine.build import share
from kvbench.engine.settings import CacheRules, EngineSettings, SchedulerRules
from kvbench.prefix.keys import block_keys
from kvbench.routing.policies import verbs_of
from kvbench.routing.router import (
    ENDED,
    FIRST_TOKEN,
    KV_ALL,
    KV_USED,
    NO_ENGINE,
    QUEUED_TOKENS,
    REQUESTS,
    SENT,
    make_router,
)
from kvbench.routing.settings import RouterSettings
from kvbench.verify.content import Asked, request_table

from ..reference.router import ReferenceRouter

SETTINGS = EngineSettings(SchedulerRules(), cache=CacheRules(num_blocks=1000), block_tokens=4, max_model_len=1 << 20)


@dataclass
class Pair:
    """Both sides. requests: (prompt tokens, session or None)."""

    settings: RouterSettings
    num_engines: int
    asks: list[tuple[tuple[int, ...], int | None]]
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = request_table([Asked(prompt) for prompt, _ in self.asks])
        sessions = np.array([-1 if s is None else s for _, s in self.asks], np.int64)
        object.__setattr__(table, "session_id", sessions)
        bt = SETTINGS.block_tokens
        self.seqs = share(table, SETTINGS).seqs
        self.router = make_router(self.settings, table, self.num_engines, block_keys(table, bt), bt)
        self.verbs = verbs_of(self.settings)
        self.reference = ReferenceRouter(self.settings.policy, self.num_engines, **self.options)
        self.where: dict[int, int] = {}
        self.now = 0

    def send(self, request: int) -> tuple[int | None, int | None]:
        """(the product's engine, the reference's); a request that nobody takes is not sent."""
        engine = self.verbs.route(self.router, self.seqs, request, self.now)
        prompt, session = self.asks[request]
        wanted = self.reference.choose(session)
        if engine == NO_ENGINE:
            return None, wanted
        self.where[request] = engine
        self._hear(SENT, request, engine)
        self.reference.sent(request, engine, len(prompt))
        return int(engine), wanted

    def first_token(self, request: int) -> None:
        self._hear(FIRST_TOKEN, request, self.where[request])
        self.reference.first_token(request, self.where[request])

    def end(self, request: int) -> None:
        self._hear(ENDED, request, self.where[request])
        self.reference.ended(request, self.where.pop(request))

    def accept(self, engine: int, accepts: bool) -> None:
        self.router.accepts[engine] = accepts
        self.reference.engines[engine].accepts = accepts

    def report(self, engine: int, requests: int, tokens: int, used: int, capacity: int) -> None:
        for column, value in ((REQUESTS, requests), (QUEUED_TOKENS, tokens), (KV_USED, used), (KV_ALL, capacity)):
            self.router.load[engine, column] = value
        e = self.reference.engines[engine]
        e.requests, e.queued_tokens, e.kv_used, e.kv_all = requests, tokens, used, capacity

    def _hear(self, event: Any, request: int, engine: int) -> None:
        self.verbs.hear(self.router, self.seqs, event, request, engine, self.now)
