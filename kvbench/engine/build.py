"""From a request table and settings to the state of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry
from ..core.journal import STEP_COLUMNS
from ..core.requests import I64, Requests
from ..costs.tables import NUM_RESOURCES, QUERY_SIZE, CostTables, add_prefill, clear, step_ns
from ..memory.links import Links, make_links
from ..memory.operations import Operations, make_operations
from ..memory.pool import FREE_ORDERS, make_pool
from ..prefix.block_hash import make_map
from ..prefix.eviction.own_file import find_policy
from ..prefix.eviction.policies import Policy
from ..prefix.keys import BlockKeys, block_keys
from ..prefix.radix import RadixTree, make_tree
from ..scheduler.calendar import make_calendar
from ..scheduler.mail import make_mail
from ..scheduler.rules import PREFILL_FIRST
from ..scheduler.shadow import make_shadow
from ..scheduler.side import make_side
from ..scheduler.stages import Stages
from ..scheduler.state import Engine, Journal, Sequences, Slots
from ..scheduler.state_columns import (
    NO_FAULT,
    NO_SEQ,
    NO_SLOT,
)
from ..tiers.copies import policy_of
from ..tiers.state import Storage, make_storage, make_tiers
from .arrival import Arrivals, arrivals
from .forking import check_requests, with_beams
from .lineage import lineage_table
from .rules import mixes_chunks, pool_kind, ratio_start, rules_of, tier_rules
from .sequences import make_sequences
from .settings import EngineSettings, check_rules, is_prefill_first

_CALENDAR_BLOCK_TOKENS = 4
"""Below, nearly every decode opens a block, and the calendar only adds work."""

_RECOMPUTE_TOKENS = 2048
"""A prefill step in which weights are read once for many tokens; a lone block would be charged for all of them."""

_RING_ORDERS = ("append", "sorted-front")


COUNTED_FROM_ZERO = (
    "num_plan batch_size batch_is_full num_ends num_sorts blocked_need num_leavers num_victims "
    "num_waiting now began evicted_before control num_done decode_seqs decode_rows decode_context "
    "prefill_seqs prefill_tokens table_blocks context num_flight device_end host_ns exposed_host_ns device_ns "
    "step_clock decode_clock step_prefill_ns step_model_ns flight_prefill_ns num_copies copy_bytes "
    "copied_blocks num_forks shared_slack internal_slots external_slots num_steps decode_steps outside_steps "
    "prefill_steps sum_prefill_tokens sum_decode_tokens matched_tokens admitted_prompt_tokens recomputed_tokens "
    "preemptions used_peak used_us waste_us table_us internal_us external_us busy_us busy_ns empty_plans "
    "coming coming_tokens batch_tokens running_tokens processed_tokens num_queued num_sightings steps_planned"
).split()
"""Scalars of an engine that are 0 at t = 0. One that stands nowhere is an error, not a zero."""


@dataclass(frozen=True)
class Shared:
    """What all engines of a run share: requests, their sequences, keys of their blocks; what moves, and over what."""

    requests: Requests
    seqs: Sequences
    block_keys: BlockKeys
    operations: Operations
    links: Links
    storage: Storage
    beam_rank: I64
    """(sequences,) place of a beam among its request's at t = 0."""


def share(
    requests: Requests, settings: EngineSettings, keys: BlockKeys | None = None, taken: Arrivals | None = None
) -> Shared:
    """At t = 0. UsageError: no engine with these rules could run these requests.

    keys   of the blocks of these requests, where they are known and there are no beams
    taken  what becomes of the requests at arrival, where that is not what one engine of these settings makes of them
    """
    requests.check()
    check_rules(settings)
    requests = with_beams(requests, settings)
    check_requests(requests, settings)
    if keys is None or settings.beam.width:
        keys = block_keys(requests, settings.block_tokens)
    seqs = make_sequences(requests, settings, taken or arrivals(requests, settings))
    rank = np.arange(seqs.request.size) - seqs.first[seqs.request]
    links = make_links(settings.record_steps)
    longest = int((requests.prompt_tokens + requests.output_tokens).max()) // settings.block_tokens + 2
    storage = make_storage(settings.tiers.store, links, longest, settings.seed, settings.check)
    return Shared(requests, seqs, keys, make_operations(), links, storage, rank)


def build_engine(
    shared: Shared,
    settings: EngineSettings,
    costs: CostTables,
    *,
    number: int = 0,
    log: int = 0,
    tells_first: bool = False,
    tells_blocks: bool = False,
) -> Engine:
    """State of an engine at t = 0. log: how many evictions to record, for tests. tells_first: see Engine.

    tells_blocks   its cache keeps a list of what it has and has no more, see prefix.changes
    """
    if settings.cache.num_blocks < 1:
        raise UsageError(f"cache.blocks is {settings.cache.num_blocks}; give the engine at least one block")
    seqs, sizes = shared.seqs, _sizes(shared, settings)
    parts = {
        "seqs": seqs,
        "slots": _slots(sizes.slots, sizes.table),
        "rules": rules_of(settings, is_prefill_first(settings)),
        "block_keys": shared.block_keys,
        "calendar": make_calendar(runs_calendar(settings), settings.block_tokens, sizes.slots),
        "costs": costs,
        "operations": shared.operations,
        "links": shared.links,
        **_memory(shared, settings, costs, sizes, log, tells_blocks or settings.tiers.writes_back),
        **_surroundings(settings, sizes),
        "tells_first": tells_first,
        "ended_head": NO_SEQ,
        "ended_tail": NO_SEQ,
        "number": number,
        "ratio": ratio_start(settings),
        "shuffle_state": np.uint64(settings.seed % (1 << 63)),
        "record_steps": settings.record_steps,
        "overlap": settings.overlap,
        "heads_seen": np.zeros(int(seqs.head.max()) + 1, np.int64),
        "lineage": lineage_table(shared.requests) if settings.cache.copy_on_write else np.zeros((0, 4), np.int64),
        "beam_rank": shared.beam_rank,
    }
    values = dict.fromkeys(COUNTED_FROM_ZERO, 0) | _scratch(settings, sizes.slots, sizes.table) | parts
    return Engine(*(values[name] for name in Engine.fields))


@dataclass(frozen=True)
class _Sizes:
    """sequences of the run, slots of the engine, table: the most blocks that one of them has."""

    sequences: int
    slots: int
    table: int


def _sizes(shared: Shared, settings: EngineSettings) -> _Sizes:
    rules, seqs, bt = settings.scheduler, shared.seqs, settings.block_tokens
    num = int(seqs.request.size)
    slots = min(rules.max_running_requests if is_prefill_first(settings) else rules.most_admitted, num) + 4
    slots *= 2 if settings.cache.copy_on_write else 1  # as many for kept tables
    if settings.role != "both":  # sequences that hold memory and do not run, for which memory is the only bound
        shortest = int(shared.requests.prompt_tokens.min())
        slots = min(slots + settings.cache.num_blocks // -(-shortest // bt), num + 4)
    longest = int((seqs.prompt + np.maximum(seqs.max_tokens, seqs.output)).max())
    if settings.cache.allocation != "paged":  # a whole stretch
        longest = max(settings.max_model_len, 2 * longest)
    return _Sizes(num, slots, min(-(-(longest + 1) // bt) + 1, settings.cache.num_blocks + 1))


def _memory(
    shared: Shared, settings: EngineSettings, costs: CostTables, sizes: _Sizes, log: int, tells_blocks: bool
) -> dict[str, Any]:
    """The pool, the cache of either kind, and the tiers behind it."""
    kind, blocks, bt = pool_kind(settings), settings.cache.num_blocks, settings.block_tokens
    policy = eviction(settings)
    block_ns = block_costs(policy, costs, bt, sizes.table)
    is_tree, is_map = kind == "radix", kind == "hash"
    return {
        "pool": make_pool(blocks, free_order(settings)),
        "tree": radix_tree(settings, blocks, policy, block_ns, log, tells_blocks) if is_tree else make_tree(1, "lru"),
        "hashes": make_map(blocks, log, policy, block_ns, settings.seed, tells_blocks) if is_map else make_map(1),
        "tiers": make_tiers(
            tier_rules(settings),
            shared.storage,
            shared.links,
            sizes.sequences,
            sizes.slots,
            sizes.table,
            block_costs(policy_of(settings.tiers.eviction), costs, bt, sizes.table),
            settings.seed,
            settings.check,
        ),
        "shadow": make_shadow(blocks, settings.check and not settings.cache.copy_on_write),
    }


def _surroundings(settings: EngineSettings, sizes: _Sizes) -> dict[str, Any]:
    """What stands between the engine and others: text stages, the other side of a pair, mail, and the journal."""
    rules = settings.scheduler
    steps = 1024 if settings.record_steps else 0
    return {
        "stages": Stages(
            settings.serial_tokenizer,
            settings.tokenize_ns_per_request,
            settings.tokenize_ns_per_token,
            0,
            settings.detokenize_ns,
            settings.output_ns_per_token,
            0,
            settings.detokenize_ns,
        ),
        "side": make_side(
            settings.role,
            sizes.sequences,
            sizes.slots,
            places=rules.max_running_requests if is_prefill_first(settings) else 0,
            rows=rules.max_running_requests + settings.preallocated_requests,
            fails=settings.fails_with_transfer,
            reserved=settings.reserved_decode_tokens,
            poll_interval=settings.poll_interval,
        ),
        "journal": Journal(
            np.empty(4096, np.int64), np.empty(4096, np.int64), 0, np.empty((steps, len(STEP_COLUMNS)), np.int64), 0
        ),
        "inbox": make_mail(),
        "outbox": make_mail(),
        "landed": make_mail(),
    }


def _scratch(settings: EngineSettings, num_slots: int, max_blocks: int) -> dict[str, Any]:
    """What a step writes anew, and lists that are empty."""
    return {
        "plan": np.zeros((num_slots + 4, 4), np.int64),
        "keys": np.zeros(max(max_blocks, num_slots) + 64, np.int64),
        "query": np.zeros(QUERY_SIZE, np.float64),
        "alone": np.zeros(NUM_RESOURCES, np.int64),
        "resources": np.zeros(NUM_RESOURCES, np.int64),
        "batch": np.zeros(num_slots + 4, np.int64),
        "chunk": NO_SLOT,
        "budget": np.zeros(4, np.float64),
        "blocked_seq": NO_SEQ,
        "backlog": False,
        "carries_prefill": False,
        "holds_prefill": False,
        "last_prefill": -settings.scheduler.prefill_schedule_interval,
        "ends": np.zeros((2, 2 * num_slots + 8), np.int64),
        "due_blocks": np.zeros(num_slots + 4, np.int32),
        "leavers": np.zeros(num_slots + 4, np.int64),
        "victims": np.zeros(num_slots + 4, np.int64),
        "flight": np.zeros((num_slots + 4 if settings.overlap else 1, 3), np.int64),
        "kept_head": NO_SLOT,
        "kept_tail": NO_SLOT,
        "copies": np.zeros((num_slots + 4, 2), np.int64),
        "forks": np.zeros((num_slots + 4, 3), np.int64),
        "queue_head": NO_SEQ,
        "queue_tail": NO_SEQ,
        "fault": NO_FAULT,
        "fault_seq": NO_SEQ,
    }


def runs_calendar(settings: EngineSettings) -> bool:
    """Whether the engine takes the calendar path."""
    return settings.fast and calendar_fits(settings) and settings.output_ns_per_token == 0


def calendar_fits(settings: EngineSettings) -> bool:
    """Where the calendar path gives what the step-by-step path gives, and is worth its bookkeeping."""
    s = settings.scheduler
    if is_ranked(settings):  # due blocks are registered in one go, without the depths a policy wants
        return False
    if settings.batching == "static" or settings.overlap or settings.block_tokens < _CALENDAR_BLOCK_TOKENS:
        return False
    if settings.cache.copy_on_write or settings.cache.allocation != "paged":
        return False
    if s.discipline == PREFILL_FIRST:
        return not mixes_chunks(s) and settings.cache.kind != "hash"
    return (
        s.policy == "fcfs"
        and (settings.cache.kind != "hash" or settings.cache.hit_same_step)
        and s.long_prefill_token_threshold == 0
        and s.prefill_schedule_interval == 1
        and not s.goes_by_time
        and s.most_admitted <= s.max_num_batched_tokens  # every running sequence decodes in every step
    )


def free_order(settings: EngineSettings) -> str:
    """The order given, where it fits the cache kind; a radix tree's pool is a ring, the others' a list."""
    order, kind = settings.cache.free_order, pool_kind(settings)
    if is_ranked(settings):  # blocks that nothing is lost with go first
        return "unhashed-first"
    if order in FREE_ORDERS and (order in _RING_ORDERS) == (kind == "radix"):
        return order
    if kind == "radix":
        return "append" if settings.block_tokens == 1 else "sorted-front"
    return "unhashed-first"


def radix_tree(
    settings: EngineSettings, blocks: int, policy: Policy, block_ns: I64, log: int = 0, tells: bool = False
) -> RadixTree:
    """An empty tree for so many blocks under the rules of the settings."""
    cache = settings.cache
    tail = max(cache.tlru_threshold - cache.tlru_next_prompt_estimate, 0) // settings.block_tokens
    return make_tree(
        blocks, policy, log, block_ns, settings.seed, keeps_age=cache.split_keeps_age, tail=tail, tells=tells
    )


def eviction(settings: EngineSettings) -> Policy:
    """The policy of the settings. UsageError: there is none of that name, or a user's own does not work."""
    return find_policy(settings.cache.eviction or "lru")


def is_ranked(settings: EngineSettings) -> bool:
    """Whether a policy orders the free blocks of a block-hash cache, and not the free queue (which is lru)."""
    return settings.cache.kind == "hash" and settings.cache.eviction not in ("", "lru")


def block_costs(policy: Policy, costs: CostTables | None, block_tokens: int, blocks: int) -> I64:
    """(blocks,) ns to compute the i-th block of a prompt again, where the policy asks; else empty.

    A block's share of a prefill step of _RECOMPUTE_TOKENS on top of what lies before it, all resources together.
    """
    if not policy.costs or costs is None:
        return np.zeros(0, np.int64)
    out = np.zeros(blocks, np.int64)
    _fill_block_costs(costs, block_tokens, _RECOMPUTE_TOKENS, out)
    return out


@entry
def _fill_block_costs(costs, block_tokens, step_tokens, out):
    query, resources = np.zeros(QUERY_SIZE, np.float64), np.zeros(NUM_RESOURCES, np.int64)
    for i in range(out.size):
        clear(query)
        add_prefill(costs, query, step_tokens, i * block_tokens)
        out[i] = step_ns(costs, query, resources) * block_tokens // step_tokens


def _slots(num_slots: int, max_blocks: int) -> Slots:
    return Slots(
        np.zeros((num_slots, 16), np.int64),
        np.zeros((num_slots, max_blocks), np.int32),
        np.arange(num_slots - 1, -1, -1),
        num_slots,
        NO_SLOT,
        NO_SLOT,
        0,
        0,
        0,
    )
