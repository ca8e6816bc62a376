"""The state of the cache at t = 0.

    cold        empty
    prefilled   prefixes that several requests share lie in the cache already
    warm        the whole workload has been through the cache once, one request after another in order of arrival: what
                a second visit finds

A second engine, which has no clock, visits (`lone`); the cache that it leaves is the one that a run begins with.
Nothing of this is timed or counted: hits, evictions and insertions are those of the run alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..cluster.simulation import Simulation
from ..core.jit import entry
from ..core.requests import Requests
from ..costs.tables import CostTables
from ..engine.build import build_engine, share
from ..engine.cached import cached_prefixes
from ..engine.settings import EngineSettings
from ..scheduler.rules import BeamRules
from ..scheduler.state import Engine
from ..scheduler.state_columns import HASHED
from .lone import run_alone, without_clock
from .order import arrival_order
from .visited import visited_tokens
from .warm_tiers import prepare_tiers

_Run = TypeVar("_Run", bound=Simulation)


def prepared(simulation: _Run) -> _Run:
    """The same simulation, its cache in the state that its settings ask for. It has not begun yet."""
    requests, settings = simulation.requests, simulation.settings
    if settings.cache.state != "cold":
        for engine in simulation.engines:
            prepare_cache(engine, requests, settings)
    prepare_tiers(simulation.engines, requests, settings)
    simulation.cache_prepared(visited_tokens(requests, settings.cache.state) // settings.block_tokens)
    return simulation


def prepare_cache(engine: Engine, requests: Requests, settings: EngineSettings) -> None:
    """Bring the cache of an engine at t = 0 into the state of its settings."""
    tokens = visited_tokens(requests, settings.cache.state)
    if settings.cache.kind == "none" or not tokens.any():
        return
    visitor = _visitor(requests, settings, engine.costs)
    _ask_for(visitor, tokens)
    run_alone(visitor, arrival_order(requests)[tokens[arrival_order(requests)] > 0])
    _hand_over(visitor, engine)
    if engine.shadow.owner.size > 1:
        _shadow_cached(engine)


def _visitor(requests: Requests, settings: EngineSettings, costs: CostTables) -> Engine:
    """An engine of the same rules but for those of sequences that fork: whole blocks alone are left behind."""
    plain = without_clock(replace(settings, beam=BeamRules()))
    plain = replace(plain, cache=replace(plain.cache, copy_on_write=False))
    return build_engine(share(requests, plain), plain, costs, tells_blocks=settings.tiers.writes_back)


@entry
def _ask_for(e, tokens):
    """Every sequence comes with the first tokens that it has, prompt and answer alike, and ends with one more."""
    q = e.seqs
    for seq in range(q.request.size):
        n = tokens[q.request[seq]]
        if n <= q.prompt[seq]:
            q.prompt[seq] = n
            q.output[seq] = q.max_tokens[seq] = 1
            q.present[seq] = min(q.present[seq], max(n - 1, 0))


@entry
def _hand_over(visitor, e):
    """The cache changes hands, and what it has counted is forgotten."""
    e.pool = visitor.pool
    e.tree = visitor.tree
    e.hashes = visitor.hashes
    e.pool.evicted = 0
    e.tree.evicted = 0
    e.tree.evicted_nodes = 0
    e.tree.inserted = 0
    e.tree.log_size = 0
    e.tree.order.num_changes = e.hashes.order.num_changes = 0
    e.hashes.registered = 0
    e.hashes.log_size = 0


def _shadow_cached(e: Engine) -> None:
    """Check mode: what lies in the cache already was written, and ends the prefix that it is known for."""
    chain, written = e.shadow.chain, e.shadow.written
    if e.rules.cache_kind == HASHED:  # twins too: the map names one of them
        cached = np.flatnonzero(e.pool.content)
        chain[cached] = e.pool.content[cached]
        written[cached] = e.rules.block_tokens
        return
    for content, block in cached_prefixes(e).items():
        chain[block] = content
        written[block] = e.rules.block_tokens
