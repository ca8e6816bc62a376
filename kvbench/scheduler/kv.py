"""Memory verbs of a scheduler, over whichever prefix cache the engine has.

    lookup      what of a sequence is cached          (radix: stamps and splits; hash: changes nothing)
    available   blocks that could be had, by evicting if need be
    attach      the hits become the start of a slot's block table
    extend      the table grows; the caller has checked `available`, or gets False
    publish_*   whole blocks become visible as a prefix: hashed ones when they are allocated, radix ones when
                they are computed
    release     the slot gives everything back; what is published stays cached

Radix (SGLang): the tree owns published blocks, a lock on a node protects its path; only whole blocks are
shared. Hash (vLLM): a block is held by reference counts. None: a table of private blocks.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..memory.pool import list_give, ring_give, ring_take
from ..prefix import block_hash, forgetting, radix
from ..prefix.keys import fill_keys
from ..prefix.ranked import REGISTERED, RELEASED, SHARED_AGAIN
from .backup import is_flushed, offer
from .state_columns import (
    BLOCKS,
    CHAIN,
    COMPUTED,
    GENERATED,
    HASHED,
    INSERTED,
    KNOWN,
    NO_REPEATS,
    NODE,
    OUT_OF_KV,
    PUBLISHED,
    RADIX,
    SEQ,
)


@inline
def available(e):
    """Blocks that an allocation can have: free ones, and cached ones that nobody holds."""
    if e.rules.cache_kind == RADIX:
        return e.pool.num_free + e.tree.evictable
    return e.pool.num_free


@inline
def used_blocks(e):
    """Blocks that a sequence holds."""
    return e.pool.num_blocks - available(e)


@inline
def cached_blocks(e):
    """Blocks that only the prefix cache holds. Under hash: visible ones without a reference."""
    if e.rules.cache_kind == RADIX:
        return e.tree.evictable
    return e.pool.cached


@inline
def lookup(e, seq, limit, row):
    """Longest cached prefix of a sequence, at most `limit` whole blocks, written to row.

    returns  (blocks, node or chain hash to go on from, hits that count against `available` once held)
    """
    kind = e.rules.cache_kind
    namespace = e.seqs.namespace[seq]
    if kind == RADIX and e.rules.keeps:
        known = radix.reach(e.tree, namespace, e.block_keys, seq, limit, e.keys)
        node, hits = radix.match(e.tree, namespace, e.keys, known, row)
        return hits, node, _unlocked_blocks(e.tree, node)
    if kind == HASHED:
        hits, content, unreferenced = block_hash.match(
            e.hashes, e.pool, e.block_keys, seq, namespace, limit, e.keys, row
        )
        return hits, content, unreferenced
    return 0, 0, 0


@inline
def watch_first_miss(e, seq, hits, content):
    """Note the first block that a refused sequence did not find; `hashes.watch_seen` tells when it appears."""
    e.hashes.watch_seen = False
    e.hashes.watch = block_hash.NO_WATCH
    whole = (e.seqs.prompt[seq] + e.seqs.generated[seq]) // e.rules.block_tokens
    if e.rules.cache_kind == HASHED and hits < whole:
        fill_keys(e.block_keys, seq, hits, hits + 1, e.keys)
        e.hashes.watch = block_hash.chain(content, e.keys[hits])


@inline
def _unlocked_blocks(tree, node):
    """Blocks of a path that are evictable now. A locked node has locked ancestors, so the walk is short."""
    total = 0
    while node > 0 and tree.nodes[node, radix.LOCK] == 0:
        total += tree.nodes[node, radix.LENGTH]
        node = tree.nodes[node, radix.PARENT]
    return total


@inline
def attach(e, slot, hits, link):
    """Hold the hits of a lookup that wrote this slot's table row."""
    rec = e.slots.rec
    e.seqs.root[rec[slot, SEQ]] = e.seqs.namespace[rec[slot, SEQ]]
    rec[slot, BLOCKS] = hits
    rec[slot, PUBLISHED] = hits
    rec[slot, COMPUTED] = hits * e.rules.block_tokens
    if e.rules.cache_kind == RADIX:
        rec[slot, NODE] = link
        rec[slot, INSERTED] = 0
        radix.hit(e.tree, link)
        radix.lock(e.tree, link)
    else:
        rec[slot, CHAIN] = link
        if hits > 0:
            block_hash.share(e.pool, e.slots.table[slot], hits)
            block_hash.note(e.hashes, e.pool, SHARED_AGAIN, e.slots.table[slot], 0, hits, 0)
    e.table_blocks += hits
    e.context += hits * e.rules.block_tokens


@jit
def install(e, slot, tokens):
    """KV of the first `tokens` tokens was computed elsewhere and is put in place; the caller has checked memory."""
    rec = e.slots.rec
    if not extend(e, slot, tokens):
        e.fault = OUT_OF_KV
    e.context += tokens - rec[slot, COMPUTED]
    rec[slot, COMPUTED] = tokens
    publish_hashed(e, slot, tokens)


@jit
def adopt(e, slot, tokens):
    """The KV of the first `tokens` tokens has arrived in the blocks that the table has for it."""
    rec = e.slots.rec
    e.context += tokens - rec[slot, COMPUTED]
    rec[slot, COMPUTED] = tokens
    publish_hashed(e, slot, tokens)


@jit
def extend(e, slot, tokens):
    """Let the table cover `tokens` tokens. False, and nothing changed, when blocks are short."""
    rec = e.slots.rec
    have = rec[slot, BLOCKS]
    want = (tokens + e.rules.block_tokens - 1) // e.rules.block_tokens
    if want <= have:
        return True
    need = want - have
    pool = e.pool
    if e.rules.cache_kind == RADIX:
        if pool.num_free < need:
            if pool.num_free + e.tree.evictable < need:
                return False
            radix.evict(e.tree, pool, need - pool.num_free if e.rules.evict_shortfall else need)
        ring_take(pool, e.slots.table[slot], have, want)
    else:
        if pool.num_free < need:
            return False
        block_hash.take(e.hashes, pool, e.slots.table[slot], have, want)
    rec[slot, BLOCKS] = want
    e.table_blocks += need
    return True


@inline
def publish_hashed(e, slot, tokens):
    """Hash cache: blocks that will be full once `tokens` tokens are there become visible (at allocation).

    Where a block may not be hit in the step that computes it, only those that are computed already do.
    """
    if e.rules.cache_kind != HASHED:
        return
    rec = e.slots.rec
    if not e.rules.hit_same_step:
        tokens = min(tokens, rec[slot, COMPUTED])
    known = rec[slot, KNOWN]
    if e.overlap:  # a token that is being made has no value yet
        known = e.seqs.prompt[rec[slot, SEQ]] + rec[slot, GENERATED]
    full = min(tokens, known) // e.rules.block_tokens
    start = rec[slot, PUBLISHED]
    if full > start:
        rec[slot, CHAIN] = block_hash.publish(
            e.hashes,
            e.pool,
            e.block_keys,
            rec[slot, SEQ],
            rec[slot, CHAIN],
            e.slots.table[slot],
            start,
            full,
            e.keys,
        )
        worth = -e.seqs.priority[rec[slot, SEQ]]  # see _insert
        block_hash.note(e.hashes, e.pool, REGISTERED, e.slots.table[slot], start, full, worth)
        rec[slot, PUBLISHED] = full


@jit
def withdraw(e, slot):
    """Hash cache: blocks that became visible at allocation and were never computed are taken back."""
    rec = e.slots.rec
    written = rec[slot, COMPUTED] // e.rules.block_tokens
    if e.rules.cache_kind == HASHED and rec[slot, PUBLISHED] > written:
        block_hash.withdraw(e.hashes, e.pool, e.slots.table[slot], written, rec[slot, PUBLISHED])
        rec[slot, PUBLISHED] = written


@inline
def publish_chunk(e, slot):
    """Radix: the whole blocks of a prefill in progress enter the tree; that is a hit only where each counts once."""
    if e.rules.cache_kind == RADIX and e.rules.keeps:
        _move_lock(e, slot, _insert(e, slot, np.int64(e.rules.count_hits_once)))


@inline
def publish_unfinished(e, slot):
    """Radix: the whole blocks of a sequence that goes on enter the tree."""
    if e.rules.cache_kind == RADIX and e.rules.keeps:
        _move_lock(e, slot, _insert(e, slot, np.int64(1)))
    offer(e, slot, e.slots.rec[slot, NODE])


@inline
def publish_finished(e, slot):
    """The whole blocks of a sequence that ends become visible, if they are not. A lock goes with its release."""
    node = np.int64(0)
    if e.rules.cache_kind == RADIX:
        node = e.slots.rec[slot, NODE]
        if e.rules.keeps and not is_flushed(e, e.slots.rec[slot, SEQ]):
            node = _insert(e, slot, np.int64(1))
    elif not e.rules.hit_same_step:
        _publish_computed(e, slot)
    offer(e, slot, node)


@jit
def _publish_computed(e, slot):
    publish_hashed(e, slot, e.slots.rec[slot, COMPUTED])


@jit
def _insert(e, slot, is_hit):
    """Computed whole blocks enter the tree; duplicates are given back for the tree's own. Returns the end node.

    is_hit   1: nodes of the path count one, or, where they count once a request, those that it has not put there before
    """
    rec = e.slots.rec
    seq = rec[slot, SEQ]
    full = rec[slot, COMPUTED] // e.rules.block_tokens
    start = rec[slot, PUBLISHED]
    fill_keys(e.block_keys, seq, start, full, e.keys)
    row = e.slots.table[slot]
    counted = rec[slot, INSERTED] if e.rules.count_hits_once else np.int64(0)
    if is_hit == 0 or e.rules.planted & NO_REPEATS:
        counted = full
    worth = -e.seqs.priority[seq]  # the tree keeps what is of greater priority; here the smaller is more urgent
    node, _ = radix.insert(e.tree, e.pool, rec[slot, NODE], e.keys, row, start, full, worth, counted)
    rec[slot, PUBLISHED] = full
    rec[slot, INSERTED] = full
    prompt = e.seqs.prompt[seq] // e.rules.block_tokens
    if e.rules.split_at_prompt and 0 < prompt < full:
        radix.cut(e.tree, node, full, prompt, worth + 1)
    return node


@jit
def _move_lock(e, slot, node):
    """What matching the inserted path again does: it is stamped, and the lock moves to its end."""
    old = e.slots.rec[slot, NODE]
    radix.touch(e.tree, node)
    if node != old:
        radix.lock(e.tree, node)
        radix.unlock(e.tree, old)
        e.slots.rec[slot, NODE] = node


@jit
def lose(e, slot):
    """A planted fault: the table forgets its private blocks, and nobody gives them back."""
    rec = e.slots.rec
    e.table_blocks -= rec[slot, BLOCKS] - rec[slot, PUBLISHED]
    rec[slot, BLOCKS] = rec[slot, PUBLISHED]
    e.context -= rec[slot, COMPUTED]
    rec[slot, COMPUTED] = 0


@jit
def release(e, slot):
    """Give back all memory of a slot. Under radix, only what is not published; the rest stays in the tree.

    What was published in a namespace that was flushed since goes too, once nobody else holds it.
    """
    rec = e.slots.rec
    row = e.slots.table[slot]
    held = rec[slot, BLOCKS]
    is_stale = is_flushed(e, rec[slot, SEQ])
    e.slots.holders -= 1
    e.table_blocks -= held
    e.context -= rec[slot, COMPUTED]
    if e.rules.cache_kind == RADIX:
        full = max(rec[slot, COMPUTED] // e.rules.block_tokens, rec[slot, PUBLISHED]) if e.rules.keeps else held
        ring_give(e.pool, row, rec[slot, PUBLISHED], full)  # two groups, as SGLang gives them back
        ring_give(e.pool, row, full, held)
        radix.unlock(e.tree, rec[slot, NODE])
        if is_stale:
            forgetting.drop_path(e.tree, e.pool, rec[slot, NODE])
    else:
        if is_stale:
            forgetting.drop_unshared(e.hashes, e.pool, row, rec[slot, PUBLISHED])
        list_give(e.pool, row, held)
        block_hash.note(e.hashes, e.pool, RELEASED, row, 0, held, 0)
    rec[slot, BLOCKS] = 0
    rec[slot, PUBLISHED] = 0
