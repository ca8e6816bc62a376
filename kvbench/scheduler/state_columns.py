"""Names of what the state's arrays hold: states of a sequence, columns of records, kinds."""

from __future__ import annotations

import numpy as np

# States of a sequence, complete: a terminal one holds no block and no operation.
(
    ARRIVED,
    TOKENIZING,
    ROUTED,
    WAITING,
    FETCHING,
    BOOTSTRAPPING,
    PREALLOCATED,
    PREFILLING,
    SENDING,
    TRANSFERRING,
    DECODING,
    PREEMPTED,
    DRAINING,
    FINISHED,
    CANCELLED,
    TIMED_OUT,
    FAILED,
    REFUSED,
) = (np.int64(i) for i in range(18))  # not int: Numba compiles a callee anew for each literal it is given
NUM_STATES = 18
STATE_NAMES = (
    "arrived tokenizing routed waiting fetching bootstrapping preallocated prefilling sending transferring "
    "decoding preempted draining finished cancelled timed_out failed refused"
).split()
FIRST_TERMINAL = FINISHED

_END = (CANCELLED, TIMED_OUT, FAILED)
TRANSITIONS: dict[np.int64, tuple[np.int64, ...]] = {
    ARRIVED: (TOKENIZING, REFUSED, *_END),
    TOKENIZING: (ROUTED, WAITING, REFUSED, *_END),
    ROUTED: (WAITING, BOOTSTRAPPING, *_END),
    WAITING: (FETCHING, PREFILLING, DECODING, BOOTSTRAPPING, PREALLOCATED, TRANSFERRING, *_END),
    FETCHING: (WAITING, PREFILLING, *_END),
    BOOTSTRAPPING: (WAITING, PREALLOCATED, *_END),
    PREALLOCATED: (TRANSFERRING, *_END),
    PREFILLING: (DECODING, SENDING, PREEMPTED, DRAINING, FINISHED, *_END),
    SENDING: (DRAINING, FINISHED, *_END),
    TRANSFERRING: (WAITING, PREFILLING, DECODING, DRAINING, *_END),
    DECODING: (PREEMPTED, DRAINING, FINISHED, *_END),
    PREEMPTED: (WAITING, FETCHING, PREFILLING, DECODING, FINISHED, *_END),  # finished: its last token was under way
    DRAINING: (FINISHED, *_END),
}
"""From each state, where a sequence may go. Terminal states are absent: nothing follows them."""

# Columns of a slot record (two cache lines).
(
    SEQ,
    COMPUTED,
    KNOWN,
    GENERATED,
    FINAL,
    BLOCKS,
    PUBLISHED,
    CHAIN,
    NODE,
    PHASE,
    NEXT,
    PREV,
    LAST_TOKEN,
    ORDER,
    SINCE,
    ROW,
) = range(16)
# COMPUTED   tokens whose KV is written. KNOWN: prompt + generated. FINAL: output tokens at which it ends
# BLOCKS     entries of its block table. PUBLISHED: of these, visible in the prefix cache
# CHAIN      hash of the last published block (hash cache). NODE: locked node (radix)
# INSERTED   the same column as CHAIN: leading blocks that it has put into the tree itself (radix)
# NEXT, PREV the running list, in the scheduler's order; NO_SLOT at the ends
# LAST_TOKEN ns at which the last token came out (-1: none yet). ORDER: number of its entry into the running list
# SINCE      calendar: decode step at which COMPUTED, KNOWN and GENERATED were true; -1 = they are true
# ROW        its row in the plan of this step
INSERTED = CHAIN

# PHASE of a slot
FREE_SLOT, IN_PREFILL, IN_DECODE, ENDED, FOLLOWS, KEPT, PARKED, LOADING, LOADED, LOST, DRAINS = range(11)
# FOLLOWS    copy on write: has a place and no memory; forks from a sequence of its request that computes the prompt
# KEPT       copy on write: not running; the table of a finished sequence that a later turn goes on from
# PARKED, LOADING, LOADED, LOST, DRAINS   of a prefill / decode pair: not running, see side
NO_SLOT = np.int64(-1)
NO_SEQ = np.int64(-1)

# Columns of Engine.lineage, one row a request (copy on write).
PARENT, COMMON, WANTED, KEPT_SLOT = range(4)
# PARENT     request that it goes on from; -1: none, or it has been admitted. COMMON: leading tokens that both have
# WANTED     requests that go on from it and have not been admitted. KEPT_SLOT: slot of its kept table, or NO_SLOT
NO_REQUEST = np.int64(-1)

# Columns of Engine.copies.
COPY_SOURCE, COPY_DESTINATION = range(2)

# Columns of a plan row.
PLAN_SLOT, PLAN_START, PLAN_TOKENS, PLAN_BLOCKS_BEFORE = range(4)

RADIX, HASHED, UNCACHED = range(3)
PAGED, CONTIGUOUS, BUDDY, ORACLE = range(4)
ALLOCATIONS = {"paged": PAGED, "contiguous": CONTIGUOUS, "buddy": BUDDY, "oracle": ORACLE}

CACHE_KINDS = {"radix": RADIX, "hash": HASHED, "none": UNCACHED}

# Faults that people reported of real engines, planted on request (Rules.planted: their sum).
(
    COUNT_RECOMPUTED,
    COUNT_REFUSED,
    LEAK_ON_CANCEL,
    TOKENS_FOR_BLOCKS,
    NO_REPEATS,
    NO_FENCE,
    FREE_TWICE,
    FREE_WHILE_WRITTEN,
    LEASE_OVER_READS,
    LOAD_UNHELD,
    WRITE_BACK_UNHELD,
    NO_NAMESPACE,
    NO_PARENT,
    FAILED_IS_DONE,
    MISS_KEEPS_MEMORY,
    FULL_KEY,
    WRONG_START,
    HALF_PERSISTED,
    CANCEL_FREES,
) = (1 << i for i in range(19))
PLANTED = {
    "count_recomputed_hits": COUNT_RECOMPUTED,
    "count_refused_hits": COUNT_REFUSED,
    "leak_on_cancel": LEAK_ON_CANCEL,
    "retract_tokens_for_blocks": TOKENS_FOR_BLOCKS,
    "insertions_never_repeat": NO_REPEATS,
    "no_fence": NO_FENCE,
    "free_overlap_slot_twice": FREE_TWICE,
    "free_while_written": FREE_WHILE_WRITTEN,
    "lease_over_reads": LEASE_OVER_READS,
    "load_unheld": LOAD_UNHELD,
    "write_back_unheld": WRITE_BACK_UNHELD,
    "tiers_ignore_namespace": NO_NAMESPACE,
    "copy_without_parent": NO_PARENT,
    "failed_copy_is_done": FAILED_IS_DONE,
    "miss_keeps_memory": MISS_KEEPS_MEMORY,
    "short_prefetch_keeps_key": FULL_KEY,
    "prefetch_from_wrong_start": WRONG_START,
    "prefix_persisted_in_part": HALF_PERSISTED,
    "cancelled_load_frees_twice": CANCEL_FREES,
}
"""Key `faults.<name>` -> its bit."""

# Why the loop cannot go on (Engine.fault); the Python side words them.
NO_FAULT, BAD_TRANSITION, STUCK, OUT_OF_KV, SHADOW = range(5)
