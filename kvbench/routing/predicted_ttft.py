"""The engine on which the first token will come first: what is queued there, and what of this prompt is not cached.

The time is that of a prefill of so many tokens by the engine's own cost tables (Router.prefill_ns). Under the truth,
with load as it is now, this is the oracle. The queue of an instance is spread over its ranks.
"""

from __future__ import annotations

from ..core.jit import jit
from .belief import knows_where, predict
from .router import NO_ENGINE, PREFILL_STEP


def route(router, seqs, seq, now):
    if not knows_where(router, seqs, seq, now):
        return NO_ENGINE
    best, least_ns = NO_ENGINE, 0
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 1:
            uncached = max(seqs.prompt[seq] - router.cached[engine], 1)
            queued = router.load[router.base + engine, router.rules.queue_column] // router.rules.ranks
            ns = prefill_ns(router.prefill_ns, engine, queued + uncached)
            if best == NO_ENGINE or ns < least_ns:
                best, least_ns = engine, ns
    predict(router, seqs, seq, best)
    return best


@jit
def prefill_ns(table, engine, tokens):
    """Time to compute so many tokens; between two points of the table in proportion, beyond it as in its last part."""
    row = table[engine]
    part = min(tokens // PREFILL_STEP, row.size - 2)
    return row[part] + (row[part + 1] - row[part]) * (tokens - part * PREFILL_STEP) // PREFILL_STEP
