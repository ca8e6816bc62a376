"""The engine that owns the first tokens of a prompt on the hash ring, unless it is overloaded.

Overloaded is more than `bound` times the mean load with this request; then the least loaded engine takes it.
source: SGLang's router, prefix_hash, which keys the ring by the first 256 tokens; here by their whole blocks
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import key_at
from .choose import least, load_of, num_accepting, open_decision
from .router import NO_ENGINE
from .sessions import on_ring

_POINT_MASK = (1 << 63) - 1
"""A chain hash is odd; the other bits are a point."""


def route(router, seqs, seq, now):
    open_decision(router, seqs, seq, now)
    blocks = min(seqs.prompt[seq], router.rules.prefix_tokens) // router.rules.block_tokens
    if blocks == 0:  # nothing to know it by
        return least(router)
    content = root_hash(seqs.namespace[seq])
    for i in range(blocks):
        content = chain(content, key_at(router.block_keys, seq, np.int64(i)))
    engine = on_ring(router, (content >> 1) & _POINT_MASK)
    return least(router) if engine != NO_ENGINE and _is_overloaded(router, engine) else engine


@jit
def _is_overloaded(router, engine):
    total = 0.0
    for other in range(router.accepts.size):
        if router.accepts[other] == 1:
            total += load_of(router, other)
    return load_of(router, engine) > router.rules.bound * (total + 1.0) / num_accepting(router)
