"""The state of the cache at t = 0.

    cold        empty
    prefilled   prefixes that several requests share lie in the cache already
    warm        the whole workload has been through the cache once, in order of arrival: what a second visit finds

Nothing of this is timed or counted: hits, evictions and insertions are those of the run alone.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ..cluster.simulation import Simulation
from ..core.jit import entry
from ..core.requests import EXPLICIT, I64, Requests
from ..engine.cached import cached_prefixes
from ..scheduler.state import Engine
from ..scheduler.state_columns import HASHED, RADIX
from .replay import visit_hashed, visit_radix

_Run = TypeVar("_Run", bound=Simulation)


def prepared(simulation: _Run) -> _Run:
    """The same simulation, its cache in the state that its settings ask for. It has not begun yet."""
    engine, state = simulation.engine, simulation.settings.cache.state
    leading = visited_blocks(simulation.requests, state, engine.rules.block_tokens)
    if state != "cold":
        with np.errstate(over="ignore"):
            _visit(engine, np.minimum(leading, engine.keys.size - 1))
            if engine.shadow.owner.size > 1:
                _shadow_cached(engine)
    simulation.cache_prepared(leading)
    return simulation


def _shadow_cached(e: Engine) -> None:
    """Check mode: what lies in the cache already was written, and ends the prefix that it is known for."""
    for content, block in cached_prefixes(e).items():
        e.shadow.chain[block] = content
        e.shadow.written[block] = e.rules.block_tokens


def visited_blocks(requests: Requests, state: str, block_tokens: int) -> I64:
    """(n,) leading blocks of each request that went through the cache before t = 0."""
    if state == "warm":
        return (requests.prompt_tokens + requests.output_tokens - 1) // block_tokens
    if state == "prefilled":
        return shared_prefix_tokens(requests) // block_tokens
    return np.zeros(len(requests), np.int64)


def shared_prefix_tokens(requests: Requests) -> I64:
    """Tokens of each prompt's first segment, where another request begins with the same stream; else 0."""
    r = requests
    first = r.segment_offset[:-1]
    stream, start = r.segment_stream[first], r.segment_start[first]
    _, which, count = np.unique(stream, return_inverse=True, return_counts=True)
    shared = (count[which] > 1) & (start == 0) & (stream != EXPLICIT)
    return np.where(shared, r.segment_length[first], 0)


@entry
def _visit(e, whole):
    row = np.empty(e.keys.size, np.int32)
    q = e.seqs
    for request in range(whole.size):
        seq = q.first[request]
        n = whole[request]
        if n > 0 and e.rules.cache_kind == RADIX:
            visit_radix(e.tree, e.pool, e.block_keys, seq, q.namespace[seq], q.priority[seq], n, e.keys, row)
        if n > 0 and e.rules.cache_kind == HASHED:
            visit_hashed(e.hashes, e.pool, e.block_keys, seq, q.namespace[seq], q.priority[seq], n, e.keys, row)
    e.pool.evicted = 0
    e.tree.evicted = 0
    e.tree.evicted_nodes = 0
    e.tree.inserted = 0
    e.tree.log_size = 0
    e.hashes.registered = 0
    e.hashes.log_size = 0
