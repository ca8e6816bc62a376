"""A router of the product beside the reference, led through the same things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.engine.build import share
from kvbench.engine.settings import EngineSettings
from kvbench.prefix.chain_hash import chain, root_hash
from kvbench.prefix.keys import block_keys, sequence_keys
from kvbench.prefix.node import LENGTH
from kvbench.routing.build import make_router
from kvbench.routing.holder_tree import BIRTH, CREATOR
from kvbench.routing.policies import verbs_of
from kvbench.routing.router import (
    ENDED,
    FIRST_TOKEN,
    LOST,
    NO_ENGINE,
    OUTPUT_BLOCK,
    PREFILL_STEP,
    REMOVED,
    SENT,
    STORED,
    forget_report,
    report,
)
from kvbench.routing.settings import RouterSettings
from kvbench.scheduler.rules import CacheRules, SchedulerRules
from kvbench.verify.content import Asked, request_table

from ..reference.router import ReferenceRouter

SETTINGS = EngineSettings(SchedulerRules(), cache=CacheRules(num_blocks=1000), block_tokens=4, max_model_len=1 << 20)


def _prefill_ns(engine: int, tokens: int) -> int:
    """Of imaginary engines; a straight line, so that there is nothing to interpolate."""
    return tokens * (1000 + 100 * engine)


@dataclass
class Pair:
    """Both sides. asks: (prompt, session or None)."""

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
        points = np.array([[_prefill_ns(e, t) for t in (0, PREFILL_STEP)] for e in range(self.num_engines)], np.int64)
        self.router = make_router(self.settings, table, self.num_engines, block_keys(table, bt), bt, points)
        self.verbs = verbs_of(self.settings)
        self.reference = ReferenceRouter(
            self.settings.policy,
            self.num_engines,
            bt,
            prefill_ns=_prefill_ns,
            point_of_prefix=self._point,
            **self.options,
        )
        self.reference.any_holder = self._any_holder
        self.where: dict[int, int] = {}
        self.now = 0

    def send(self, request: int) -> tuple[int | None, int | None]:
        """(the product's engine, the reference's); a request that nobody takes is not sent."""
        prompt, session = self.asks[request]
        self.request = request
        engine = self.verbs.route(self.router, self.seqs, request, self.now)
        wanted = self.reference.choose(prompt, session, self.now)
        if engine == NO_ENGINE:
            return None, wanted
        self.where[request] = engine
        self._hear(SENT, request, engine)
        self.reference.sent(request, int(engine), prompt, self.now)
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

    def report(self, engine: int, requests: int, waiting: int, tokens: int, used: int, capacity: int) -> None:
        forget_report(self.router, engine)
        report(self.router, engine, requests, waiting, tokens, used, capacity)
        e = self.reference.engines[engine]
        e.requests, e.waiting, e.queued_tokens, e.kv_used, e.kv_all = requests, waiting, tokens, used, capacity

    def block_event(self, engine: int, request: int, block: int, is_stored: bool) -> None:
        """The engine stores or removes the block of that number of a prompt."""
        content = self.names(request)[block]
        self.verbs.hear(self.router, self.seqs, STORED if is_stored else REMOVED, np.int64(content), engine, self.now)
        prefix = self.reference.blocks(self.asks[request][0])[: block + 1]
        self.reference.hear_block(engine, prefix, is_stored)

    def restart(self, engine: int) -> None:
        self.verbs.hear(self.router, self.seqs, LOST, np.int64(0), engine, self.now)
        self.reference.lost(engine)

    def output_block(self, request: int) -> None:
        self._hear(OUTPUT_BLOCK, request, self.where[request])
        self.reference.engines[self.where[request]].live[request][3] += 1

    def truth(self, engine: int, tokens: int) -> None:
        self.router.truth[engine] = self.reference.engines[engine].truth = tokens

    def names(self, request: int) -> list[int]:
        """Chain hashes of a prompt's blocks."""
        content, out = root_hash(np.int64(0)), []
        blocks = len(self.asks[request][0]) // SETTINGS.block_tokens
        for key in sequence_keys(self.router.block_keys, request, blocks):
            content = chain(content, key)
            out.append(int(content))
        return out

    def _point(self, prompt: Any, blocks: int) -> int:
        return self.names(self.request)[blocks - 1] >> 1 & (1 << 63) - 1

    def _any_holder(self, node: Any) -> int:
        """Where the engine for which a node came has it no more, the order of the product's list decides."""
        tree, n = self.router.tree, 0
        births = {int(tree.nodes[i, BIRTH]): i for i in range(1, tree.high_node) if tree.nodes[i, LENGTH] > 0}
        n = births[node.birth]
        assert int(tree.nodes[n, CREATOR]) in node.stamps
        return int(tree.nodes[n, CREATOR])

    def _hear(self, event: Any, request: int, engine: int) -> None:
        self.verbs.hear(self.router, self.seqs, event, request, engine, self.now)
