"""The router: what it knows of n engines. It knows no engine: somebody else fills arrays in, the rest it believes.

    route(router, seqs, seq, now) -> engine                 or NO_ENGINE, BAD_CHOICE; SENT follows at once
    hear(router, seqs, event, subject, engine, now)         something that it learns; subject: a sequence, or a key

Both verbs are function pointers, so that a run compiles its own policy and nothing else; see policies.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..core.jit import PLAIN, jit, struct
from ..prefix.keys import BlockKeys
from ..scheduler.state import Sequences
from .block_view import BlockView
from .holder_tree import HolderTree

NO_ENGINE = -1
"""No engine takes requests."""
BAD_CHOICE = -2
"""A user's policy returned the number of no engine that takes requests."""

UNKNOWN = -1
"""The router has no idea of what is cached."""

# Columns of Router.load. The first three and the last the router counts itself; the others are reported to it.
IN_FLIGHT, PENDING_TOKENS, HELD_TOKENS, REQUESTS, WAITING, QUEUED_TOKENS, KV_USED, KV_ALL, SENT_LATELY = range(9)
LOAD_COLUMNS = 9
# IN_FLIGHT       requests that it has sent there and that have not ended
# PENDING_TOKENS  of those without a first token: prompt tokens beyond what it believed cached
# HELD_TOKENS     of all of them: prompt tokens
# REQUESTS        waiting or running there, whoever sent them. WAITING: without a place in the batch
# QUEUED_TOKENS   prompt tokens of these that are not computed yet, as the engine knows it
# KV_USED, KV_ALL blocks that sequences hold, and all of them
# SENT_LATELY     requests that it has sent there within router.window_s, where load_by = rate; its own count too

# What `hear` is told. Typed, since every literal would compile a callee of its own.
SENT, FIRST_TOKEN, ENDED, OUTPUT_BLOCK, STORED, REMOVED, LOST = np.arange(7)
# STORED, REMOVED and LOST are about an engine itself, the others about the place in the router's arrays (see port).
# SENT         the decision for sequence `subject` was carried out
# FIRST_TOKEN  the client has the first token of sequence `subject`
# ENDED        sequence `subject` has left the engine, whatever became of it; once for each SENT
# OUTPUT_BLOCK sequence `subject` has filled another block with its output (only kv-aware heeds it)
# STORED, REMOVED   the engine has, or has no more, the block whose chain hash is `subject`
# LOST         the engine's cache is empty

RING, MODULO, STICKY, STICKY_FEWEST = range(4)
OWN, EVENTS, TRUTH = range(3)

PREFILL_STEP = 512
"""Tokens between two points of Router.prefill_ns."""

CHOOSE_FUNCTION: Any = (
    None
    if PLAIN
    else types.FunctionType(
        types.int64(types.int64[:, ::1], types.int64[::1], types.int64[::1], types.int64, types.int64, types.int64)
    )
)
"""A user's policy; see own_file.py."""


@struct
class RouterRules:
    """Settings as numbers; see routing.settings for their meaning.

    *_column   of Router.load
    ranks      engines of a place: 1, or those of an instance
    """

    num_engines: "i8"
    ranks: "i8"
    routers: "i8"
    block_tokens: "i8"
    load_column: "i8"
    window_ns: "i8"
    counts_each_set: "b1"
    queue_column: "i8"
    assign: "i8"
    belief: "i8"
    hears_loss: "b1"
    prefix_tokens: "i8"
    bound: "f8"
    min_match_tokens: "i8"
    match_threshold: "f8"
    balance_abs: "f8"
    balance_rel: "f8"
    evict_ns: "i8"
    ttl_ns: "i8"
    credit: "f8"
    credit_decay: "f8"
    prefill_scale: "f8"
    active_weight: "f8"
    temperature: "f8"
    weight_queue: "f8"
    weight_kv: "f8"
    weight_prefix: "f8"
    weight_requests: "f8"


@struct
class Router:
    """n engines, s sequences; a place in an array is an engine's number. Of r routers that do not know of each other,
    arrays of shape (r x n) have the first router's first; those of the router in question begin at `base`. Where an
    instance of several ranks is chosen, it is one of the n, and its m ranks are the engines that tell of themselves.

    port         (m,) place of an engine among the n: its own number, or that of its instance

    accepts      (n,) 1 = takes requests; one may be drained, dead, or not there yet
    load         (r x n, 9) see LOAD_COLUMNS; whoever reports calls `report`
    as_of        (n,) ns: when the reported columns were true
    truth        (n,) tokens of the sequence in question that are cached on each engine now, where wants_truth is set
    wants_load   the reported columns are wanted as they are now, before every decision
    wants_events STORED and REMOVED are wanted; `tell_block` says them
    late         (capacity, 3) ring of what the router will hear: due ns, engine, change (see prefix.changes);
                 `num_late` of them from late_head on
    delay_ns     of what it hears. lost_events: the share that is lost, in 2 ** -32. lottery: decides which
    predicted    tokens that the router believes cached where it sends the sequence; UNKNOWN
    best         the same of the engine that has most, of those that take requests; UNKNOWN
    cached       (n,) the same of every engine, as looked up last. told: (m,) by the events of each rank
    booked       (s,) tokens that a sequence has in PENDING_TOKENS
    turns        (r,) decisions so far. sets: (num_sets of them, 2) a set of engines that took requests, by a hash, and
                 decisions with just these, where the counter is one for each set
    sends        (num_sends of them from first_send on, 2) ns and place of what was sent within the window
    random       state of its generator
    session      (requests,) number of the session's key, NONE = no session. session_point: (keys,) on the ring
    home         (r x keys,) engine of a session that sticks; NO_ENGINE = none yet
    flying       (r x keys,) requests in flight of a session. seat: (r x keys,) the engine that it was sent to last
    seated       (r x n,) sessions in flight
    ring_point, ring_engine   (points,) the ring, ascending
    tree, blocks_told   beliefs: what was sent where; what the engines' events say
    next_evict   ns, when the tree is trimmed next
    keys         scratch, of a prompt's blocks
    live         of requests in flight: who holds which blocks, by how many requests. leaf: (s,) a sequence's node there
    shared       (n,) blocks of the sequence in question that live requests hold there
    output_blocks   (r x n,) of live requests. grown: (s,) those of one
    cost         (n,) of the decision; the least wins
    prefill_ns   (n, points) ns of a prefill of 0, PREFILL_STEP, 2 x PREFILL_STEP ... tokens, at least two points
    choose       a user's policy. bad_choice: the first sequence for which it returned no engine; -1: none
    """

    rules: "RouterRules"
    block_keys: "BlockKeys"
    port: "i8[::1]"
    base: "i8"
    accepts: "i8[::1]"
    load: "i8[:,::1]"
    as_of: "i8[::1]"
    truth: "i8[::1]"
    wants_truth: "b1"
    wants_load: "b1"
    wants_events: "b1"
    late: "i8[:,::1]"
    late_head: "i8"
    num_late: "i8"
    delay_ns: "i8"
    lost_events: "i8"
    lottery: "u8"
    predicted: "i8"
    best: "i8"
    cached: "i8[::1]"
    told: "i8[::1]"
    booked: "i8[::1]"
    turns: "i8[::1]"
    sets: "i8[:,::1]"
    num_sets: "i8"
    sends: "i8[:,::1]"
    first_send: "i8"
    num_sends: "i8"
    random: "u8"
    session: "i8[::1]"
    session_point: "i8[::1]"
    home: "i8[::1]"
    flying: "i8[::1]"
    seat: "i8[::1]"
    seated: "i8[::1]"
    ring_point: "i8[::1]"
    ring_engine: "i8[::1]"
    tree: "HolderTree"
    blocks_told: "BlockView"
    next_evict: "i8"
    keys: "i8[::1]"
    live: "HolderTree"
    leaf: "i8[::1]"
    shared: "i8[::1]"
    output_blocks: "i8[::1]"
    grown: "i8[::1]"
    cost: "f8[::1]"
    prefill_ns: "i8[:,::1]"
    choose: "CHOOSE_FUNCTION"
    bad_choice: "i8"


ROUTE_FUNCTION: Any = None
HEAR_FUNCTION: Any = None
if not PLAIN:
    _i8 = types.int64
    ROUTE_FUNCTION = types.FunctionType(_i8(Router.numba_type, Sequences.numba_type, _i8, _i8))
    HEAR_FUNCTION = types.FunctionType(types.void(Router.numba_type, Sequences.numba_type, _i8, _i8, _i8, _i8))


@jit
def report(router, engine, requests, waiting, queued_tokens, kv_used, kv_all):
    """An engine says how loaded it is; every router hears it. Loads of the ranks of an instance are one."""
    for first in range(0, router.load.shape[0], router.rules.num_engines):
        row = router.load[first + router.port[engine]]
        row[REQUESTS] += requests
        row[WAITING] += waiting
        row[QUEUED_TOKENS] += queued_tokens
        row[KV_USED] += kv_used
        row[KV_ALL] += kv_all


@jit
def forget_report(router, port):
    """What was reported of a place is out of date."""
    for place in range(port, router.load.shape[0], router.rules.num_engines):
        for column in range(REQUESTS, SENT_LATELY):
            router.load[place, column] = 0
    router.truth[port] = 0
