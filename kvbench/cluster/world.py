"""All that a run consists of: clients, engines, and when each engine has its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numba.typed import List
from numpy.typing import NDArray

from ..client.clients import Clients
from ..core.jit import PLAIN, struct
from ..core.requests import I64
from ..core.units import NEVER_NS
from ..engine.disciplines import CANCEL, VERB, discipline_of, moving_of, watch_of
from ..memory.links import LAND_FUNCTION, Links, end_pointer
from ..memory.operations import Operations
from ..pairs.disciplines import pair_pointer, side_of
from ..pairs.state import BETWEEN, Pairs, no_pairs
from ..routing.policies import RouterVerbs
from ..routing.router import HEAR_FUNCTION, ROUTE_FUNCTION, UNKNOWN, Router
from ..scheduler.side import BOTH
from ..scheduler.state import Engine
from .routing import LOOK_FUNCTION, listen_pointer, look_pointer

if PLAIN:
    ENGINES = VERBS = CANCELS = None
else:
    ENGINES = types.ListType(Engine.numba_type)
    VERBS, CANCELS = types.ListType(VERB), types.ListType(CANCEL)


@struct
class World:
    """now: of what happened last, ns. engines, and by engine:

    ready       (engines,) when it lands, or may plan; NEVER_NS: not before something reaches it
    stepping    (engines,) 1 = a step is under way
    schedules, commits, cancels, watches   verbs of its scheduler, and what looks at each step
    befores, afters, landings, stretches   what it does for what moves: see engine.disciplines.Moving
    operations, links   what moves beside the steps; end_next: see memory.links
    router, route, hear, look, listen   who chooses an engine, and its verbs (routing.router, cluster.routing)
    port        (engines,) what the router knows an engine as: the ranks of an instance are one place there
    first       (ports + 1,) the engines of a place that the router knows are first .. next first
    takes       (ports or 0, requests) 1 = not too long for an engine there; empty: what one takes all take
    route_ns    (sequences or 0,) what the decision on each takes
    predicted   (sequences or 0,) tokens that the router believed cached where it sent it
    best        (sequences or 0,) the same of the engine that it believed to have most
    refresh_ns  between two reports of load to the router; 0 = none
    paired      some engines prefill, the others decode. pairs, between: what they have between them, see pairs.state
    incident    what has happened to an engine and Python has to carry out, or NO_INCIDENT
    at          the engine that had its turn last: the one that Python acts on (see loop.CONTROL, loop.PLANNED)
    """

    clients: "Clients"
    now: "i8"
    at: "i8"
    ready: "i8[::1]"
    stepping: "i8[::1]"
    engines: "ENGINES"
    schedules: "VERBS"
    commits: "VERBS"
    cancels: "CANCELS"
    watches: "VERBS"
    befores: "VERBS"
    afters: "VERBS"
    landings: "CANCELS"
    stretches: "CANCELS"
    operations: "Operations"
    links: "Links"
    end_next: "LAND_FUNCTION"
    router: "Router"
    route: "ROUTE_FUNCTION"
    hear: "HEAR_FUNCTION"
    look: "LOOK_FUNCTION"
    listen: "LOOK_FUNCTION"
    port: "i8[::1]"
    first: "i8[::1]"
    takes: "u1[:,::1]"
    route_ns: "i8[::1]"
    predicted: "i8[::1]"
    best: "i8[::1]"
    refresh_ns: "i8"
    incident: "i8"
    paired: "b1"
    pairs: "Pairs"
    between: "BETWEEN"


NO_INCIDENT = -1


@dataclass(frozen=True)
class Routing:
    """A router with its verbs. route_ns: (sequences,) what each decision takes. refresh_ns, takes: see World."""

    router: Router
    verbs: RouterVerbs
    route_ns: I64
    refresh_ns: int = 0
    takes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))


def make_world(
    clients: Clients,
    engines: Sequence[Engine],
    routing: Routing,
    pairs: Pairs | None = None,
    protocol: str = "",
    ranks: int = 1,
) -> World:
    """At t = 0, nothing has happened.

    protocol   of the pairs, see pairs.settings. ranks: engines of an instance, which the router knows as one
    """
    router, looks = routing.router, routing.refresh_ns > 0 or routing.router.wants_load or routing.router.wants_truth
    sides = [(discipline_of(e), moving_of(e)) if e.side.role == BOTH else side_of(e, protocol) for e in engines]
    disciplines, moving = [discipline for discipline, _ in sides], [moves for _, moves in sides]
    return World(
        clients,
        0,
        0,
        np.full(len(engines), NEVER_NS, np.int64),
        np.zeros(len(engines), np.int64),
        _listed(engines, "engines"),
        _listed([d.schedule for d in disciplines], "verbs"),
        _listed([d.commit for d in disciplines], "verbs"),
        _listed([d.cancel for d in disciplines], "cancels"),
        _listed([watch_of(e) for e in engines], "verbs"),
        _listed([m.before for m in moving], "verbs"),
        _listed([m.after for m in moving], "verbs"),
        _listed([m.landed for m in moving], "cancels"),
        _listed([m.stretch for m in moving], "cancels"),
        engines[0].operations,
        engines[0].links,
        end_pointer(engines[0].links.queue.size > 0),
        router,
        routing.verbs.route,
        routing.verbs.hear,
        look_pointer(looks),
        listen_pointer(router.wants_events),
        np.arange(len(engines)) // ranks,
        np.arange(0, ranks * router.accepts.size + 1, ranks),
        routing.takes,
        routing.route_ns,
        np.full(routing.route_ns.size, UNKNOWN, np.int64),
        np.full(routing.route_ns.size, UNKNOWN, np.int64),
        routing.refresh_ns,
        NO_INCIDENT,
        pairs is not None,
        no_pairs(clients.seqs) if pairs is None else pairs,
        pair_pointer(protocol),
    )


def _listed(values: Sequence[Any], kind: str) -> Any:
    """A list that jitted code can hold. It is filled there: from Python, a list compiles itself at every start."""
    if PLAIN:
        return list(values)
    begun, added = _list_makers(kind)
    out = begun(values[0])
    for value in values[1:]:
        added(out, value)
    return out


@cache
def _list_makers(kind: str) -> tuple[Any, Any]:
    of: Any = {"engines": ENGINES, "verbs": VERBS, "cancels": CANCELS}[kind]
    return njit(of(of.dtype), cache=True)(_list_of), njit(types.void(of, of.dtype), cache=True)(_add)


def _list_of(value):
    values = List()
    values.append(value)
    return values


def _add(values, value):
    values.append(value)
