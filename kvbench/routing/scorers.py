"""Weighted scores of an engine between 0 and 1; the highest sum wins, equal ones by chance.

    queue     (max - waiting) / (max - min) of the engines; 1 if all are equal
    kv        1 - share of KV in use
    prefix    share of the prompt's whole blocks that it is believed to have
    requests  (max - in flight) / (max - min), by the router's own count; 1 if all are equal

source: llm-d's router (endpoint picker of the Gateway API inference extension), its default profile
"""

from __future__ import annotations

from ..core.jit import jit
from .belief import knows_where, predict
from .choose import draw_least
from .router import IN_FLIGHT, KV_ALL, KV_USED, NO_ENGINE, WAITING


def route(router, seqs, seq, now):
    if not knows_where(router, seqs, seq, now):
        return NO_ENGINE
    rules, load, cost, base = router.rules, router.load, router.cost, router.base
    bt = rules.block_tokens
    whole = max(seqs.prompt[seq] // bt * bt, 1)
    for engine in range(cost.size):
        used = load[base + engine, KV_USED] / max(load[base + engine, KV_ALL], 1)
        prefix = min(router.cached[engine] / whole, 1.0)
        cost[engine] = -(rules.weight_kv * (1.0 - used) + rules.weight_prefix * prefix)
    _add_spread(router, WAITING, rules.weight_queue)
    _add_spread(router, IN_FLIGHT, rules.weight_requests)
    engine = draw_least(router, cost)
    predict(router, seqs, seq, engine)
    return engine


@jit
def _add_spread(router, column, weight):
    """A score by where a load lies between the least and the most."""
    load, accepts, base = router.load, router.accepts, router.base
    low, high, seen = 0, 0, False
    for engine in range(accepts.size):
        if accepts[engine] == 1:
            x = load[base + engine, column]
            low, high = (min(low, x), max(high, x)) if seen else (x, x)
            seen = True
    for engine in range(accepts.size):
        spread = high - low
        score = (high - load[base + engine, column]) / spread if spread > 0 else 1.0
        router.cost[engine] -= weight * score
