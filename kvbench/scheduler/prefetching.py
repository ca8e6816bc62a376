"""Storage behind the host: what a waiting sequence will want is fetched ahead, what the host keeps is stored.

    prepare    before a step is planned: prefetches begin for who has come, and end for whose turn it is
    landed     an operation between any two tiers has ended

A prefetch begins when its sequence waits, for what neither device nor host has of its prompt. It goes in batches, one
after the other; each is of use once it is there. When the sequence could be admitted, the stop policy decides:
best_effort ends the prefetch, wait_complete sets the sequence aside until it is through, timeout until then or until
it has waited so long. Copies that have landed on the host go on to storage, which all engines of a run share.

source: SGLang's HiCache, in blocks.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..costs.links import transfer_ns
from ..memory import links
from ..memory.operations import (
    BACKUP,
    ELSEWHERE,
    ENDED,
    LOAD,
    NOBODY,
    OP_KIND,
    OP_OWNER,
    OP_STATE,
    OP_STORE_COUNT,
    OP_STORE_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    PREFETCH,
    STORE,
    TIMER,
    attach_store,
    attach_tier,
    heard,
    open_row,
)
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import fill_keys
from ..tiers import copies, host, paths
from ..tiers.rules import BEST_EFFORT, TIMEOUT
from ..tiers.state import (
    ARRIVED_BLOCKS,
    ASKED_BLOCKS,
    PF_ASIDE,
    PF_DONE,
    PF_NEW,
    PF_RUNS,
    PREFETCH_END,
    PREFETCH_NEXT,
    PREFETCH_STATE,
    SINCE,
    STORE_TOKENS,
    STORED_BLOCKS,
    TRUNCATED_BLOCKS,
    WAIT_QUEUED,
)
from . import kv, shadow
from .backup import written
from .fetching import budget_left, fetch, first_in_line, loaded, places_left, room_left
from .queues import queue_by_arrival, queue_by_urgency, queue_remove
from .state import set_state
from .state_columns import (
    FAILED_IS_DONE,
    FETCHING,
    FIRST_TERMINAL,
    FULL_KEY,
    MISS_KEEPS_MEMORY,
    NO_PARENT,
    NO_SEQ,
    WAITING,
    WRONG_START,
)


@entry
def prepare(e):
    """Prefetches of who has come since the last step; then who may be admitted now: its prefetch ends, loads begin."""
    t, q = e.tiers, e.seqs
    seq = e.queue_tail
    while seq != NO_SEQ and (e.rules.priority or t.of_seq[seq, PREFETCH_STATE] == PF_NEW):
        if t.of_seq[seq, PREFETCH_STATE] == PF_NEW:
            _ask(e, seq)
        seq = q.queue_prev[seq]
    seq = first_in_line(e)
    budget, places, room = budget_left(e), places_left(e), room_left(e)
    while seq != NO_SEQ and places > 0 and budget > 0:
        following = q.queue_next[seq]
        if t.of_seq[seq, PREFETCH_STATE] == PF_RUNS:
            _decide(e, seq)
        if q.state[seq] != FETCHING:
            tokens, taken = fetch(e, seq, room)
            if taken < 0:
                break
            budget, room = budget - tokens, room - taken
        places -= np.int64(q.state[seq] != FETCHING)
        seq = following


@jit
def _ask(e, seq):
    """Begin the prefetch of a sequence, if storage has enough behind what device and host have."""
    t, q, bt = e.tiers, e.seqs, e.rules.block_tokens
    t.of_seq[seq, PREFETCH_STATE] = PF_DONE
    limit = (q.prompt[seq] + q.generated[seq] - 1) // bt
    hits, _, _ = kv.lookup(e, seq, limit, t.host.row)
    host.name_blocks(t.host, e.block_keys, seq, q.namespace[seq], limit)
    start = host.find(t.host, hits, limit)
    if e.rules.planted & WRONG_START:
        _misname(e, seq, host.find(t.host, np.int64(0), hits), start, limit)
    stop = host.find_names(t.store, t.host.names, start, limit)
    if stop == start or (stop - start) * bt < t.prefetch_min_tokens:
        return
    t.counts[ASKED_BLOCKS] += stop - start
    t.of_seq[seq, PREFETCH_STATE] = PF_RUNS
    t.of_seq[seq, PREFETCH_NEXT], t.of_seq[seq, PREFETCH_END] = start, stop
    _next_batch(e, seq)


@jit
def _misname(e, seq, backed, start, stop):
    """A planted fault: names go on from the last block that the host has, with tokens from behind the whole match."""
    names = e.tiers.host.names
    e.tiers.host.named = copies.NOBODY
    content = names[backed - 1] if backed > 0 else root_hash(e.seqs.namespace[seq])
    fill_keys(e.block_keys, seq, start, stop, names)
    for i in range(start, stop):
        content = chain(content, names[i])
        names[i] = content


@jit
def _next_batch(e, seq):
    """The next batch of a prefetch moves; or it is over: all is there, or storage or the host have no more."""
    t, ops = e.tiers, e.operations
    tier = t.host
    start = t.of_seq[seq, PREFETCH_NEXT]
    stop = min(t.of_seq[seq, PREFETCH_END], start + t.batch_blocks)
    namespace = e.seqs.namespace[seq]
    host.name_blocks(tier, e.block_keys, seq, namespace, stop)
    stop = host.find_names(t.store, tier.names, start, stop)
    if stop <= start:
        _over(e, seq)
        return
    paths.touch(t.store, tier.names, start, stop)
    names, path = tier.names, tier.path
    paths.hold_path(tier, names, np.int64(0), stop, path)
    end = start
    while end < stop and path[end] <= 0:
        end += 1
    count, end = paths.reserve_path(tier, names, start, end, path, (e.rules.planted & NO_PARENT) != 0)
    if e.rules.planted & FULL_KEY and count > 0 and end < stop:
        _take_for_another(e, count, start + count - 1, stop - 1)
    for i in range(count):
        t.store.slots[i] = host.slot_of(t.store, names[start + i])
    paths.release_path(tier, np.int64(0), stop, path, False)
    if count == 0:
        _over(e, seq)
        return
    row = open_row(ops, PREFETCH, seq, 0, ELSEWHERE, e.number)
    attach_tier(ops, row, tier.slots, 0, count)
    attach_store(ops, row, t.store.slots, 0, count)
    paths.pin(t.store, t.store.slots, 0, count)
    t.of_seq[seq, PREFETCH_NEXT] = start + count
    num_bytes = count * t.store_block_bytes
    links.begin(
        e.links, ops, row, t.store_up, num_bytes, 1, transfer_ns(e.links.rates, t.store_up, num_bytes, 1), e.now
    )


@jit
def _take_for_another(e, count, last, named):
    """A planted fault: the last slot of a batch of `count` is taken under the name of a later block."""
    tier = e.tiers.host
    path, slot = tier.path, np.int64(tier.path[last])
    path[last] = copies.NO_SLOT
    host.unlock(tier, slot)
    host.give_up(tier, slot)
    above = np.int64(path[last - 1]) if tier.closed and last > 0 else copies.NO_PARENT
    tier.slots[count - 1] = host.reserve(tier, tier.names[named], above, named)


@jit
def _decide(e, seq):
    """A sequence whose prefetch goes on could be admitted."""
    t, q, ops = e.tiers, e.seqs, e.operations
    if t.stop_policy == BEST_EFFORT:
        _stop(e, seq)
        return
    if t.stop_policy == TIMEOUT:
        tokens = t.of_seq[seq, PREFETCH_END] * e.rules.block_tokens
        left = q.queued[seq] + t.timeout_ns + np.int64(tokens * t.timeout_token_ns) - e.now
        if left <= 0:
            _stop(e, seq)
            return
        row = open_row(ops, TIMER, seq, q.preemptions[seq], ELSEWHERE, e.number)
        links.begin(e.links, ops, row, t.timer, 0, 0, left, e.now)
    queue_remove(e, seq)
    set_state(e, seq, FETCHING)
    t.of_seq[seq, PREFETCH_STATE] = PF_ASIDE
    t.of_seq[seq, SINCE] = e.now


@jit
def _stop(e, seq):
    """No further batch; the one that moves is of use to others."""
    t = e.tiers
    t.counts[TRUNCATED_BLOCKS] += t.of_seq[seq, PREFETCH_END] - t.of_seq[seq, PREFETCH_NEXT]
    t.of_seq[seq, PREFETCH_END] = t.of_seq[seq, PREFETCH_NEXT]
    _over(e, seq)


@jit
def _over(e, seq):
    """A prefetch is over: who was set aside for it waits again."""
    t, q = e.tiers, e.seqs
    was_aside = t.of_seq[seq, PREFETCH_STATE] == PF_ASIDE
    t.of_seq[seq, PREFETCH_STATE] = PF_DONE
    if not was_aside or q.state[seq] != FETCHING:
        return
    if q.scheduled[seq] < 0:
        t.of_seq[seq, WAIT_QUEUED] += e.now - t.of_seq[seq, SINCE]
    set_state(e, seq, WAITING)
    if e.rules.priority:
        queue_by_urgency(e, seq)
    else:
        queue_by_arrival(e, seq)


@jit
def _prefetched(e, row):
    """A batch is on the host, or it failed: then nothing more is asked for."""
    t, ops = e.tiers, e.operations
    rows, seq = ops.rows, ops.rows[row, OP_OWNER]
    first, count = rows[row, OP_TIER_FIRST], rows[row, OP_TIER_COUNT]
    paths.unpin(t.store, ops.blocks, rows[row, OP_STORE_FIRST], rows[row, OP_STORE_COUNT])
    is_there = rows[row, OP_STATE] == ENDED
    if is_there:
        paths.confirm(t.host, ops.blocks, first, count)
        t.counts[ARRIVED_BLOCKS] += count
    elif not e.rules.planted & MISS_KEEPS_MEMORY:
        paths.withdraw(t.host, ops.blocks, first, count)
    heard(ops, row)
    state = t.of_seq[seq, PREFETCH_STATE]
    if state == PF_DONE:
        return
    if is_there and e.seqs.scheduled[seq] < 0:
        t.of_seq[seq, STORE_TOKENS] += count * e.rules.block_tokens
    if is_there and e.seqs.state[seq] < FIRST_TERMINAL and t.of_seq[seq, PREFETCH_NEXT] < t.of_seq[seq, PREFETCH_END]:
        _next_batch(e, seq)
    else:
        _over(e, seq)


@inline
def _store(e, row):
    """What has landed on the host goes on to storage, where it is not there yet and there is space."""
    t, ops = e.tiers, e.operations
    rows, tier, store = ops.rows, t.host, t.store
    first, count = rows[row, OP_TIER_FIRST], rows[row, OP_TIER_COUNT]
    if rows[row, OP_STATE] != ENDED:
        return
    host.make_room(tier, count)
    host.make_room(store, count)
    for i in range(count):
        store.names[i] = tier.content[ops.blocks[first + i]]
    zero = np.int64(0)
    paths.hold_path(store, store.names, zero, count, store.path)
    taken, _ = paths.reserve_path(store, store.names, zero, count, store.path, False)
    for i in range(taken):
        tier.slots[i] = ops.blocks[first + store.places[i]]
    paths.release_path(store, zero, count, store.path, t.writes_back)  # written back is what left first, tails first
    if taken == 0:
        return
    at = open_row(ops, STORE, NOBODY, 0, e.number, ELSEWHERE)
    attach_tier(ops, at, tier.slots, 0, taken)
    attach_store(ops, at, store.slots, 0, taken)
    paths.pin(tier, tier.slots, 0, taken)
    num_bytes, batches = taken * t.store_block_bytes, (taken + t.batch_blocks - 1) // t.batch_blocks
    work = transfer_ns(e.links.rates, t.store_down, num_bytes, batches)
    links.begin(e.links, ops, at, t.store_down, num_bytes, batches, work, e.now)


@inline
def _stored(e, row):
    """A copy is in storage, or it failed: then it is not there."""
    t, ops = e.tiers, e.operations
    rows = ops.rows
    paths.unpin(t.host, ops.blocks, rows[row, OP_TIER_FIRST], rows[row, OP_TIER_COUNT])
    first, count = rows[row, OP_STORE_FIRST], rows[row, OP_STORE_COUNT]
    if rows[row, OP_STATE] == ENDED or e.rules.planted & FAILED_IS_DONE:
        paths.confirm(t.store, ops.blocks, first, count)
        t.counts[STORED_BLOCKS] += count
    else:
        paths.withdraw(t.store, ops.blocks, first, count)
    heard(ops, row)


@entry
def landed(e, row):
    """An operation between two tiers has ended, or a time is up."""
    shadow.moved(e, row)
    ops, t = e.operations, e.tiers
    kind, seq = ops.rows[row, OP_KIND], ops.rows[row, OP_OWNER]
    if kind == LOAD:
        loaded(e, row)
    elif kind == BACKUP:
        _store(e, row)
        written(e, row)
    elif kind == PREFETCH:
        _prefetched(e, row)
    elif kind == STORE:
        _stored(e, row)
    elif kind == TIMER:
        heard(ops, row)
        if t.of_seq[seq, PREFETCH_STATE] == PF_ASIDE:
            _stop(e, seq)
