"""From a client to an engine: the router decides, the engine's server turns text into tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from ..client.clients import READY, ROUTED, close, send
from ..core.jit import PLAIN, inline, jit
from ..kernels.event_heap import push_event
from ..prefix import block_hash, radix
from ..prefix.changes import IS_STORED
from ..prefix.keys import fill_keys
from ..routing.late import tell_block
from ..routing.router import ENDED, FIRST_TOKEN, NO_ENGINE, SENT, Router, forget_report, report
from ..scheduler import kv
from ..scheduler.mail import ACCEPT, is_unread, take
from ..scheduler.stages import tokenized_ns
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    COMPUTED,
    FAILED,
    HASHED,
    IN_PREFILL,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    RADIX,
    SEQ,
    TOKENIZING,
)


@inline
def send_out(w, seq, now):
    """A client sends: to the engine that the router says."""
    send(w.clients, seq, now)
    decide(w, seq, now)


@jit
def decide(w, seq, now):
    """The router decides by what it knows now; the engine is reached when it has done so."""
    c, router = w.clients, w.router
    if router.wants_load or router.wants_truth:
        look_at_all(w, seq, now)
    if router.wants_events and router.delay_ns == 0:  # else they come when a step lands
        for k in range(w.ready.size):
            w.listen(w.engines[k], router, now)
    port = w.route(router, c.seqs, seq, now)
    # nobody, or an engine that refuses it
    if port < 0 or (w.takes.size > 0 and w.takes[port, c.seqs.request[seq]] == 0):
        c.seqs.engine[seq] = NO_ENGINE
        close(c, seq, FAILED, now)
        return
    k = w.first[port]
    c.seqs.engine[seq] = k
    w.engines[k].coming += 1
    w.engines[k].coming_tokens += c.seqs.prompt[seq]
    w.hear(router, c.seqs, SENT, seq, port, now)
    if w.predicted.size > 0:
        w.predicted[seq], w.best[seq] = router.predicted, router.best
    if w.route_ns.size > 0 and w.route_ns[seq] > 0:
        push_event(c.events, now + w.route_ns[seq], ROUTED, seq)
    else:
        tokenise(w, seq, now)


@inline
def tokenise(w, seq, now):
    """A prompt has reached the server of its engine."""
    q = w.clients.seqs
    if q.state[seq] == TOKENIZING:  # else cancelled meanwhile
        first = q.first[q.request[seq]]
        is_twin = q.engine[first] >= 0 and w.port[q.engine[first]] == w.port[q.engine[seq]]
        twin_ns = q.queued[first] if is_twin else np.int64(-1)
        q.queued[seq] = tokenized_ns(w.engines[q.engine[seq]].stages, now, q.prompt[seq], twin_ns)
        push_event(w.clients.events, q.queued[seq], READY, seq)


@inline
def arrived(w, seq):
    """A sequence that was sent is no longer on its way."""
    e = w.engines[w.clients.seqs.engine[seq]]
    e.coming -= 1
    e.coming_tokens -= w.clients.seqs.prompt[seq]


@inline
def left(w, seq, now):
    """A sequence that was sent is over: the router hears of it."""
    k = w.clients.seqs.engine[seq]
    if k != NO_ENGINE:
        w.hear(w.router, w.clients.seqs, ENDED, seq, w.port[k], now)


@inline
def hear_first_tokens(w, e):
    """The router hears of the first tokens that an engine has handed out."""
    while is_unread(e.outbox):
        seq = take(e.outbox)[1]
        w.hear(w.router, w.clients.seqs, FIRST_TOKEN, seq, w.port[e.number], e.now)


@jit
def look_at_all(w, seq, now):
    """What every engine that the router knows would say of itself now, and of a sequence that asks for its prefix (or
    NO_SEQ). Of prefill and decode engines it knows the first."""
    for k in range(w.first[w.router.accepts.size]):
        w.look(w.engines[k], w.router, seq)
        w.router.as_of[w.port[k]] = now


def look(e, router, seq):
    """The load of an engine as it is now, and what it has cached of a sequence; the first rank of an instance first."""
    port = router.port[e.number]
    if e.number == 0 or router.port[e.number - 1] != port:
        forget_report(router, port)
    waiting = e.num_waiting + _unread(e) + e.coming
    report(router, e.number, waiting + e.slots.holders, waiting, _uncomputed(e), kv.used_blocks(e), e.pool.num_blocks)
    if seq != NO_SEQ and router.wants_truth:
        router.truth[port] = max(router.truth[port], _cached_tokens(e, seq))


def listen(e, router, now):
    """The router is told what the cache of an engine has and has no more since it was asked last."""
    order = e.tree.order
    hashed = e.rules.cache_kind == HASHED
    if hashed:
        order = e.hashes.order
    for i in range(order.num_changes):
        change = order.changes[i]
        if hashed:
            change |= IS_STORED
            if not block_hash.is_known(e.hashes, e.pool, change):
                change ^= IS_STORED
        tell_block(router, e.number, change, now)
    order.num_changes = 0


def ignore(e, router, subject):
    """Of a router that asks no engine."""


@inline
def _unread(e):
    num, mail = 0, e.inbox
    for row in range(mail.next, mail.num):
        num += mail.rows[row, 0] == ACCEPT
    return num


@inline
def _uncomputed(e):
    """Prompt tokens of those who wait, or are in the middle of it."""
    q, rec, tokens = e.seqs, e.slots.rec, e.coming_tokens
    for row in range(e.inbox.next, e.inbox.num):
        if e.inbox.rows[row, 0] == ACCEPT:
            tokens += q.prompt[e.inbox.rows[row, 1]]
    seq = e.queue_head
    while seq != NO_SEQ:
        tokens += q.prompt[seq] + q.generated[seq]
        seq = q.queue_next[seq]
    slot = e.slots.head
    while slot != NO_SLOT:
        if rec[slot, PHASE] == IN_PREFILL:
            tokens += max(q.prompt[rec[slot, SEQ]] - rec[slot, COMPUTED], 0)
        slot = rec[slot, NEXT]
    return tokens


@inline
def _cached_tokens(e, seq):
    """What `kv.lookup` would find of a prompt, but for its last token."""
    q, limit = e.seqs, (e.seqs.prompt[seq] - 1) // e.rules.block_tokens
    found = 0
    if e.rules.cache_kind == RADIX:
        fill_keys(e.block_keys, seq, 0, limit, e.keys)
        found = radix.peek(e.tree, q.namespace[seq], e.keys, limit)
    elif e.rules.cache_kind == HASHED:
        found = block_hash.peek(e.hashes, e.pool, e.block_keys, seq, q.namespace[seq], limit, e.keys)
    return found * e.rules.block_tokens


LOOK_FUNCTION: Any = None
if not PLAIN:
    LOOK_FUNCTION = types.FunctionType(types.void(Engine.numba_type, Router.numba_type, types.int64))


def look_pointer(looks: bool) -> Callable[[Engine, Router, int], None]:
    """`look`, compiled only where a router wants to know."""
    return _pointer(look if looks else ignore)


def listen_pointer(listens: bool) -> Callable[[Engine, Router, int], None]:
    """`listen`, compiled only where a router wants to know."""
    return _pointer(listen if listens else ignore)


@cache
def _pointer(verb: Callable[..., None]) -> Any:
    return verb if PLAIN else njit(LOOK_FUNCTION.signature, cache=True, nogil=True, error_model="numpy")(verb)
