"""What lies on the host and in storage at t = 0; the states are those of the device's cache (`warm.py`).

Every request writes the blocks that it leaves behind, one request after another in order of arrival, through the
tier's own verbs: who came last is there, and who had to leave has left by the tier's policy. Nothing is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.jit import entry, jit
from ..core.requests import I64, Requests
from ..engine.settings import EngineSettings
from ..prefix.chain_hash import root_hash
from ..scheduler.state import Engine
from ..tiers import copies, host
from ..tiers.copies import HostTier
from ..tiers.state import Tiers
from .order import arrival_order
from .visited import visited_tokens


def prepare_tiers(engines: list[Engine], requests: Requests, settings: EngineSettings) -> None:
    """Bring the hosts of engines, and the storage behind them all, into the state of the settings."""
    if settings.tiers.on:
        prepare_pools([(e, e.tiers) for e in engines], requests, settings)


def prepare_pools(pairs: Sequence[tuple[Engine, Tiers]], requests: Requests, settings: EngineSettings) -> None:
    """The same for engines and tiers that are not theirs."""
    rules = settings.tiers
    for e, t in pairs:
        _prepare(e, t, t.host, visited_tokens(requests, rules.state), requests)
    if rules.store.blocks:
        e, t = pairs[0]
        _prepare(e, t, t.store, visited_tokens(requests, rules.store.state), requests)


def _prepare(e: Engine, tiers: Tiers, tier: HostTier, tokens: I64, requests: Requests) -> None:
    if tokens.any():
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            _visit(e, tiers, tier, arrival_order(requests), tokens)


@entry
def _visit(e, t, tier, order, tokens):
    q, bt = e.seqs, e.rules.block_tokens
    first = np.zeros(tokens.size + 1, np.int64)  # sequences of a request lie beside each other
    for seq in range(q.request.size):
        first[q.request[seq] + 1] = seq + 1
    for request in order:
        for seq in range(first[request], first[request + 1]):
            if q.output[seq] == 0:  # refused, or longer than any table
                continue
            known = tokens[request] if t.outputs else min(tokens[request], q.prompt[seq])
            _write(e, t, tier, seq, min(known // bt, t.host.names.size))  # no prompt that runs is longer
    for i in range(tier.counters.size):
        tier.counters[i] = 0


@jit
def _write(e, t, tier, seq, blocks):
    names, namespace = t.host.names, e.seqs.namespace[seq]
    host.name_blocks(t.host, e.block_keys, seq, namespace, blocks)
    host.touch_names(tier, names, 0, blocks)
    for i in range(blocks):
        if host.slot_of(tier, names[i]) == copies.NO_SLOT:
            parent = names[i - 1] if i > 0 else root_hash(namespace)
            if not host.put(tier, names[i], parent, i):
                break
    host.stamp_names(tier, names, 0, blocks)
