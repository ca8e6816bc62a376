"""What no cache can exceed on a workload: bounds that stand beside a hit rate. Offline, from keys alone.

    infinite   nothing is ever evicted
    optimum    of that many blocks, with the future known (Belady; prefix.optimum says why prefixes cost nothing)

A *replay* without a clock is one request after another, prompts only: there the optimum is exact for a cache that
may keep or drop any block after each request, and so bounds every policy.

A *run* is bounded in the order in which it admitted its sequences, which is not that of arrival. What they generate
enters the cache too, and a later prompt may hit it: a visit looks up its prompt but for the last token, and leaves
prompt and output behind. A block need not be kept while any sequence that has it is between admission and end, and
nothing is taken from the capacity for what running sequences hold: a bound, which no policy can exceed in this order;
exact only where sequences do not overlap. It is the same without a prefix cache: what one could have given.
"""

from __future__ import annotations

import numpy as np

from ..core.journal import NEVER, HitBounds, Journal
from ..core.requests import I64, Requests
from ..engine.settings import EngineSettings
from ..prefix.keys import BlockKeys
from ..prefix.optimum import most_hits
from ..prefix.reuse import Reuses, Visits, find_reuses
from .warm import visited_blocks

_BEFORE, _AFTER = -1, np.iinfo(np.int64).max
"""Times before and after everything."""


def replay_reuses(requests: Requests, keys: BlockKeys, block_tokens: int) -> Reuses:
    """Prompts one after another, each with one sample: rank = request."""
    whole = requests.prompt_tokens // block_tokens
    rank = np.arange(len(requests))
    return find_reuses(keys, Visits(_first_sequences(requests), requests.namespace, whole, whole, rank, rank))


def id_reuses(requests: Requests) -> Reuses:
    """The same for the ids of a trace as opaque units, the last, partial one included: a segment is an id.

    An id is the same wherever it stands, so what is hit is bounded; exact where an id names a whole prefix.
    """
    request = np.repeat(np.arange(len(requests)), np.diff(requests.segment_offset))
    _, number = np.unique(requests.segment_stream, return_inverse=True)
    number, request = np.unique(np.stack([number, request]), axis=1)
    again = number[1:] == number[:-1]
    begin, end = request[:-1][again], request[1:][again]
    order = np.argsort(end, kind="stable")
    return Reuses(begin[order], end[order], np.ones(order.size, np.int64), 0, len(requests))


def run_bounds(requests: Requests, keys: BlockKeys, journal: Journal, settings: EngineSettings) -> HitBounds:
    """Bounds on the prompt tokens that a run found, sequences that were never admitted left out."""
    bt = settings.block_tokens
    reuses = find_reuses(keys, run_visits(requests, journal, settings))
    (optimum,) = most_hits(reuses, [settings.cache.num_blocks])
    return HitBounds(reuses.total * bt, optimum * bt)


def run_visits(requests: Requests, journal: Journal, settings: EngineSettings) -> Visits:
    """Visits of a run: those that prepared its cache, then its sequences in order of admission."""
    bt = settings.block_tokens
    before = visited_blocks(requests, settings.cache.state, bt)
    prepared = np.flatnonzero(before)
    admitted = np.flatnonzero(journal.scheduled_ns != NEVER)
    request = np.concatenate([prepared, journal.request_index[admitted]])
    prompt = requests.prompt_tokens[request]
    looked_up = (prompt - 1) // bt
    blocks = (prompt + requests.output_tokens[request]) // bt
    looked_up[: prepared.size], blocks[: prepared.size] = 0, before[prepared]
    earliest = np.full(prepared.size, _BEFORE)
    start = np.concatenate([earliest, journal.scheduled_ns[admitted]])
    finish = journal.finish_ns[admitted]
    end = np.concatenate([earliest, np.where(finish == NEVER, _AFTER, finish)])
    order = np.lexsort((looked_up, start))
    _, rank = np.unique(np.concatenate([start, end]), return_inverse=True)
    starts, ends = rank[: start.size], rank[start.size :]
    sequence = np.concatenate([_first_sequences(requests)[prepared], admitted])
    columns = (sequence, requests.namespace[request], looked_up, blocks, starts, ends)
    return Visits(*(np.ascontiguousarray(column[order], np.int64) for column in columns))


def _first_sequences(requests: Requests) -> I64:
    return np.concatenate(([0], np.cumsum(requests.samples)[:-1]))
