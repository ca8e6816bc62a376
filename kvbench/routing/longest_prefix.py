"""The engine that was sent most of a prompt, whatever its load; of several that have as much any, by chance.

Where less than min_match_tokens is known, the least loaded engine takes it.
source: vLLM's production stack, prefixaware, which counts characters in chunks of 128 and forgets nothing
"""

from __future__ import annotations

from .belief import knows_where, predict
from .choose import draw_least, least
from .router import NO_ENGINE


def route(router, seqs, seq, now):
    if not knows_where(router, seqs, seq, now):
        return NO_ENGINE
    most = 0
    for engine in range(router.cost.size):
        router.cost[engine] = -router.cached[engine]
        if router.accepts[engine] == 1:
            most = max(most, router.cached[engine])
    engine = least(router) if most < router.rules.min_match_tokens else draw_least(router, router.cost)
    predict(router, seqs, seq, engine)
    return engine
