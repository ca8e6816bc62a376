"""Flushes: at a time a namespace loses its cache, since what its blocks hold is of no use any more (new weights).

What nobody holds becomes free at once. What is in use stays until it is released, is never hit again, and is not kept
afterwards: the namespace goes on under another root. Sequences that run keep what they have computed; one that is
preempted looks for its prefix under the new root.

A flush is no event of the loop: a run is advanced up to its time, then this happens, so that a run without flushes
neither compiles nor tests anything for them.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from ..core.requests import Requests
from ..core.units import NEVER_NS
from ..prefix.forgetting import empty_map, empty_tree
from ..scheduler.forks import drop
from ..scheduler.state import Engine
from ..scheduler.state_columns import FIRST_TERMINAL, HASHED, NEXT, NO_SEQ, NO_SLOT, RADIX, SEQ
from .settings import EngineSettings


class Flushes:
    """Those of a workload that are still to come."""

    def __init__(self, requests: Requests, settings: EngineSettings) -> None:
        self._times: list[int] = [] if requests.flush_ns is None else requests.flush_ns.tolist()
        self._namespaces: list[int] = [] if requests.flush_namespace is None else requests.flush_namespace.tolist()
        self._keeps_tables = settings.cache.copy_on_write
        self._done = 0
        self._visited = settings.cache.state != "cold"
        self._root = {number: number for number in self._namespaces}
        self._next_root = int(requests.namespace.max()) + 1

    @property
    def next_ns(self) -> int:
        """Time of the next one, or NEVER_NS."""
        return self._times[self._done] if self._done < len(self._times) else NEVER_NS

    def carry_out(self, engine: Engine) -> None:
        """The next one happens."""
        namespace = self._namespaces[self._done]
        self._done += 1
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            if self._keeps_tables:
                _drop_kept(engine, self._root[namespace])
            _flush(engine, self._root[namespace], self._next_root, self._visited)
        self._root[namespace] = self._next_root
        self._next_root += 1


@entry
def _drop_kept(e, old):
    """Copy on write: tables that are kept for later turns are of no use any more, either."""
    slot = e.kept_head
    while slot != NO_SLOT:
        following = e.slots.rec[slot, NEXT]
        if e.seqs.namespace[e.slots.rec[slot, SEQ]] == old:
            drop(e, slot)
        slot = following


@entry
def _flush(e, old, new, visited):
    """visited: requests that have not run yet may have blocks in the cache, too."""
    q, kind = e.seqs, e.rules.cache_kind
    if kind == RADIX:
        empty_tree(e.tree, e.pool, old)
    row = np.zeros(1, np.int32)
    for seq in range(q.state.size):
        if q.namespace[seq] != old:
            continue
        if kind == HASHED and (visited or q.scheduled[seq] >= 0):
            whole = (q.prompt[seq] + q.output[seq]) // e.rules.block_tokens
            empty_map(e.hashes, e.pool, e.block_keys, np.int64(seq), old, whole, row)
        if q.state[seq] < FIRST_TERMINAL:
            q.namespace[seq] = new
            if q.slot[seq] < 0:
                q.root[seq] = new
    e.blocked_seq = NO_SEQ
