"""The policies by name, and how one becomes machine code.

A policy is `key(nodes, node, now) -> int64`, the smallest goes first, ties by last access; and, where it needs them,

    on_insert(nodes, node, now)     a node has come; its own words are 0
    on_hit(nodes, node, now)        a request that was admitted uses it
    on_evict(nodes, node, now)      it is about to leave: False keeps it, and it is asked for its key again

on records as in `prefix.node`. The key is asked for whenever a node becomes a candidate or is used while it is one.
Those that are no more than a stamp of the record (as in SGLang) have a code, and are dispatched in `leaf_heap`; all
others come as function pointers (3 ns a call), so that a run compiles only the policy it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit, types

from ...core.jit import PLAIN
from ..node import ACCESS, CREATED, HITS, PRIORITY
from . import chance, cost_aware, gdsf, lru_k, s3fifo, sieve, tail_lru

LRU, LFU, FIFO, MRU, FILO, PRIORITY_ORDER, SLRU, OWN = range(8)

SLRU_PROTECTED_HITS = 2

_RECORD = (types.int64[:, ::1], types.int64, types.int64)
KEY_FUNCTION = types.FunctionType(types.int64(*_RECORD))
EVENT_FUNCTION = types.FunctionType(types.void(*_RECORD))
VERDICT_FUNCTION = types.FunctionType(types.boolean(*_RECORD))


def no_key(nodes, node, now):
    return 0


def nothing(nodes, node, now):
    pass


def leaves(nodes, node, now):
    return True


@dataclass(frozen=True)
class Policy:
    """Functions as plain Python, and what the cache has to keep for them.

    code        how leaf_heap dispatches it; OWN = by its functions
    two_queues  negative keys are a queue of their own, and names of what left it are remembered (s3fifo)
    costs       COST of a record is filled
    built_in    machine code may stay on disk; Numba does not find the module of a user's file again
    """

    code: int = OWN
    key: Callable[..., Any] = no_key
    on_insert: Callable[..., Any] = nothing
    on_hit: Callable[..., Any] = nothing
    on_evict: Callable[..., Any] = leaves
    two_queues: bool = False
    costs: bool = False
    built_in: bool = True

    def pointers(self) -> tuple[Any, Any, Any, Any]:
        """(key, on_insert, on_hit, on_evict), compiled, or as they are without jit."""
        return (
            compiled(self.key, KEY_FUNCTION, self.built_in),
            compiled(self.on_insert, EVENT_FUNCTION, self.built_in),
            compiled(self.on_hit, EVENT_FUNCTION, self.built_in),
            compiled(self.on_evict, VERDICT_FUNCTION, self.built_in),
        )


def _of(module: ModuleType, **more: Any) -> Policy:
    names = ("key", "on_insert", "on_hit", "on_evict")
    functions: dict[str, Any] = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return Policy(**functions, **more)


POLICIES: dict[str, Policy] = {
    "lru": Policy(LRU),
    "lfu": Policy(LFU),
    "fifo": Policy(FIFO),
    "mru": Policy(MRU),
    "filo": Policy(FILO),
    "priority": Policy(PRIORITY_ORDER),
    "slru": Policy(SLRU),
    "s3fifo": _of(s3fifo, two_queues=True),
    "sieve": _of(sieve),
    "lru-k": _of(lru_k),
    "cost-aware": _of(cost_aware, costs=True),
    "gdsf": _of(gdsf),
    "tlru": _of(tail_lru),
    "random": _of(chance),
}


def _lru(nodes, node, now):
    return nodes[node, ACCESS]


def _lfu(nodes, node, now):
    return nodes[node, HITS]


def _fifo(nodes, node, now):
    return nodes[node, CREATED]


def _mru(nodes, node, now):
    return -nodes[node, ACCESS]


def _filo(nodes, node, now):
    return -nodes[node, CREATED]


def _priority(nodes, node, now):
    return nodes[node, PRIORITY]


def _slru(nodes, node, now):
    return np.int64(nodes[node, HITS] >= SLRU_PROTECTED_HITS)


_STAMPS = {LRU: _lru, LFU: _lfu, FIFO: _fifo, MRU: _mru, FILO: _filo, PRIORITY_ORDER: _priority, SLRU: _slru}


def by_functions(policy: Policy) -> Policy:
    """The same policy, with its key as a function also where it is a stamp."""
    return policy if policy.code == OWN else replace(policy, code=OWN, key=_STAMPS[policy.code])


@cache
def compiled(function: Callable[..., Any], kind: Any, keep: bool = True) -> Any:
    """A function pointer of one of the types above, kept alive for ever. keep: on disk."""
    return function if PLAIN else njit(kind.signature, cache=keep, error_model="numpy")(function)
