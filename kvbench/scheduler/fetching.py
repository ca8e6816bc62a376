"""Loading from the host: what the device's prefix cache has lost and the host still has comes back over their link.

    prepare    before a step is planned: waiting sequences that may come to it are looked up on the host
    loaded     a load has landed
    stretch    how much longer the planned step takes for loads and copies

layerwise: the loaded blocks are part of the cache at once, the sequence is admitted with them, and each layer of its
prefill step waits for its part of the load. whole: the sequence is FETCHING, which takes no place and no budget, and
waits again once all is there. A load holds the prefix that it continues, its blocks on the device, and its copies on
the host, whatever becomes of the sequence meanwhile. Each admission fetches once at most: what is lost again before
it comes to it is computed.

source: SGLang's HiCache (layerwise), vLLM's offloading connector (whole), in blocks.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..costs.links import transfer_ns
from ..costs.tables import HOST
from ..memory import links
from ..memory.operations import (
    ENDED,
    LOAD,
    OP_COUNT,
    OP_FIRST,
    OP_HOLDS,
    OP_KIND,
    OP_NODE,
    OP_OWNER,
    OP_OWNS,
    OP_STATE,
    OP_TARGET_COUNT,
    OP_TARGET_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    OP_WORK,
    attach,
    attach_target,
    attach_tier,
    detach,
    detach_target,
    heard,
    open_row,
)
from ..memory.pool import list_give, ring_give, ring_take
from ..prefix import block_hash, radix
from ..prefix.chain_hash import chain
from ..prefix.hold import let_go
from ..prefix.keys import fill_keys
from ..prefix.ranked import REGISTERED, RELEASED, SHARED_AGAIN
from ..tiers import copies, host, paths
from ..tiers.state import HOST_TOKENS, NAMESPACE, SINCE, TRIED, WAIT_IN_STEPS, WAIT_QUEUED
from . import kv, shadow
from .backup import written
from .prefill_admission import open_budget, total_left
from .queues import queue_by_arrival, queue_by_urgency, queue_remove
from .spent import STEPS
from .state import set_state
from .state_columns import (
    BLOCKS,
    CANCEL_FREES,
    COMPUTED,
    FETCHING,
    FINAL,
    FIRST_TERMINAL,
    GENERATED,
    IN_PREFILL,
    KNOWN,
    LOAD_UNHELD,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    PLAN_SLOT,
    RADIX,
    SEQ,
    WAITING,
)
from .token_budget_calendar import still_blocked


@entry
def prepare(e):
    """Look up on the host who may be admitted in the step that begins now, in order, until one is for whom there is no
    memory: nobody behind it is looked at in that step.
    """
    q, seq = e.seqs, first_in_line(e)
    budget, places, room = budget_left(e), places_left(e), room_left(e)
    while seq != NO_SEQ and places > 0 and budget > 0:
        following = q.queue_next[seq]
        tokens, taken = fetch(e, seq, room)
        if taken < 0:
            break
        budget, room = budget - tokens, room - taken
        places -= np.int64(q.state[seq] != FETCHING)
        seq = following


@inline
def first_in_line(e):
    """Who is looked up first. NO_SEQ: nobody can be admitted, as nothing has happened since the head was refused."""
    seq, rules = e.queue_head, e.rules
    if seq != NO_SEQ and rules.prefill_first:
        leave = rules.drop_ended_each_step and e.num_leavers > 0
        if e.batch_is_full and not leave and e.batch_size == 0 and e.slots.running > 0:
            seq = NO_SEQ
    elif still_blocked(e):
        seq = NO_SEQ
    return seq


@inline
def places_left(e):
    return e.rules.most_running - max(e.slots.running, e.slots.holders)


@inline
def budget_left(e):
    """Tokens of the step that who waits can have: what the prefill in progress leaves, as far as that is certain."""
    rules, rec, slot = e.rules, e.slots.rec, e.chunk
    budget = rules.max_num_batched_tokens
    if rules.prefill_first:
        budget = min(rules.max_prefill_tokens, rules.chunk_tokens) if rules.chunked else rules.max_prefill_tokens
    elif e.slots.tail != NO_SLOT and rec[e.slots.tail, PHASE] == IN_PREFILL and rules.long_prefill_token_threshold == 0:
        slot = e.slots.tail
    if slot != NO_SLOT:
        budget -= rec[slot, KNOWN] - rec[slot, COMPUTED]
    return budget


@inline
def room_left(e):
    """Tokens of memory that who waits can have. SGLang keeps some for what those who run are expected to say still."""
    bt, rec = e.rules.block_tokens, e.slots.rec
    if not e.rules.prefill_first:
        return kv.available(e) * bt
    open_budget(e)
    expected = 0.0
    for i in range(e.batch_size):  # the last prefill batch, which joins the running ones when the step begins
        slot = e.batch[i]
        if rec[slot, GENERATED] < rec[slot, FINAL]:
            left = e.seqs.max_tokens[rec[slot, SEQ]] - rec[slot, GENERATED]
            expected += min(left, e.rules.clip_max_new_tokens) * e.ratio
    return np.int64(total_left(e) - expected) - _promised(e) * bt


@inline
def _output(e, seq):
    """Tokens of memory that SGLang wants for an answer before it admits anybody."""
    if not e.rules.prefill_first:
        return np.int64(0)
    left = max(e.seqs.max_tokens[seq] - e.seqs.generated[seq], 0)
    return min(left, e.rules.clip_max_new_tokens) + e.rules.block_tokens


@jit
def fetch(e, seq, room):
    """Begin the load of what the host has of a waiting sequence, if it is worth it and there is memory for it.

    room     tokens of memory that it can have
    returns  (tokens that the next step has to compute for it, tokens of memory that it takes; -1: it cannot have them)
    """
    t, q, bt = e.tiers, e.seqs, e.rules.block_tokens
    tier, row = t.host, t.host.row
    known = q.prompt[seq] + q.generated[seq]
    limit = (known - 1) // bt
    hits, link, tied = kv.lookup(e, seq, limit, row)
    rest = known - hits * bt
    whole = (known + bt - 1) // bt - hits + tied
    is_all = e.rules.prefill_first or e.rules.reserve_full_isl
    now = whole if is_all else (min(rest, e.rules.max_num_batched_tokens) + bt - 1) // bt + tied
    headroom = e.rules.watermark_blocks if e.slots.running > 0 else 0
    taken = now * bt + _output(e, seq)
    if taken + headroom * bt > room:
        return rest, np.int64(-1)
    if t.of_seq[seq, TRIED] > q.preemptions[seq] or (hits < limit and q.present[seq] > hits * bt):
        return rest, taken
    host.name_blocks(tier, e.block_keys, seq, q.namespace[seq], limit)
    stop = host.find(tier, hits, limit)
    if (stop - hits) * bt < max(t.min_load_tokens, 1):
        return rest, taken
    if (whole + (0 if t.layerwise else e.rules.watermark_blocks)) * bt > room:
        return rest, taken
    t.of_seq[seq, TRIED] = q.preemptions[seq] + 1
    t.of_seq[seq, NAMESPACE] = q.namespace[seq]
    if q.scheduled[seq] < 0:
        t.of_seq[seq, HOST_TOKENS] = (stop - hits) * bt
    _begin(e, seq, hits, stop, link)
    paths.touch(tier, tier.names, 0, stop)
    if t.layerwise:
        return known - stop * bt, max(taken, whole * bt)  # the load has taken blocks beyond the first chunk's
    queue_remove(e, seq)
    set_state(e, seq, FETCHING)
    t.of_seq[seq, SINCE] = e.now
    return np.int64(0), whole * bt


@inline
def _promised(e):
    """Blocks that the prompt in the middle of its prefill was admitted with and has not taken yet (SGLang)."""
    slot, bt, rec = e.chunk, e.rules.block_tokens, e.slots.rec
    if slot == NO_SLOT:
        return np.int64(0)
    return (rec[slot, KNOWN] + bt - 1) // bt - rec[slot, BLOCKS] + 1


@inline
def _begin(e, seq, hits, stop, link):
    """Load blocks hits .. stop of a sequence, of which the device has the first `hits` (in the tier's row)."""
    t, ops, count = e.tiers, e.operations, stop - hits
    tier, row = t.host, t.host.row
    at = open_row(ops, LOAD, seq, e.seqs.preemptions[seq], e.number, e.number)
    _hold_prefix(e, row, hits, link)
    if e.rules.cache_kind == RADIX:
        if e.pool.num_free < count:
            radix.evict(e.tree, e.pool, count)
        ring_take(e.pool, row, hits, stop)
    else:
        block_hash.take(e.hashes, e.pool, row, hits, stop)
    ops.rows[at, OP_HOLDS] = ops.rows[at, OP_OWNS] = 1
    ops.rows[at, OP_NODE] = link
    attach(ops, at, e.pool, row, 0, hits)
    attach_target(ops, at, e.pool, row, hits, stop)
    attach_tier(ops, at, tier.slots, hits, stop)
    if not e.rules.planted & LOAD_UNHELD:
        paths.pin(tier, tier.slots, hits, count)
    tier.counters[copies.LOADED] += count
    if t.layerwise:
        _publish(e, at, seq, hits, stop, row)
    num_bytes, fragments = count * t.block_bytes, count * t.block_fragments
    work = transfer_ns(e.links.rates, t.link_up, num_bytes, fragments)
    links.begin(e.links, ops, at, t.link_up, num_bytes, fragments, work, e.now)
    t.copy_ns += work
    if t.layerwise:
        end = links.expected_end(e.links, ops, at)
        if t.load_end <= e.now:
            t.load_begin = end - ops.rows[at, OP_WORK]
        t.load_end = max(t.load_end, end)


@inline
def _hold_prefix(e, row, hits, link):
    """Hits of a lookup belong to an operation: nobody has had a reference to them, maybe."""
    if e.rules.cache_kind == RADIX:
        radix.lock(e.tree, link)
    elif hits > 0:
        block_hash.share(e.pool, row, hits)
        block_hash.note(e.hashes, e.pool, SHARED_AGAIN, row, 0, hits, 0)


@jit
def _publish(e, at, seq, hits, stop, row):
    """The target blocks of a load, row[hits:stop], become part of the device's prefix cache.

    row holds the whole prefix. Under radix the tree owns them afterwards, and the operation holds
    the longer path; what others have computed meanwhile is taken instead, and the loaded blocks go back.
    """
    ops, worth = e.operations, -e.seqs.priority[seq]
    if e.shadow.owner.size > 1:
        shadow.loaded(e, at, row, hits, stop)
    if e.rules.cache_kind == RADIX:
        fill_keys(e.block_keys, seq, 0, stop, e.keys)
        old = ops.rows[at, OP_NODE]
        node, _ = radix.insert(e.tree, e.pool, old, e.keys, row, hits, stop, worth, np.int64(0))
        radix.lock(e.tree, node)
        radix.unlock(e.tree, old)
        ops.rows[at, OP_NODE] = node
        ops.rows[at, OP_OWNS] = 0
    else:
        contents, content = e.keys, ops.rows[at, OP_NODE]
        fill_keys(e.block_keys, seq, hits, stop, contents)
        for i in range(hits, stop):
            content = chain(content, contents[i])
            contents[i] = content
        block_hash.register_all(e.hashes, e.pool, contents, row, hits, stop)
        block_hash.note(e.hashes, e.pool, REGISTERED, row, hits, stop, worth)


@jit
def loaded(e, at):
    """A load has landed, or failed: what it held is let go, and its sequence waits again."""
    t, ops, q = e.tiers, e.operations, e.seqs
    rows, tier, seq = ops.rows, t.host, ops.rows[at, OP_OWNER]
    if not e.rules.planted & LOAD_UNHELD:
        paths.unpin(tier, ops.blocks, rows[at, OP_TIER_FIRST], rows[at, OP_TIER_COUNT])
    hits, count = rows[at, OP_COUNT], rows[at, OP_TARGET_COUNT]
    row = tier.row
    for i in range(hits):
        row[i] = ops.blocks[rows[at, OP_FIRST] + i]
    for i in range(count):
        row[hits + i] = ops.blocks[rows[at, OP_TARGET_FIRST] + i]
    detach_target(ops, at, e.pool)
    is_there = rows[at, OP_STATE] == ENDED and q.namespace[seq] == t.of_seq[seq, NAMESPACE]
    if not t.layerwise and is_there:
        _publish(e, at, seq, hits, hits + count, row)
    if rows[at, OP_OWNS] == 1:
        _give_back(e, row, hits, hits + count)
        if e.rules.planted & CANCEL_FREES and q.state[seq] >= FIRST_TERMINAL:
            _give_back(e, row, hits, hits + count)
    let_go(
        e.rules.cache_kind == RADIX, e.tree, e.hashes, e.pool, ops.blocks, rows[at, OP_FIRST], hits, rows[at, OP_NODE]
    )
    detach(ops, at, e.pool)
    heard(ops, at)
    if q.state[seq] == FETCHING and not t.layerwise:
        if q.scheduled[seq] < 0:
            t.of_seq[seq, WAIT_QUEUED] += e.now - t.of_seq[seq, SINCE]
        set_state(e, seq, WAITING)
        if e.rules.priority:
            queue_by_urgency(e, seq)
        else:
            queue_by_arrival(e, seq)


@inline
def _give_back(e, row, start, stop):
    """Blocks that only the operation owned: visible ones stay as cache."""
    if e.rules.cache_kind == RADIX:
        ring_give(e.pool, row, start, stop)
    else:
        blocks = row[start:stop]
        list_give(e.pool, blocks, stop - start)
        block_hash.note(e.hashes, e.pool, RELEASED, blocks, 0, stop - start, 0)


@entry
def stretch(e, duration):
    """The planned step would take `duration` ns by itself: it takes wait_ns and slowed_ns more.

    With L layers the step ends at the latest of: its own end; the load of the first layer and all computing; all
    loading and the computing of the last layer. In between both are linear, so no other layer counts.
    """
    stretch_behind(e, duration, np.int64(0))


@jit
def stretch_behind(e, duration, not_before):
    """The same for a step whose work on the device begins at not_before, if that is later."""
    t, plan, rec = e.tiers, e.plan, e.slots.rec
    host_ns = e.resources[HOST]
    t.wait_ns = 0
    start = e.now + host_ns
    if e.overlap:
        start = max(start, e.device_end)
    stall = max(not_before - start, 0)
    start += stall
    busy = duration - host_ns
    end = start + busy
    if e.prefill_seqs > 0 and t.load_end > start:
        load = t.load_end - t.load_begin
        first = t.load_begin + load // t.layers + busy
        last = t.load_end + busy // t.layers
        t.wait_ns = max(max(first, last) - end, 0)
        for row in range(e.num_plan):
            slot = plan[row, PLAN_SLOT]
            if rec[slot, PHASE] == IN_PREFILL and e.seqs.spent[rec[slot, SEQ], STEPS] < 0:
                t.of_seq[rec[slot, SEQ], WAIT_IN_STEPS] += t.wait_ns
    beside = min(t.copy_ns, busy)  # what was copied since the step before, and what is left from then
    t.copy_ns -= beside
    t.slowed_ns = np.int64(t.slowdown * beside) + stall
    t.sum_wait_ns += t.wait_ns
    t.sum_slowed_ns += t.slowed_ns


@entry
def landed(e, row):
    """An operation between host and device has ended."""
    shadow.moved(e, row)
    if e.operations.rows[row, OP_KIND] == LOAD:
        loaded(e, row)
    else:
        written(e, row)
