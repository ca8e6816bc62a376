"""Every request of a session goes to one engine; a request without a session goes to the least loaded one."""

from __future__ import annotations

from ..core.jit import inline, jit
from .by_load import count
from .choose import accepting, least, num_accepting, open_decision
from .ring import ring_place
from .router import ENDED, NO_ENGINE, RING, SENT, STICKY


def route(router, seqs, seq, now):
    """By the ring, by the key modulo the engines there are, or where the session was before.

    source   ring: vLLM's production stack. modulo: SGLang's router before plain HTTP workers, where one worker more
             moves nearly all keys. sticky: its policy manual, with the least loaded worker for a new key (min_load);
             sticky-fewest: with the one that has the fewest keys in flight (min_group)
    """
    open_decision(router, seqs, seq, now)
    session = router.session[seqs.request[seq]]
    if session < 0:
        return least(router)
    if router.rules.assign == RING:
        return on_ring(router, router.session_point[session])
    if router.rules.assign >= STICKY:
        return _home(router, _key(router, session))
    n = num_accepting(router)
    return accepting(router, router.session_point[session] % n) if n > 0 else NO_ENGINE


@inline
def on_ring(router, point):
    """The first engine from a point on that takes requests."""
    owners = router.ring_engine
    at = ring_place(router.ring_point, point)
    for i in range(owners.size):
        engine = owners[(at + i) % owners.size]
        if router.accepts[engine] == 1:
            return engine
    return NO_ENGINE


@inline
def _key(router, session):
    return router.base // router.rules.num_engines * router.session_point.size + session


@inline
def _home(router, key):
    engine = router.home[key]
    if engine == NO_ENGINE or router.accepts[engine] == 0:
        engine = least(router) if router.rules.assign == STICKY else fewest(router)
        router.home[key] = engine
    return engine


@jit
def fewest(router):
    """The engine with the fewest sessions in flight, of equal ones the first; NO_ENGINE."""
    best, seated, base = NO_ENGINE, router.seated, router.base
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 1 and (best == NO_ENGINE or seated[base + engine] < seated[base + best]):
            best = engine
    return best


def hear(router, seqs, event, subject, engine, now):
    """A session is in flight where its last request went, until all of them have ended."""
    count(router, seqs, event, subject, engine, now)
    if (event != SENT and event != ENDED) or router.session[seqs.request[subject]] < 0:
        return
    key, base = _key(router, router.session[seqs.request[subject]]), router.base
    if event == ENDED:
        router.flying[key] -= 1
        router.seated[base + router.seat[key]] -= router.flying[key] == 0
        return
    if router.flying[key] > 0:
        router.seated[base + router.seat[key]] -= 1
    router.flying[key] += 1
    router.seat[key] = engine
    router.seated[base + engine] += 1
