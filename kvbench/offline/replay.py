"""A trace through a cache without a clock: what the cache alone gives, at full speed.

Each request in order of arrival: match its whole blocks, make room for the rest, insert, let go. Three rates:

    hit_rate_blocks   whole blocks found / whole blocks asked for
    hit_rate_tokens   tokens of these / all prompt tokens
    hit_rate_ids      only where block_tokens is the trace's own: its ids as opaque units, the last, partial one
                      included, in a plain LRU whose children may outlive their parents (the definition under
                      which published figures of such traces were made)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry, inline
from ..core.requests import Requests
from ..costs.tables import CostTables
from ..engine.build import block_costs, eviction, free_order
from ..engine.settings import EngineSettings
from ..memory.pool import list_give, make_pool, ring_take
from ..prefix import block_hash, radix
from ..prefix.keys import BlockKeys, block_keys, fill_keys
from ..prefix.ranked import REGISTERED, RELEASED, SHARED_AGAIN


def replay_cache(
    requests: Requests, settings: EngineSettings, costs: CostTables | None = None, keys: BlockKeys | None = None
) -> dict[str, Any]:
    """Replay every request once. cache.num_blocks 0 = a cache without bound.

    costs   for policies that weigh them
    keys    of these requests, if known
    """
    check_replay(settings)
    requests.check()
    bt = settings.block_tokens
    whole = requests.prompt_tokens // bt
    capacity = settings.cache.num_blocks or max(int(whole.sum()), 1)
    first = np.concatenate(([0], np.cumsum(requests.samples)[:-1]))
    policy = eviction(settings)
    block_ns = block_costs(policy, costs, bt, int(whole.max(initial=0)))
    begin = time.perf_counter()
    keys = block_keys(requests, bt) if keys is None else keys
    with np.errstate(over="ignore"):
        if settings.cache.kind == "radix":
            tree = radix.make_tree(capacity, policy, 0, block_ns, settings.seed)
            pool = make_pool(capacity, free_order(settings))
            hits = _replay_radix(tree, pool, keys, first, requests.namespace, requests.priority, whole)
        else:
            pool = make_pool(capacity, free_order(settings))
            hashes = block_hash.make_map(capacity, 0, policy, block_ns, settings.seed)
            hits = _replay_hash(hashes, pool, keys, first, requests.namespace, requests.priority, whole)
    seconds = time.perf_counter() - begin
    result = replay_rates(requests, settings, int(hits.sum()), int(pool.evicted)) | {"seconds": seconds}
    if requests.block_hint == bt:
        result["hit_rate_ids"] = _hit_rate_ids(requests, settings.cache.num_blocks)
    return result


def check_replay(settings: EngineSettings) -> None:
    """UsageError: there is no cache to replay through, or a rule that a replay cannot follow."""
    if settings.cache.kind == "none":
        raise UsageError("cache.kind none has nothing to replay; set cache.kind to radix or hash")
    if settings.cache.copy_on_write or settings.cache.allocation != "paged":
        rule = "cache.allocation" if settings.cache.allocation != "paged" else "cache.copy_on_write"
        raise UsageError(f"{rule} is about requests that run side by side; leave --cache-only out")


def replay_rates(requests: Requests, settings: EngineSettings, hit_blocks: int, evicted_blocks: int) -> dict[str, Any]:
    """What a replay gives, from its two counts."""
    bt = settings.block_tokens
    blocks = int((requests.prompt_tokens // bt).sum())
    return {
        "requests": len(requests),
        "blocks": blocks,
        "capacity_blocks": settings.cache.num_blocks,
        "hit_blocks": hit_blocks,
        "evicted_blocks": evicted_blocks,
        "hit_rate_blocks": hit_blocks / max(blocks, 1),
        "hit_rate_tokens": hit_blocks * bt / int(requests.prompt_tokens.sum()),
    }


@inline
def visit_radix(tree, pool, keys, seq, namespace, priority, n, scratch, row):
    """The first n blocks of a sequence go through the cache: match, make room, insert, let go. Returns hits."""
    fill_keys(keys, seq, 0, n, scratch)
    node, found = radix.match(tree, namespace, scratch, n, row)
    radix.hit(tree, node)
    radix.lock(tree, node)
    if pool.num_free < n - found:
        radix.evict(tree, pool, n - found - pool.num_free)
    stop = min(n, found + pool.num_free)  # a prompt larger than the cache: as much of it as fits
    ring_take(pool, row, found, stop)
    radix.insert(tree, pool, node, scratch, row, found, stop, -priority, np.int64(1))  # see kv._insert
    radix.unlock(tree, node)
    return found


@inline
def visit_hashed(hashes, pool, keys, seq, namespace, priority, n, scratch, row):
    """The same through a block-hash cache."""
    found, content, _ = block_hash.match(hashes, pool, keys, seq, namespace, n, scratch, row)
    block_hash.share(pool, row, found)
    block_hash.note(hashes, pool, SHARED_AGAIN, row, 0, found, 0)
    stop = min(n, found + pool.num_free)
    block_hash.take(hashes, pool, row, found, stop)
    block_hash.publish(hashes, pool, keys, seq, content, row, found, stop, scratch)
    block_hash.note(hashes, pool, REGISTERED, row, found, stop, -priority)
    list_give(pool, row, stop)
    block_hash.note(hashes, pool, RELEASED, row, 0, stop, 0)
    return found


@entry
def _replay_radix(tree, pool, keys, first, namespace, priority, whole):
    hits = np.zeros(whole.size, np.int64)
    scratch = np.empty(max(whole.max(), 1), np.int64)
    row = np.empty(max(whole.max(), 1), np.int32)
    for i in range(whole.size):
        hits[i] = visit_radix(tree, pool, keys, first[i], namespace[i], priority[i], whole[i], scratch, row)
    return hits


@entry
def _replay_hash(hashes, pool, keys, first, namespace, priority, whole):
    hits = np.zeros(whole.size, np.int64)
    scratch = np.empty(max(whole.max(), 1), np.int64)
    row = np.empty(max(whole.max(), 1), np.int32)
    for i in range(whole.size):
        hits[i] = visit_hashed(hashes, pool, keys, first[i], namespace[i], priority[i], whole[i], scratch, row)
    return hits


def _hit_rate_ids(requests: Requests, capacity: int) -> float:
    """Leading ids present / ids, in an LRU of `capacity` ids (0 = no bound)."""
    _, ids = np.unique(requests.segment_stream, return_inverse=True)
    found = _lru_ids(requests.segment_offset, ids.astype(np.int64), int(ids.max()) + 1, capacity or ids.size)
    return float(found / ids.size)


@entry
def _lru_ids(offset, ids, num_ids, capacity):
    """A doubly linked list over ids; record num_ids is its head (next = least recent)."""
    before = np.full(num_ids + 1, -1, np.int64)
    after = np.full(num_ids + 1, -1, np.int64)
    before[num_ids] = after[num_ids] = num_ids
    present, total = 0, 0
    for r in range(offset.size - 1):
        at = offset[r]
        while at < offset[r + 1] and before[ids[at]] >= 0:
            at += 1
        total += at - offset[r]
        for k in range(offset[r], offset[r + 1]):
            i = ids[k]
            if before[i] >= 0:
                after[before[i]] = after[i]
                before[after[i]] = before[i]
            else:
                present += 1
            last = before[num_ids]
            after[last], before[i] = i, last
            after[i], before[num_ids] = num_ids, i
        while present > capacity:
            oldest = after[num_ids]
            after[num_ids] = after[oldest]
            before[after[oldest]] = num_ids
            before[oldest] = -1
            present -= 1
    return total
