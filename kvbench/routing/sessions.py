"""Every request of a session goes to one engine; a request without a session goes to the least loaded one."""

from __future__ import annotations

from ..core.jit import inline
from .choose import accepting, least, num_accepting, turn_to
from .ring import ring_place
from .router import NO_ENGINE, RING, STICKY


def route(router, seqs, seq, now):
    """By the ring, by the key modulo the engines there are, or where the session was before.

    source   ring: vLLM's production stack. modulo: SGLang's router before plain HTTP workers, where one worker more
             moves nearly all keys. sticky: its policy manual, with the least loaded worker for a new key
    """
    turn_to(router, seqs, seq)
    session = router.session[seqs.request[seq]]
    if session < 0:
        return least(router)
    if router.rules.assign == RING:
        return on_ring(router, router.session_point[session])
    if router.rules.assign == STICKY:
        return _home(router, router.base // router.rules.num_engines * router.session_point.size + session)
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
def _home(router, key):
    engine = router.home[key]
    if engine == NO_ENGINE or router.accepts[engine] == 0:
        engine = least(router)
        router.home[key] = engine
    return engine
