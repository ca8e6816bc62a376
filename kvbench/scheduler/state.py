"""The state of one engine: its slots (running sequences), its memory, its counters; and the sequences of all engines.

    Sequences   one row per sequence of the workload, for its whole life; the clients' and all engines'
    Slots       one row per place in the batch; a sequence has a slot while it holds memory
    Engine      both, the pool, the prefix cache, the plan of the step, and counters

Everything is an array or a scalar: the jitted verbs of this room change it in place.
"""

from __future__ import annotations

from ..core.jit import inline, struct, with_numbers_of
from ..costs.tables import CostTables
from ..memory.links import Links
from ..memory.operations import Operations
from ..memory.pool import BlockPool
from ..prefix.block_hash import HashMap
from ..prefix.keys import BlockKeys
from ..prefix.radix import RadixTree
from ..tiers.state import Tiers
from .calendar import Calendar
from .mail import Mail
from .rules import CacheRules, SchedulerRules
from .shadow import Shadow
from .side import Side
from .stages import Stages
from .state_columns import BAD_TRANSITION


@struct
class Sequences:
    """Arrays of shape (num_sequences,) unless said. Times in ns; -1 = has not happened.

    output       tokens it really produces: min of output, max_tokens and what the engine leaves; 0 = refused at arrival
    max_tokens   what the scheduler believes; SGLang clips it, see engine.arrival
    flagged      1 = cancelled while running, ends with its next token (prefill-first)
    spent        (num_sequences, 4) ns, see scheduler.spent
    present      leading tokens whose KV comes with it
    backed       whole blocks from its start that are copied to host memory, or being copied
    lost         tokens that were computed when it was preempted last
    asked        1 = its first admission looked for its prompt; who waits for another's prompt (FOLLOWS) asks for none
    matched      tokens that the last look for the order of the waiting list found cached (lpm, dfs-weight)
    entry        number of its last entry into the waiting list
    processed_then   Engine.processed_tokens at that time
    head         lpm: number of its first rules.in_batch_deprioritize_threshold tokens; equal numbers, equal tokens
    queue_next, queue_prev   the waiting list. ended_next: the list of the ended, see queues
    namespace, root   where it looks for its prefix, and where it found it: a flush gives a namespace another number
    engine       the one that it was given to; -1: none yet
    first        (requests + 1,): its sequences
    child, sibling   (requests,): the requests that arrive after it
    lead         (requests,) the request whose successors wait for it, mostly itself
    pending      (requests,) of a lead, how many sequences are not done yet
    """

    request: "i8[::1]"
    namespace: "i8[::1]"
    root: "i8[::1]"
    priority: "i8[::1]"
    prompt: "i8[::1]"
    output: "i8[::1]"
    max_tokens: "i8[::1]"
    cancel_after: "i8[::1]"
    flagged: "i8[::1]"
    state: "i8[::1]"
    engine: "i8[::1]"
    slot: "i8[::1]"
    generated: "i8[::1]"
    queue_next: "i8[::1]"
    queue_prev: "i8[::1]"
    ended_next: "i8[::1]"
    arrival: "i8[::1]"
    queued: "i8[::1]"
    scheduled: "i8[::1]"
    first_token: "i8[::1]"
    last_token: "i8[::1]"
    finish: "i8[::1]"
    asked: "i8[::1]"
    cached: "i8[::1]"
    present: "i8[::1]"
    backed: "i8[::1]"
    lost: "i8[::1]"
    matched: "i8[::1]"
    entry: "i8[::1]"
    processed_then: "i8[::1]"
    head: "i8[::1]"
    recomputed: "i8[::1]"
    preemptions: "i8[::1]"
    spent: "i8[:,::1]"
    first: "i8[::1]"
    lead: "i8[::1]"
    pending: "i8[::1]"
    child: "i8[::1]"
    sibling: "i8[::1]"


@struct
class Slots:
    """rec: (num_slots, 16) records. table: (num_slots, max_blocks) block ids. free: stack of slots.

    head, tail, running   the running list and its length. holders: slots that hold memory
    appended              entries into the running list so far
    """

    rec: "i8[:,::1]"
    table: "i4[:,::1]"
    free: "i8[::1]"
    num_free: "i8"
    head: "i8"
    tail: "i8"
    running: "i8"
    holders: "i8"
    appended: "i8"


@struct
@with_numbers_of(SchedulerRules)
@with_numbers_of(CacheRules)
class Rules:
    """The numbers of both classes of rules under their own names, and what follows from settings, made once.

    most_running       sequences that may run, by either discipline's key
    chunked, chunk_tokens   whether a step may take a part of a prompt; prefill-first: how much, in whole blocks
    watermark_blocks   blocks that an admission leaves free
    order              see waiting_order; priority: token-budget under policy priority
    ratio_start, ratio_min, ratio_decay   the new-token ratio at t = 0, its floor, and what a decode step takes off
    keeps         what is computed stays visible as a prefix; False: a ring of blocks whose tree stays empty
    backs_up      computed blocks are copied to host memory; tiered: they are found there
    fence         copied blocks are held until their copy has landed
    planted       sum of the planted faults' numbers
    allowed       (states, states) 1 = may follow
    """

    prefill_first: "b1"
    static: "b1"
    priority: "b1"
    cache_kind: "i8"
    allocation: "i8"
    keeps: "b1"
    block_tokens: "i8"
    max_model_len: "i8"
    most_running: "i8"
    chunked: "b1"
    chunk_tokens: "i8"
    watermark_blocks: "i8"
    order: "i8"
    ratio_start: "f8"
    ratio_min: "f8"
    ratio_decay: "f8"
    retract_by_priority: "b1"
    beam_width: "i8"
    beam_skew: "f8"
    beam_seed: "i8"
    planted: "i8"
    backs_up: "b1"
    tiered: "b1"
    fence: "b1"
    allowed: "i8[:,::1]"


@struct
class Journal:
    """gap, count: (rows,) inter-token gaps in ns and tokens that had them. steps: (rows or 0, 12)."""

    gap: "i8[::1]"
    count: "i8[::1]"
    rows: "i8"
    steps: "i8[:,::1]"
    num_steps: "i8"


@struct
class Engine:
    """One scheduler and one pool.

    plan           (rows, 4) this step's work; num_plan of them. keys: (blocks,) scratch for block keys
    batch, batch_size   prefill-first: slots of the last prefill batch, not merged yet
    chunk          prefill-first: the slot that is in the middle of its prefill
    budget         prefill-first: see prefill_first.REM_*
    blocked_seq, blocked_need   token-budget: the head of the queue that found no memory, and what it needed
    steps_planned, last_prefill, backlog   token-budget: steps that were not empty, the one of them that prefilled last,
                   and whether the last that might prefill left somebody waiting
    carries_prefill, holds_prefill   whether this step prefills, and whether it may not (prefill_interval)
    ends, num_ends   prefill-first: see known_ends
    batch_tokens, running_tokens   prefill-first: tokens computed in the last prefill batch, and in the one that the
                   running batch was; processed_tokens: of all steps, as hrrn counts them
    num_queued     entries into the waiting list so far; num_sightings: sorts of it that do not look at prefixes
    shuffle_state  of the random order. heads_seen: (heads,) the sort that saw a head last; num_sorts so far
    due_blocks     (slots,) scratch of a decode step
    leavers        (slots,) prefill-first: slots in the running list that have ended; num_leavers of them
    victims        (slots,) sequences preempted in this step, in order
    operations, links   what moves beside the steps, of all engines of the run
    inbox          what has reached it since its step began. outbox: what the cluster is told after a step
    tells_first    first tokens are told
    coming, coming_tokens   sequences that were sent to it and have not reached its inbox, and tokens of their prompts
    landed         operations that have ended since then
    ended_head, ended_tail   the list of sequences that are over and of which the clients have not been told
    num_done       sequences that ended here
    began          when the step under way began; evicted_before: blocks evicted before it was planned
    control        what Python has to do, a number of its own
    query, resources    of the cost tables
    empty_plans    steps in a row that found nothing to do
    decode_seqs, decode_context, prefill_seqs, prefill_tokens   of the step; decode_rows: decode_seqs without
                   the padding of a static batch
    overlap        a step is planned while the one before runs
    flight, num_flight   (rows, 3) rows of the step on the device, see scheduler.overlapped; device_end: when it ends
    host_ns, exposed_host_ns  host time of all steps; of it, what the device waited for
    device_ns      time in which the device computed
    step_clock, decode_clock   see scheduler.spent. step_prefill_ns: how much shorter the planned step would be without
                   its prefills, 0 = it has none; flight_prefill_ns: of the step on the device; alone: scratch
    step_model_ns  what the planned step takes by the cost tables
    table_blocks, context   sums of BLOCKS and COMPUTED over slots that hold memory
    lineage        (requests, 4) who goes on from whom, see state_columns; kept_head, kept_tail: kept tables by age
    beam_rank      (sequences,) place of a beam among its request's, 0 = best
    copies         (rows, 2) block copies of this step, in order; num_copies of them, copy_bytes in all
    copied_blocks  of all steps
    forks          (rows, 3) copy on write: tables taken over in this commit: donor, sequence, tokens; num_forks of them
    shared_slack   token slots that `table_blocks` counts again in shared partial blocks
    internal_slots, external_slots   of this step under reservations, see reservation
    *_us           time-weighted sums over steps, in block (or token) microseconds
    """

    seqs: "Sequences"
    slots: "Slots"
    rules: "Rules"
    pool: "BlockPool"
    tree: "RadixTree"
    hashes: "HashMap"
    block_keys: "BlockKeys"
    calendar: "Calendar"
    costs: "CostTables"
    operations: "Operations"
    links: "Links"
    tiers: "Tiers"
    stages: "Stages"
    shadow: "Shadow"
    side: "Side"
    journal: "Journal"
    plan: "i8[:,::1]"
    num_plan: "i8"
    keys: "i8[::1]"
    query: "f8[::1]"
    resources: "i8[::1]"
    batch: "i8[::1]"
    batch_size: "i8"
    chunk: "i8"
    batch_is_full: "b1"
    ratio: "f8"
    budget: "f8[::1]"
    ends: "i8[:,::1]"
    num_ends: "i8"
    batch_tokens: "i8"
    running_tokens: "i8"
    processed_tokens: "i8"
    num_queued: "i8"
    num_sightings: "i8"
    shuffle_state: "u8"
    heads_seen: "i8[::1]"
    num_sorts: "i8"
    blocked_seq: "i8"
    blocked_need: "i8"
    steps_planned: "i8"
    last_prefill: "i8"
    carries_prefill: "b1"
    holds_prefill: "b1"
    backlog: "b1"
    due_blocks: "i4[::1]"
    leavers: "i8[::1]"
    num_leavers: "i8"
    victims: "i8[::1]"
    num_victims: "i8"
    record_steps: "b1"
    queue_head: "i8"
    queue_tail: "i8"
    num_waiting: "i8"
    number: "i8"
    inbox: "Mail"
    outbox: "Mail"
    tells_first: "b1"
    coming: "i8"
    coming_tokens: "i8"
    landed: "Mail"
    ended_head: "i8"
    ended_tail: "i8"
    now: "i8"
    began: "i8"
    evicted_before: "i8"
    control: "i8"
    num_done: "i8"
    empty_plans: "i8"
    fault: "i8"
    fault_seq: "i8"
    decode_seqs: "i8"
    decode_rows: "i8"
    decode_context: "i8"
    prefill_seqs: "i8"
    prefill_tokens: "i8"
    table_blocks: "i8"
    context: "i8"
    overlap: "b1"
    flight: "i8[:,::1]"
    num_flight: "i8"
    device_end: "i8"
    host_ns: "i8"
    exposed_host_ns: "i8"
    device_ns: "i8"
    step_clock: "i8"
    decode_clock: "i8"
    step_prefill_ns: "i8"
    step_model_ns: "i8"
    flight_prefill_ns: "i8"
    alone: "i8[::1]"
    lineage: "i8[:,::1]"
    kept_head: "i8"
    kept_tail: "i8"
    beam_rank: "i8[::1]"
    copies: "i8[:,::1]"
    num_copies: "i8"
    copy_bytes: "i8"
    copied_blocks: "i8"
    forks: "i8[:,::1]"
    num_forks: "i8"
    shared_slack: "i8"
    internal_slots: "i8"
    external_slots: "i8"
    num_steps: "i8"
    decode_steps: "i8"
    prefill_steps: "i8"
    outside_steps: "i8"
    sum_prefill_tokens: "i8"
    sum_decode_tokens: "i8"
    matched_tokens: "i8"
    admitted_prompt_tokens: "i8"
    recomputed_tokens: "i8"
    preemptions: "i8"
    used_peak: "i8"
    used_us: "i8"
    waste_us: "i8"
    table_us: "i8"
    internal_us: "i8"
    external_us: "i8"
    busy_us: "i8"
    busy_ns: "i8"


@inline
def set_state(e, seq, state):
    """Move a sequence along the table of states; a move that is not in it is a fault of the engine."""
    if e.rules.allowed[e.seqs.state[seq], state] == 0:
        e.fault = BAD_TRANSITION
        e.fault_seq = seq
    e.seqs.state[seq] = state
