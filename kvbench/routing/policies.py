"""The policies by name: the two verbs of each, compiled for the run that uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import njit

from ..core.jit import PLAIN
from ..scheduler.state import Sequences
from . import (
    belief,
    by_load,
    cache_aware,
    kv_aware,
    longest_prefix,
    own_file,
    predicted_ttft,
    prefix_hash,
    scorers,
    sessions,
)
from .router import HEAR_FUNCTION, ROUTE_FUNCTION, Router
from .settings import RouterSettings


@dataclass(frozen=True)
class RouterVerbs:
    """See router.py: function pointers, or the functions as they are without jit."""

    route: Callable[[Router, Sequences, int, int], int]
    hear: Callable[[Router, Sequences, int, int, int, int], None]


_VERBS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "round-robin": (by_load.round_robin, by_load.hear),
    "random": (by_load.at_random, by_load.hear),
    "least-loaded": (by_load.least_loaded, by_load.hear),
    "power-of-two": (by_load.power_of_two, by_load.hear),
    "session": (sessions.route, sessions.hear),
    "prefix-hash": (prefix_hash.route, by_load.hear),
    "longest-prefix": (longest_prefix.route, belief.hear),
    "cache-aware": (cache_aware.route, cache_aware.hear),
    "kv-aware": (kv_aware.route, kv_aware.hear),
    "scorers": (scorers.route, belief.hear),
    "predicted-ttft": (predicted_ttft.route, belief.hear),
    "oracle": (predicted_ttft.route, belief.hear),
}


def verbs_of(settings: RouterSettings) -> RouterVerbs:
    """The verbs of a policy."""
    route, hear = (own_file.route, belief.hear) if settings.is_own_file else _VERBS[settings.policy]
    return RouterVerbs(_pointer(route, ROUTE_FUNCTION), _pointer(hear, HEAR_FUNCTION))


def no_verbs() -> RouterVerbs:
    """Where there is one engine: every request goes to it, and nothing is counted."""
    return RouterVerbs(_pointer(by_load.only, ROUTE_FUNCTION), _pointer(by_load.ignore, HEAR_FUNCTION))


@cache
def _pointer(function: Callable[..., Any], kind: Any) -> Any:
    return function if PLAIN else njit(kind.signature, cache=True, nogil=True, error_model="numpy")(function)
