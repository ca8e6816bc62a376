"""The router: what it knows of n engines, and the verbs that decide and that hear what became of it.

    route(router, seqs, seq, now) -> engine, or NO_ENGINE     changes only what a decision costs the router
    hear(router, seqs, event, subject, engine, now)           something that it learns; subject: a sequence, or a key

A router knows no engine: it sees arrays by number that somebody else fills in, and believes the rest. Both verbs are
function pointers, so that a run compiles its own policy and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..core.jit import PLAIN, struct
from ..core.requests import I64, NONE, Requests
from ..core.units import NS_PER_US
from ..prefix.keys import BlockKeys
from ..scheduler.state import Sequences
from .ring import engine_name, make_ring, point_of
from .settings import RouterSettings

NO_ENGINE = -1
"""No engine takes requests."""

UNKNOWN = -1
"""The router has no idea of what is cached."""

# Columns of Router.load. The first three the router counts itself; the others are reported to it.
IN_FLIGHT, PENDING_TOKENS, HELD_TOKENS, REQUESTS, WAITING, QUEUED_TOKENS, KV_USED, KV_ALL = range(8)
LOAD_COLUMNS = 8
# IN_FLIGHT       requests that it has sent there and that have not ended
# PENDING_TOKENS  of those without a first token: prompt tokens beyond what it believes cached
# HELD_TOKENS     of all of them: prompt tokens
# REQUESTS        waiting or running there, whoever sent them. WAITING: without a place in the batch
# QUEUED_TOKENS   prompt tokens of these that are not computed yet, as the engine knows it
# KV_USED, KV_ALL blocks that sequences hold, and all of them

# What `hear` is told. Typed, since every literal would compile a callee of its own.
SENT, FIRST_TOKEN, ENDED, STORED, REMOVED, LOST = np.arange(6)
# SENT         the decision for sequence `subject` was carried out
# FIRST_TOKEN  the client has the first token of sequence `subject`
# ENDED        sequence `subject` has left the engine, whatever became of it; once for each SENT
# STORED, REMOVED   the engine has, or has no more, the block whose chain hash is `subject`
# LOST         the engine's cache is empty


@struct
class RouterRules:
    """Settings as numbers; see routing.settings for their meaning."""

    block_tokens: "i8"
    load_column: "i8"
    assign: "i8"


@struct
class Router:
    """n engines; a place in an array is an engine's number.

    accepts      (n,) 1 = takes requests; one may be drained, dead, or not there yet
    load         (n, 8) see LOAD_COLUMNS
    as_of        (n,) ns: when the reported columns were true
    truth        (n,) tokens of the sequence in question that are cached on each engine now, where wants_truth is set
    wants_load   the reported columns are wanted as they are now, before every decision
    predicted    tokens that the router believes cached where it sent the last one; UNKNOWN
    booked       (sequences,) tokens that a sequence has in PENDING_TOKENS
    turn         decisions so far
    random       state of its generator
    session      (requests,) number of the session's key, NONE = no session. session_point: (keys,) on the ring
    home         (keys,) engine of a session under assign = sticky; NO_ENGINE = none yet
    ring_point, ring_engine   (points,) the ring, ascending
    """

    rules: "RouterRules"
    block_keys: "BlockKeys"
    accepts: "i8[::1]"
    load: "i8[:,::1]"
    as_of: "i8[::1]"
    truth: "i8[::1]"
    wants_truth: "b1"
    wants_load: "b1"
    predicted: "i8"
    booked: "i8[::1]"
    turn: "i8"
    random: "u8"
    session: "i8[::1]"
    session_point: "i8[::1]"
    home: "i8[::1]"
    ring_point: "i8[::1]"
    ring_engine: "i8[::1]"


ROUTE_FUNCTION: Any = None
HEAR_FUNCTION: Any = None
if not PLAIN:
    _i8 = types.int64
    ROUTE_FUNCTION = types.FunctionType(_i8(Router.numba_type, Sequences.numba_type, _i8, _i8))
    HEAR_FUNCTION = types.FunctionType(types.void(Router.numba_type, Sequences.numba_type, _i8, _i8, _i8, _i8))


_LOADS = {
    ("own", "requests"): IN_FLIGHT,
    ("own", "queued-tokens"): PENDING_TOKENS,
    ("own", "kv"): HELD_TOKENS,
    ("reported", "requests"): REQUESTS,
    ("reported", "queued-tokens"): QUEUED_TOKENS,
    ("reported", "kv"): KV_USED,
}
RING, MODULO, STICKY = range(3)
_ASSIGN = {"ring": RING, "modulo": MODULO, "sticky": STICKY}


def make_router(
    settings: RouterSettings, requests: Requests, num_engines: int, keys: BlockKeys, block_tokens: int
) -> Router:
    """At t = 0: every engine takes requests, nothing is in flight.

    num_engines   those that are added later too; whoever adds them sets `accepts`
    keys          of the requests' blocks of block_tokens tokens
    """
    num = requests.num_sequences
    session, names = _sessions(requests)
    points, owners = make_ring([engine_name(e) for e in range(num_engines)], settings.ring_points)
    return Router(
        RouterRules(block_tokens, _LOADS[settings.load, settings.load_by], _ASSIGN[settings.assign]),
        keys,
        np.ones(num_engines, np.int64),
        np.zeros((num_engines, LOAD_COLUMNS), np.int64),
        np.zeros(num_engines, np.int64),
        np.zeros(num_engines, np.int64),
        False,
        settings.refresh_ms == 0 and settings.load == "reported",
        UNKNOWN,
        np.zeros(num, np.int64),
        0,
        np.uint64(max(settings.seed, 0)),
        session,
        np.array([point_of(name) for name in names], np.int64),
        np.full(len(names), NO_ENGINE, np.int64),
        points,
        owners,
    )


def decision_ns(settings: RouterSettings, prompt_tokens: I64) -> I64:
    """What the decision on a prompt takes."""
    return np.rint((settings.decide_us + settings.hash_us_per_token * prompt_tokens) * NS_PER_US).astype(np.int64)


def _sessions(requests: Requests) -> tuple[I64, list[str]]:
    """(requests,) number of the session among those that there are, or NONE; and the keys of them all."""
    ids, number = np.unique(requests.session_id, return_inverse=True)
    has_none = int(ids.size > 0 and ids[0] == NONE)
    return (number - has_none).astype(np.int64), [str(i) for i in ids[has_none:]]
