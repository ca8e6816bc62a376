"""Host and storage behind a cache, without a clock: what capacity alone brings, before any link has its say.

The device's cache goes through the requests by itself (`replay`): what comes back from below takes the blocks that
computing it would have taken. After each request the tiers see it, through their own verbs: what they have behind the
device's hits counts as found, what storage has moves up to the host, and what was computed, or evicted (`write_back`),
is written down at once. Every copy is there in no time and no link is full. With a host that evicts nothing the hits
are those of a run whose requests come far apart; what of them the device had differs a little, since what is loaded is
let go of once more.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, jit
from ..core.requests import I64, Requests
from ..engine.settings import EngineSettings
from ..memory.links import make_links
from ..prefix.chain_hash import root_hash
from ..prefix.changes import IS_STORED
from ..scheduler.state import Engine
from ..scheduler.state_columns import RADIX
from ..tiers import copies, host
from ..tiers.state import HOST_TOKENS, STORE_TOKENS, Tiers, make_storage, make_tiers, times_offered
from .warm_tiers import prepare_pools


class LoneTiers:
    """The tiers of an engine `without_clock`."""

    def __init__(self, engine: Engine, settings: EngineSettings) -> None:
        rules, bt, q = settings.tiers, settings.block_tokens, engine.seqs
        longest = int((q.prompt + q.output).max()) // bt + 2
        links = make_links()
        storage = make_storage(rules.store, links, longest, settings.seed)
        self.engine, self.has_store = engine, rules.store.blocks > 0
        self.tiers: Tiers = make_tiers(rules, storage, links, int(q.request.size), 1, longest, (), settings.seed)

    def prepare(self, requests: Requests, settings: EngineSettings) -> None:
        """They are in the states of the settings at t = 0."""
        prepare_pools([(self.engine, self.tiers)], requests, settings)

    def see(self, requests: I64) -> None:
        """These requests have been through the cache of the device, one after another, and nothing since."""
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            for request in requests:
                _see(self.engine, self.tiers, int(request), self.has_store)

    def found(self) -> tuple[I64, I64]:
        """(sequences,) tokens that the host had, and storage."""
        rows = self.tiers.of_seq
        return rows[:, HOST_TOKENS] - rows[:, STORE_TOKENS], rows[:, STORE_TOKENS]


@entry
def _see(e, t, request, has_store):
    q = e.seqs
    for seq in range(q.first[request], q.first[request + 1]):
        if q.asked[seq] == 1:
            _find(e, t, seq, has_store)
            if not t.writes_back:
                _write_through(e, t, seq, has_store)
    if t.writes_back:
        _write_back(e, t, has_store)


@jit
def _find(e, t, seq, has_store):
    """What is there behind the device's hits; what storage has goes up to the host."""
    q, bt, tier = e.seqs, e.rules.block_tokens, t.host
    limit, hits = (q.prompt[seq] - 1) // bt, q.cached[seq] // bt
    host.name_blocks(tier, e.block_keys, seq, q.namespace[seq], limit)
    end = host.find(tier, hits, limit)
    stop = end
    if has_store:
        stop = host.find_names(t.store, tier.names, end, limit)
        if (stop - end) * bt < t.prefetch_min_tokens:
            stop = end
        host.touch_names(t.store, tier.names, end, stop)
        stop = _write(e, t, tier, seq, end, stop)
    if (stop - hits) * bt >= max(t.min_load_tokens, 1):
        t.of_seq[seq, HOST_TOKENS] = (stop - hits) * bt
        t.of_seq[seq, STORE_TOKENS] = (stop - end) * bt
        host.touch(tier, 0, stop)


@jit
def _write_through(e, t, seq, has_store):
    """What was computed is offered; what the host takes goes on to storage."""
    q, bt, tier = e.seqs, e.rules.block_tokens, t.host
    tokens = q.prompt[seq] + max(q.output[seq], 1) - 1 if t.outputs else q.prompt[seq]
    stop = tokens // bt
    host.name_blocks(tier, e.block_keys, seq, q.namespace[seq], stop)
    host.touch(tier, 0, stop)
    if t.min_offers > 1:
        for i in range(stop):
            if host.slot_of(tier, tier.names[i]) == copies.NO_SLOT and times_offered(t, tier.names[i]) < t.min_offers:
                stop = i
                break
    _write(e, t, tier, seq, 0, stop)
    if has_store:
        _write(e, t, t.store, seq, 0, stop)


@jit
def _write(e, t, tier, seq, start, stop):
    """Blocks of a sequence, by the host's names, into a tier. Returns how far it took them, or had them."""
    names = t.host.names
    for i in range(start, stop):
        if host.slot_of(tier, names[i]) == copies.NO_SLOT:
            parent = names[i - 1] if i > 0 else root_hash(e.seqs.namespace[seq])
            if not host.put(tier, names[i], parent, i):
                stop = i
                break
    host.stamp_names(tier, names, 0, stop)
    return stop


@jit
def _write_back(e, t, has_store):
    """What the device has evicted."""
    order = e.hashes.order
    if e.rules.cache_kind == RADIX:
        order = e.tree.order
    for i in range(order.num_changes):
        content = order.changes[i] | IS_STORED
        if order.changes[i] & IS_STORED or host.slot_of(t.host, content) != copies.NO_SLOT:
            continue
        host.put(t.host, content, np.int64(0), np.int64(0))
        if has_store and host.slot_of(t.store, content) == copies.NO_SLOT:
            host.put(t.store, content, np.int64(0), np.int64(0))
    order.num_changes = 0
