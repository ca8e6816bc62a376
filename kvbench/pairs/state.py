"""What prefill and decode engines have between them: who has which sequence, and what moves.

A sequence on two engines has two legs, rows of the same number in two tables: the clients' one, which the decode
engines work on, and `Pairs.legs`, which the prefill engines work on. Nobody else has to know of the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..client.clients import Clients
from ..core.jit import PLAIN, inline, struct
from ..scheduler.state import Engine, Sequences
from .leases import Leases, make_leases

ENGINES: Any = None if PLAIN else types.ListType(Engine.numba_type)

# What happens (first argument of a pair's verb).
SENT, QUIT, TURN, LANDED, DUE = (np.int64(i) for i in range(5))
# SENT     a sequence has reached its prefill engine. QUIT: its client gives up
# TURN     an engine has landed or planned a step: its news. LANDED: an operation is over. DUE: a deadline

# Deadlines; the subject of their event is DEADLINES x (sequence, engine or fault) + one of these.
LEASE, BEAT, BOOTSTRAP, ARRIVAL, FAULT = (np.int64(i) for i in range(5))
DEADLINES = np.int64(8)

# What a fault does, column 0 of Pairs.faults; column 1: to which link.
LINK_DOWN, LINK_UP, DEAF, HEARING, MUTE, HEARD, LATE, IN_TIME = (np.int64(i) for i in range(8))
# LINK_DOWN  what moves over it fails when it would have ended. DEAF: heartbeats are lost. MUTE: notices of reads are
# LATE       the router tells no decode engine of what is computed

THE_LAST, MORE_FOLLOWS = np.bool_(True), np.bool_(False)
"""Whether a transfer is the last of its sequence."""

NOT_YET = np.int64(-1)
NO_ATTEMPT = np.int64(-1)
NO_DECODER = np.int64(-1)

# Pairs.lost: what becomes of a sequence whose engine has died.
NOT_LOST, SENT_AGAIN, HOMELESS = (np.int64(i) for i in range(3))
# SENT_AGAIN  once both sides are done with it and it has failed. HOMELESS: it waits for another decode engine

# OP_TAG of a transfer.
ONE_OF_SEVERAL, LAST_OF_ALL, OUT_OF_DATE = (np.int64(i) for i in range(3))
# LAST_OF_ALL: with its end the sequence has all of its KV. OUT_OF_DATE: of an attempt that is over


@struct
class Pairs:
    """n sequences. Times in ns; -1 = has not happened.

    legs            of the prefill engines
    leases          pull
    num_prefill     engines; the others decode
    load            (engines,) sequences that a decode engine has, or will have
    accepts         (engines,) 1 = a decode engine takes sequences; again: what a dead engine had runs elsewhere
    beating         (engines,) 1 = its next heartbeat has a time
    link            (prefill engines, decode engines)
    faults          (f, 2) what goes wrong, by number, see LINK_DOWN; deaf, mute, late: 1 = now
    pulls           what a dead decode engine had may be read by another one
    tells_unread    pull: the prefill side hears that a sequence was given up before it was read
    hands_out       the prefill side hands out the first token
    block_tokens, block_bytes, block_fragments   of a block of both sides' KV together
    layers          push by layers: layers of the model; 1 = by chunks; 0 = whole
    bootstrap_ns, arrival_ns   push: time-outs
    handed          (n,) 1 = it is a decode engine's. quit: (n,) 1 = its client has given up
    lost            (n,) see NOT_LOST
    broken          (n,) 1 = its KV will never be complete on the decode side: nothing more is sent
    attempt         (n,) transfers that it has begun, each of whatever number of operations
    moving          (n,) operations under way for it; sent: (n,) blocks handed to the link; all_sent: (n,) 1 = no more
    computed_ns     (n,) its prompt is computed. memory_ns: (n,) the decode side has memory
    begun_ns, arrived_ns   (n,) first operation, last end
    freed_ns        (n,) the prefill side has let go
    bytes           (n,) that were given to links
    first_unread, last_handed   pull: no sequence before or behind these waits to be read
    held            sequences that the prefill side holds
    failed, retried, expired, beats   transfers, leases, heartbeats so far
    """

    legs: "Sequences"
    leases: "Leases"
    num_prefill: "i8"
    load: "i8[::1]"
    accepts: "i8[::1]"
    again: "b1"
    beating: "i8[::1]"
    link: "i8[:,::1]"
    faults: "i8[:,::1]"
    deaf: "i8"
    mute: "i8"
    late: "i8"
    pulls: "b1"
    tells_unread: "b1"
    hands_out: "b1"
    block_tokens: "i8"
    block_bytes: "i8"
    block_fragments: "i8"
    layers: "i8"
    bootstrap_ns: "i8"
    arrival_ns: "i8"
    handed: "i8[::1]"
    quit: "i8[::1]"
    lost: "i8[::1]"
    broken: "i8[::1]"
    attempt: "i8[::1]"
    moving: "i8[::1]"
    sent: "i8[::1]"
    all_sent: "i8[::1]"
    computed_ns: "i8[::1]"
    memory_ns: "i8[::1]"
    begun_ns: "i8[::1]"
    arrived_ns: "i8[::1]"
    freed_ns: "i8[::1]"
    bytes: "i8[::1]"
    first_unread: "i8"
    last_handed: "i8"
    held: "i8"
    failed: "i8"
    retried: "i8"
    expired: "i8"
    beats: "i8"


def make_pairs(
    legs: Sequences,
    link: Any,
    *,
    faults: Any = (),
    again: bool = False,
    lease_ns: int = 0,
    heartbeat_ns: int = 0,
    pulls: bool = False,
    tells_unread: bool = True,
    hands_out: bool = False,
    block_tokens: int = 1,
    block_bytes: int = 0,
    block_fragments: int = 0,
    layers: int = 0,
    bootstrap_ns: int = 0,
    arrival_ns: int = 0,
) -> Pairs:
    """link: (prefill engines, decode engines) numbers of links."""
    n = int(legs.state.size)
    num_prefill, num_decode = link.shape
    zeros = [np.zeros(n, np.int64) for _ in range(8)]
    times = [np.full(n, NOT_YET, np.int64) for _ in range(5)]
    return Pairs(
        legs,
        make_leases(n, lease_ns, heartbeat_ns),
        num_prefill,
        np.zeros(num_prefill + num_decode, np.int64),
        np.ones(num_prefill + num_decode, np.int64),
        again,
        np.zeros(num_prefill + num_decode, np.int64),
        link,
        np.array(faults, np.int64).reshape(-1, 2),
        0,
        0,
        0,
        pulls,
        tells_unread,
        hands_out,
        block_tokens,
        block_bytes,
        block_fragments,
        layers,
        bootstrap_ns,
        arrival_ns,
        *zeros,
        *times,
        np.zeros(n, np.int64),
        n,
        -1,
        0,
        0,
        0,
        0,
        0,
    )


def no_pairs(seqs: Sequences) -> Pairs:
    """Of a run whose engines do both."""
    empty = np.zeros(0, np.int64)
    values: dict[str, Any] = dict.fromkeys(Pairs.fields, empty) | dict.fromkeys(_NUMBERS, 0)
    values |= {"legs": seqs, "leases": Leases(empty, 0, 0, 0, 0), "link": np.zeros((0, 0), np.int64)}
    values["faults"] = values["link"]
    return Pairs(*(values[name] for name in Pairs.fields))


_NUMBERS = (
    "num_prefill again deaf mute late pulls tells_unread hands_out block_tokens block_bytes block_fragments layers "
    "bootstrap_ns arrival_ns first_unread last_handed held failed retried expired beats"
).split()


BETWEEN: Any = None
"""(pairs, clients, engines, ready, stepping, what, subject, engine, now), see SENT."""
if not PLAIN:
    _times, _i8 = types.int64[::1], types.int64
    BETWEEN = types.FunctionType(
        types.void(Pairs.numba_type, Clients.numba_type, ENGINES, _times, _times, _i8, _i8, _i8, _i8)
    )


@inline
def wake(engines, ready, stepping, k, now):
    """Something has reached an engine: one that waits has its turn."""
    if stepping[k] == 0:
        ready[k] = min(ready[k], max(now, engines[k].now))


@inline
def go_wrong(pairs, links, number):
    """A fault happens, or is over."""
    what, link = pairs.faults[number, 0], pairs.faults[number, 1]
    if what == LINK_DOWN or what == LINK_UP:
        links.up[link] = np.int64(what == LINK_UP)
    elif what == DEAF or what == HEARING:
        pairs.deaf = np.int64(what == DEAF)
    elif what == MUTE or what == HEARD:
        pairs.mute = np.int64(what == MUTE)
    else:
        pairs.late = np.int64(what == LATE)


@inline
def least_loaded(pairs):
    """The decode engine with the fewest sequences, ties go to the smallest number; NO_DECODER: none takes any."""
    best = NO_DECODER
    for k in range(pairs.num_prefill, pairs.load.size):
        if pairs.accepts[k] == 1 and (best == NO_DECODER or pairs.load[k] < pairs.load[best]):
            best = k
    return best
