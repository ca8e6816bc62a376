"""What no cache can exceed on a workload: bounds that stand beside a hit rate. Offline, from keys alone.

    infinite   nothing is ever evicted
    routed     the same of engines apart, requests going where they went: what spreading them costs, whatever the memory
    optimum    of that many blocks, with the future known (Belady; prefix.optimum says why prefixes cost nothing)

Both follow the engine's rules for what is asked for and what is kept: a visit looks up its prompt but for the last
token, which is computed come what may, and leaves behind what has KV, all but the last token of its answer. Its *order*
is that in which sequences were admitted: of a run that of its own, of a replay one request after another.

A block need not be kept while any sequence that has it is between admission and end, and nothing is taken from the
capacity for what running sequences hold: a bound, which no policy can exceed in this order; exact only where sequences
do not overlap, and for a cache that may keep or drop any block after each. It is the same without a prefix cache: what
one could have given.

Copy on write takes over whole tables, so a sequence may begin with a part of a block, too: `forks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cluster.admissions import Admissions
from ..cluster.simulation import Simulation
from ..core.journal import NEVER, HitBounds
from ..core.requests import I64, Requests
from ..engine.lineage import lineage_table
from ..engine.settings import EngineSettings
from ..prefix.optimum import most_hits
from ..prefix.reuse import Reuses, Visits, find_reuses
from ..scheduler.state_columns import COMMON, NO_REQUEST, PARENT
from .visited import visited_tokens

_BEFORE, _AFTER = -1, np.iinfo(np.int64).max
"""Times before and after everything."""


@dataclass(frozen=True)
class Forks:
    """What copy on write can take over from another's table: (requests,) tokens; parts of these in a block."""

    tokens: I64
    part: I64


def run_bounds(simulation: Simulation) -> HitBounds:
    """Bounds on the prompt tokens that a run found, sequences that asked for none left out: of all tiers together."""
    requests, settings, admissions = simulation.requests, simulation.settings, simulation.admissions()
    bt, tiers = settings.block_tokens, settings.tiers
    states = [settings.cache.state, *([tiers.state, tiers.store.state] if tiers.on else [])]
    state = max(states, key=("cold", "prefilled", "warm").index)  # a bound: of the tier that knows most
    visits = visits_of(requests, admissions, bt, state)
    reuses = find_reuses(simulation.block_keys(), visits)
    forks = forks_of(requests, settings)
    blocks = sum(engine.cache.num_blocks + engine.tiers.host_blocks for engine in simulation.fleet.settings)
    blocks += tiers.store.blocks if tiers.on else 0
    (bounds,) = token_bounds(reuses, in_order(admissions), forks, bt, [blocks])
    several = len(simulation.fleet.settings) > 1 and simulation.fleet.router is not None and state == "cold"
    if not several or tiers.on or simulation.fleet.pairs is not None:
        return bounds
    apart = find_reuses(simulation.block_keys(), _of_engines(visits, in_order(admissions).engine))
    (routed,) = token_bounds(apart, in_order(admissions), forks, bt, [0])
    return replace(bounds, routed=routed.infinite)


def _of_engines(visits: Visits, engine: I64) -> Visits:
    """Nobody finds what another engine holds: namespaces of their own."""
    return replace(visits, namespace=visits.namespace * (int(engine.max(initial=0)) + 1) + engine)


def token_bounds(
    reuses: Reuses, admissions: Admissions, forks: Forks, block_tokens: int, capacities: Sequence[int]
) -> list[HitBounds]:
    """In tokens, for each capacity in blocks (0 = no bound). Admissions are in the order of the visits' last ones."""
    asked = admissions.asked == 1
    request = admissions.request[asked]
    found = reuses.found[-asked.size :][asked] * block_tokens
    infinite = int(np.maximum(found, forks.tokens[request]).sum())
    parts = int(forks.part[request].sum())
    return [HitBounds(infinite, min(infinite, hits * block_tokens + parts)) for hits in most_hits(reuses, capacities)]


def visits_of(requests: Requests, admissions: Admissions, block_tokens: int, state: str) -> Visits:
    """Those that brought the cache into its state, then sequences in order of admission."""
    bt, a = block_tokens, in_order(admissions)
    before = visited_tokens(requests, state) // bt
    prepared = np.flatnonzero(before[a.request_of])
    many = prepared.size
    kv_tokens = requests.prompt_tokens + np.maximum(requests.output_tokens, 1) - 1
    end = np.where(a.finish_ns == NEVER, _AFTER, a.finish_ns)
    earliest = np.full(many, _BEFORE)
    _, rank = np.unique(np.concatenate([earliest, a.scheduled_ns, end]), return_inverse=True)
    none = np.zeros(many, np.int64)
    request = np.concatenate([a.request_of[prepared], a.request])
    columns = (
        np.concatenate([prepared, a.sequence]),
        requests.namespace[request],
        np.concatenate([none, looked_up(requests, a, bt)]),
        np.concatenate([before[a.request_of[prepared]], kv_tokens[a.request] // bt]),
        rank[: request.size],
        np.concatenate([rank[:many], rank[request.size :]]),
        np.concatenate([none, a.asked]),
    )
    return Visits(*(np.ascontiguousarray(column, np.int64) for column in columns))


def looked_up(requests: Requests, admissions: Admissions, block_tokens: int) -> I64:
    """Whole blocks of each prompt without its last token; none where nothing was asked."""
    blocks: I64 = (requests.prompt_tokens[admissions.request] - 1) // block_tokens * admissions.asked
    return blocks


def in_order(admissions: Admissions) -> Admissions:
    """By time; at one time those that ask for less first, so that the others may find what these leave, and at last
    those that ask for nothing, so that nobody finds what is its own."""
    a = admissions
    return a.taken(np.lexsort((a.prompt, 1 - a.asked, a.scheduled_ns)))


def forks_of(requests: Requests, settings: EngineSettings) -> Forks:
    """A later turn takes what it repeats of the table of the turn before; a sample the prompt of another sample."""
    none = np.zeros(len(requests), np.int64)
    if not settings.cache.copy_on_write:
        return Forks(none, none)
    bt, most = settings.block_tokens, requests.prompt_tokens - 1
    lineage = lineage_table(requests)
    goes_on = lineage[:, PARENT] != NO_REQUEST
    before = np.where(goes_on, lineage[:, PARENT], 0)
    kept = (requests.prompt_tokens + requests.output_tokens - 1)[before]
    tokens = np.where(goes_on, np.minimum(np.minimum(lineage[:, COMMON], kept), most), 0)
    several = (requests.samples > 1) | (settings.beam.width > 1)
    return Forks(np.where(several, most, tokens), np.where(several, bt - 1, tokens % bt))


def id_reuses(requests: Requests, order: I64, counted: I64) -> Reuses:
    """The ids of a trace as opaque units, the last, partial one included: a segment is an id.

    An id is the same wherever it stands, so what is hit is bounded; exact where an id names a whole prefix.

    order    (n,) requests as they come. counted: (n,) 0 or 1
    """
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    rank = np.repeat(place, np.diff(requests.segment_offset))
    _, number = np.unique(requests.segment_stream, return_inverse=True)
    number, rank = np.unique(np.stack([number, rank]), axis=1)
    again = number[1:] == number[:-1]
    begin, end = rank[:-1][again], rank[1:][again]
    wanted = counted[order[end]] == 1
    begin, end = begin[wanted], end[wanted]
    by_end = np.argsort(end, kind="stable")
    ones = np.ones(by_end.size, np.int64)
    return Reuses(begin[by_end], end[by_end], ones, 0, len(requests), np.zeros(0, np.int64))
