"""Flushes: at a time a namespace loses its cache, since what its blocks hold is of no use any more (new weights).

What nobody holds becomes free at once. What is in use stays until it is released, is never hit again, and is not kept
afterwards: the namespace goes on under another root. Sequences that run keep what they have computed; one that is
preempted looks for its prefix under the new root.

The loop stops at each engine's next step boundary for Python to do this, so a run without flushes neither compiles nor
tests anything for them.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from ..core.requests import Requests
from ..engine.settings import EngineSettings
from ..prefix.forgetting import empty_map, empty_tree
from ..scheduler.forks import drop
from ..scheduler.state import Engine
from ..scheduler.state_columns import FIRST_TERMINAL, HASHED, NEXT, NO_SEQ, NO_SLOT, RADIX, SEQ


class Flushes:
    """Those of a workload."""

    def __init__(self, requests: Requests, settings: EngineSettings) -> None:
        self.times: list[int] = [] if requests.flush_ns is None else requests.flush_ns.tolist()
        self._namespaces: list[int] = [] if requests.flush_namespace is None else requests.flush_namespace.tolist()
        self._keeps_tables = settings.cache.copy_on_write
        self._visited = settings.cache.state != "cold"
        first = int(requests.namespace.max()) + 1
        self._new = [first + i for i in range(len(self.times))]  # the root that each leaves behind
        last = {number: number for number in self._namespaces}
        self._old = []  # the root that each finds
        for namespace, new in zip(self._namespaces, self._new, strict=True):
            self._old.append(last[namespace])
            last[namespace] = new

    def carry_out(self, engine: Engine, index: int) -> None:
        """One of them happens to an engine, between two of its steps."""
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            if self._keeps_tables:
                _drop_kept(engine, self._old[index])
            _flush(engine, self._old[index], self._new[index], self._visited)


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
        if q.namespace[seq] != old or (q.engine[seq] != e.number and q.engine[seq] >= 0):
            continue
        if kind == HASHED and (visited or q.scheduled[seq] >= 0):
            whole = (q.prompt[seq] + q.output[seq]) // e.rules.block_tokens
            empty_map(e.hashes, e.pool, e.block_keys, np.int64(seq), old, whole, row)
        if q.state[seq] < FIRST_TERMINAL:
            q.namespace[seq] = new
            if q.slot[seq] < 0:
                q.root[seq] = new
    e.blocked_seq = NO_SEQ
