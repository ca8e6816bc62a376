"""Which prefill and decode engines a fuzz drives, what goes wrong between them, and what must be so in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..cluster.fleet import Fleet, Member
from ..cluster.simulation import Simulation
from ..core.jit import still
from ..core.journal import FINISHED, NEVER, PARTIAL
from ..costs.tables import CostTables
from ..engine.settings import PREFILL_FIRST, EngineSettings
from ..pairs.settings import FAULTS, LAYERWISE, PULL, PUSH, Fault, PairRules
from ..routing.settings import RouterSettings
from ..scheduler.state_columns import HASHED, STATE_NAMES
from .fuzz_fleets import draw_incidents
from .fuzz_systems import LEAST_BLOCKS, MOST_BLOCKS, Combination

SPAN_NS = 150_000
ROUTERS = ("round-robin", "random", "least-loaded", "power-of-two", "session", "prefix-hash", "cache-aware")
FAR_NS = 10**9

STATES = {
    "token-budget": {
        "prefill": "waiting prefilling preempted sending finished cancelled failed",
        "decode": "arrived routed waiting transferring draining prefilling decoding preempted finished cancelled "
        "failed",
    },
    "prefill-first": {
        "prefill": "bootstrapping waiting prefilling sending finished cancelled failed timed_out",
        "decode": "arrived bootstrapping transferring waiting decoding preempted finished cancelled failed timed_out",
    },
}
"""By scheduler and side: what has to be visited."""


def draw_pair(rng: Generator, settings: EngineSettings, tables: CostTables, times: int = 1) -> Fleet:
    """One to three engines on each side, as large as one another, a link, time-outs, faults, deaths.

    times   as many faults and deaths, in as long
    """

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(0, len(values)))]

    push = settings.scheduler.discipline == PREFILL_FIRST
    protocol = PUSH if push else one_of(PULL, LAYERWISE)
    num_prefill, num_decode = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    more = {
        "fails_with_transfer": one_of(False, True),
        "reserved_decode_tokens": one_of(0, 2, 20),
        "preallocated_requests": one_of(0, 4),
    }
    blocks = [int(rng.integers(LEAST_BLOCKS, MOST_BLOCKS + 1)) for _ in range(2)]
    members = []
    for number in range(num_prefill + num_decode):
        decodes = number >= num_prefill
        cache = replace(settings.cache, num_blocks=blocks[int(decodes)])
        if decodes and push:
            cache = replace(cache, kind="none", eviction="lru")
        role: dict[str, Any] = {"role": "decode", **more} if decodes else {"role": "prefill"}
        members.append(Member(replace(settings, cache=cache, **role), tables))
    rules = PairRules(
        num_prefill=num_prefill,
        num_decode=num_decode,
        protocol=protocol,
        layers=0 if protocol == PULL else one_of(0, 1, 4),
        hands_out=protocol != LAYERWISE and one_of(False, True),
        tells_unread=one_of(True, True, False),
        lease_ns=one_of(3_000, 40_000, 200_000),  # a notice that is lost keeps memory until its end
        heartbeat_ns=one_of(0, 0, -1),
        bootstrap_ns=one_of(2_000, 30_000, FAR_NS),
        arrival_ns=one_of(2_000, 30_000, FAR_NS),
        block_bytes=100,
        block_fragments=2,
        setup_ns=one_of(0.0, 300.0, 20_000.0),
        fragment_ns=one_of(0.0, 2.0),
        ns_per_byte=one_of(0.1, 5.0, 30.0),
        per=one_of("pair", "prefill", "decode", "all"),
        fair=one_of(False, True),
        faults=tuple(
            Fault(
                one_of(*FAULTS),
                int(rng.integers(0, SPAN_NS * times)),
                int(rng.integers(1, SPAN_NS)),
                int(rng.integers(0, num_prefill)),
                int(rng.integers(0, num_decode)),
            )
            for _ in range(times * one_of(0, 1, 3))
        ),
    )
    router = RouterSettings(one_of(*ROUTERS), seed=int(rng.integers(0, 1 << 31)))
    incidents = draw_incidents(rng, num_prefill + num_decode, times)
    return Fleet(tuple(members), router, rules, incidents=incidents, sends_again=one_of(False, True))


def unvisited(c: Combination, visited: NDArray[np.int64]) -> list[str]:
    """States that no sequence was in. visited: (2, states) how often one was, of prefill and decode engines."""
    wanted = STATES[c.scheduler]
    return [
        f"{side} {name}"
        for row, side in enumerate(wanted)
        for name in wanted[side].split()
        if visited[row, STATE_NAMES.index(name)] == 0
    ]


def left_behind(simulation: Simulation) -> str:
    """What is not as it was before the run, or was handed out twice, as a sentence; "" when nothing is."""
    world, journal = still(simulation.world), simulation.journal()
    pairs = world.pairs
    for e in map(still, simulation.engines):
        free = e.pool.num_free + (0 if e.rules.cache_kind == HASHED else e.tree.evictable)
        for what, value, wanted in (
            ("free or cached blocks", free, e.pool.num_blocks),
            ("sequences with memory", e.slots.holders, 0),
            ("sequences that are held", e.side.num_holding + e.side.num_retracted, 0),
            ("sequences in a queue", e.side.num_queued + e.num_waiting, 0),
            ("places for first tokens", e.side.num_marks, e.side.marks.size),
            ("blocks under operations", int(np.count_nonzero(e.pool.in_flight)), 0),
        ):
            if value != wanted:
                return f"{what} of engine {e.number}: {value}, before the run {wanted}"
    tokens, done = journal.output_tokens, journal.status == FINISHED
    over = journal.finish_ns != NEVER
    parts = journal.parts_ns[over].sum(1) - (journal.finish_ns - journal.arrival_ns)[over]
    for what, count in (
        ("operations that are open", world.operations.open),
        ("prompts that are held", pairs.held),
        ("sequences that load a decode engine", int(np.abs(pairs.load).sum())),
        ("sequences that are not over", int((journal.status == PARTIAL).sum())),
        ("sequences that finished without all of their tokens", int((tokens != simulation.seqs.output)[done].sum())),
        ("tokens handed out twice, or never", int(abs(journal.itl_count.sum() - (tokens - 1)[tokens > 0].sum()))),
        ("sequences whose parts do not sum to their time", int(np.count_nonzero(parts))),
        ("finished sequences with a part below 0", int((journal.parts_ns[done] < 0).any(1).sum())),
    ):
        if count:
            return f"{what}: {count}"
    return ""
