"""The journal: rows an engine writes and metrics read. The only source of metrics.

One row per sequence, one (gap, count) row per step for inter-token latency, and, when asked for, one row
per step. All times are int64 ns from t = 0; NEVER (-1) means it did not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

NEVER = -1

# Status of a sequence at the end of a run.
FINISHED, CANCELLED, REFUSED, PARTIAL, FAILED, TIMED_OUT = range(6)
STATUS_NAMES = ("finished", "cancelled", "refused", "partial", "failed", "timed_out")

STEP_COLUMNS = (
    "start_ns",
    "duration_ns",
    "decode_seqs",
    "prefill_seqs",
    "prefill_tokens",
    "running",
    "waiting",
    "used_blocks",
    "cached_blocks",
    "tail_waste_tokens",
    "preempted",
    "evicted_blocks",
    "host_ns",
)
"""Columns of Journal.steps. used_blocks: referenced by a running sequence, during the step; cached_blocks: held by the
prefix cache alone; tail_waste_tokens: slots of used blocks that hold no token; host_ns: the host's part of the
duration, or under overlap what it did beside the step before."""


PARTS = ("tokenize", "queue", "prefill", "decode", "stall", "preempted", "transfer")
"""Columns of Journal.parts_ns: where the time from arrival to end went. They sum to it exactly.

tokenize    text to tokens before the queue, tokens to text at the end
queue       from there (and behind the client's own limit) to the start of the first step that computed one of its
            tokens, for whatever it waits (a place, memory, memory that a copy holds); of one that never ran, to its end
prefill     whole steps that computed a part of its prompt, up to its first token, decodes beside it included
decode      since then, what the steps would have taken without any prefill in them
stall       other people's steps: since the first token, what prefills added to the steps or took for themselves;
            before it, steps that computed nothing of its prompt (overlap: the one that ran when it was admitted)
preempted   from losing its memory to its next token of a step: waiting again and computing again
transfer    it had a place and no step ran: waiting for a copy or a transfer (copies on write are a part of their step)
"""


def no_parts() -> I64:
    """Of an engine that does not tell."""
    return np.zeros((0, len(PARTS)), np.int64)


def no_times() -> I64:
    """Of sequences that came as tokens."""
    return np.zeros(0, np.int64)


MOVE_COLUMNS = ("link", "kind", "start_ns", "end_ns", "bytes", "failed")
MOVE_KINDS = ("backup", "load", "prefetch", "store", "send", "weight", "timer")
"""See memory.operations."""


def no_moves() -> I64:
    """Nothing moved, or nobody noted it."""
    return np.zeros((0, len(MOVE_COLUMNS)), np.int64)


@dataclass(frozen=True)
class Journal:
    """What happened. Sequence arrays have shape (num_sequences,), in order of request, then sample.

    request_index    index into Requests
    sample           0.. within the request
    status           FINISHED ...
    arrival_ns       intended arrival (resolved for later turns of a session)
    queued_ns        tokenised and in the waiting queue
    tokenize_ns      of the time before its first step, what came before it was in a queue: a router's decision, and
                     what turned its text into tokens; empty: nothing did
    scheduled_ns     start of the first step that computed one of its tokens
    first_token_ns   first token handed out
    finish_ns        last token handed out; for a cancelled one, when it left
    cached_tokens    prompt tokens taken from the cache at the first admission
    output_tokens    tokens really produced
    recomputed_tokens  tokens computed again after a preemption (never counted as hits)
    preemptions      times it lost its memory
    itl_gap_ns, itl_count   (rows,) inter-token gaps and how many tokens had that gap
    steps            (num_steps or 0, len(STEP_COLUMNS))
    step_engine      (num_steps,) number of the engine of each step; empty: there is one
    parts_ns         (num_sequences or 0, len(part_names)); a row of NEVER for one that has not ended
    part_names       PARTS, and what only some runs have
    columns          what only some runs have for each sequence, (num_sequences,) by name; NEVER: not known. A name that
                     ends in _ns is a time
    moves            (n, 6) MOVE_COLUMNS of operations that have ended on links, where steps are kept
    link_names       of each link, by number
    itl_phase        (rows,) the phase in whose time each gap came, where phases are left out of results; else None
    """

    request_index: I64
    sample: I64
    status: I64
    arrival_ns: I64
    queued_ns: I64
    scheduled_ns: I64
    first_token_ns: I64
    finish_ns: I64
    cached_tokens: I64
    output_tokens: I64
    recomputed_tokens: I64
    preemptions: I64
    itl_gap_ns: I64
    itl_count: I64
    steps: I64
    parts_ns: I64 = field(default_factory=no_parts)
    tokenize_ns: I64 = field(default_factory=no_times)
    itl_phase: I64 | None = None
    moves: I64 = field(default_factory=no_moves)
    link_names: tuple[str, ...] = ()
    part_names: tuple[str, ...] = PARTS
    step_engine: I64 = field(default_factory=no_times)
    columns: Mapping[str, I64] = field(default_factory=dict)


@dataclass(frozen=True)
class TierCounters:
    """Totals of the tiers of a run, over its engines.

    written, refused, evicted, loaded   blocks: given a slot on the host for a copy, offered and given none, evicted
                 from the host, brought back to the device
    block_bytes  of the device
    bytes_*, busy_*   of the link between device and host, and the time it needs for them; down: copies out
    link_up, break_even, break_even_tokens, fetched, lost   see engine.break_even
    asked, arrived, truncated, stored   blocks that prefetches asked storage for, that came, that they ended without;
                 written to storage. store_*: of it and its links
    exposed_ns   how much longer steps took because loads had not arrived; slowed_ns: because copies ran beside them
    """

    host_blocks: int
    block_tokens: int
    block_bytes: int
    written: int
    refused: int
    evicted: int
    loaded: int
    bytes_down: int
    bytes_up: int
    busy_down_ns: int
    busy_up_ns: int
    exposed_ns: int
    slowed_ns: int
    link_up: float
    break_even: float
    break_even_tokens: int
    fetched: int
    lost: int
    store_blocks: int
    asked: int
    arrived: int
    truncated: int
    stored: int
    store_bytes_down: int
    store_bytes_up: int
    store_busy_down_ns: int
    store_busy_up_ns: int


@dataclass(frozen=True)
class Counters:
    """Totals of one run; integers, equal on every machine for the modelled clock."""

    end_ns: int
    num_steps: int
    decode_steps: int
    prefill_steps: int
    prefill_tokens: int
    decode_tokens: int
    matched_tokens: int
    """Prompt tokens taken from the cache at first admission."""
    admitted_prompt_tokens: int
    """Prompt tokens of first admissions: the denominator of the hit rate."""
    recomputed_tokens: int
    preemptions: int
    evicted_blocks: int
    inserted_blocks: int
    used_blocks_peak: int
    used_blocks_mean: float
    """Time-weighted over the steps."""
    tail_waste_tokens_mean: float
    tail_waste_share: float
    """Wasted slots / slots of used blocks, both time-weighted."""
    metadata_bytes: int
    num_blocks: int
    path: str
    """"step" or "calendar"."""
    busy_ns: int
    """Time in which a step ran."""
    host_ns: int
    """Time in which the host planned steps and dealt with their results."""
    exposed_host_ns: int
    """Of it, what the device waited for; the rest is hidden behind a running step (overlap)."""
    device_ns: int
    """Time in which the device computed."""
    num_engines: int = 1
    backup_blocks: int = 0
    """Blocks copied to host memory beside the steps."""
    backup_ns: int = 0
    """Time that their link was busy."""
    outside_steps: int = 0
    """Steps that were larger than what their step times were measured for."""
    unwritten_hits: int = 0
    """Check mode: blocks that were hit although they had never been computed, as the preset's engine allows."""
    saved_blocks_mean: float = 0.0
    """Entries of all block tables minus the blocks used, time-weighted: what sharing saves."""
    saved_blocks_share: float = 0.0
    """Of the entries of all block tables: the blocks without sharing."""
    copied_blocks: int = 0
    """Shared blocks that were copied because one of their holders wrote."""
    copied_bytes: int = 0
    """On each device."""
    kv_tokens_mean: float = 0.0
    """Token slots of used blocks that hold a token, time-weighted; the next three are those that hold none."""
    kv_reserved_mean: float = 0.0
    """Will be written by the sequence that reserved them (reservations)."""
    kv_internal_mean: float = 0.0
    """Will never be, or lie in the unfilled tail of a table (paged)."""
    kv_external_mean: float = 0.0
    """Slots of free blocks while no stretch of them is long enough for the head of the queue (reservations)."""
    tiers: TierCounters | None = None
    """Where there are any."""


@dataclass(frozen=True)
class HitBounds:
    """What no cache can exceed on this workload, whatever its policy, in prompt tokens found.

    infinite   nothing is ever evicted
    optimum    of this many blocks, with the future known
    routed     nothing is ever evicted, but each engine has a cache of its own; None: one engine, or nobody knows
    """

    infinite: int
    optimum: int
    routed: int | None = None
