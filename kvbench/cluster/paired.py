"""A sequence on two engines, put together: its times, the parts of its life, what it moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..client.clients import DEADLINE, Clients, announce
from ..core.journal import NEVER, PARTS
from ..core.requests import I64, Requests
from ..engine.arrival import TAKEN, Arrivals, as_asked, of_fleet
from ..engine.attribution import Parts
from ..engine.build import Shared
from ..engine.sequences import make_sequences
from ..engine.settings import EngineSettings
from ..memory.links import Links, add_link
from ..metrics.pairs import PairTimes
from ..pairs.settings import PULL, PairRules
from ..pairs.state import (
    DEADLINES,
    DEAF,
    FAULT,
    HEARD,
    HEARING,
    IN_TIME,
    LATE,
    LINK_DOWN,
    LINK_UP,
    MUTE,
    Pairs,
    make_pairs,
)
from .fleet import Fleet

_TRANSFER = PARTS.index("transfer")


def make_pairs_of(rules: PairRules, shared: Shared, settings: EngineSettings, again: bool = False) -> Pairs:
    """Prefill legs of all sequences, with one token each, and the links between the two sides.

    again   what a dead engine had is sent again, else it fails
    """
    one = np.ones(len(shared.requests), np.int64)
    requests = replace(shared.requests, output_tokens=one, max_tokens=one)
    link = _links(rules, shared.links)
    faults = [(row.what, int(link[row.prefill, row.decode])) for row in happenings(rules)]
    legs = make_sequences(requests, settings, as_asked(requests, settings))
    return make_pairs(
        legs,
        link,
        faults=faults,
        again=again,
        lease_ns=rules.lease_ns,
        heartbeat_ns=rules.heartbeat_ns,
        pulls=rules.protocol == PULL,
        tells_unread=rules.tells_unread,
        hands_out=rules.hands_out,
        block_tokens=settings.block_tokens,
        block_bytes=rules.block_bytes,
        block_fragments=rules.block_fragments,
        layers=rules.layers,
        bootstrap_ns=rules.bootstrap_ns,
        arrival_ns=rules.arrival_ns,
    )


def taken_by(requests: Requests, fleet: Fleet) -> Arrivals:
    """Which requests a fleet takes, and with which lengths. Of two sides both have to take one."""
    if fleet.pairs is None:
        return of_fleet(requests, fleet.settings)
    one = np.minimum(requests.output_tokens, 1)
    prefills = replace(requests, output_tokens=one, max_tokens=np.minimum(requests.max_tokens, 1))
    first = of_fleet(prefills, [s for s in fleet.settings if s.role == "prefill"])
    second = of_fleet(requests, [s for s in fleet.settings if s.role == "decode"])
    reason = np.where(first.reason == TAKEN, second.reason, first.reason)
    return Arrivals(reason, second.max_tokens, np.where(reason == TAKEN, second.output, 0))


class Happening(NamedTuple):
    """The beginning or the end of a fault."""

    at_ns: int
    what: int
    prefill: int
    decode: int


_FAULTS = {
    "link-down": (LINK_DOWN, LINK_UP),
    "heartbeats-lost": (DEAF, HEARING),
    "notices-lost": (MUTE, HEARD),
    "router-late": (LATE, IN_TIME),
}


def happenings(rules: PairRules) -> list[Happening]:
    """Of all faults, in order of their numbers in Pairs.faults."""
    rows = []
    for fault in rules.faults:
        begins, ends = _FAULTS[fault.kind]
        rows.append(Happening(fault.at_ns, int(begins), fault.prefill, fault.decode))
        rows.append(Happening(fault.at_ns + fault.for_ns, int(ends), fault.prefill, fault.decode))
    return rows


def announce_faults(rules: PairRules, clients: Clients) -> None:
    """They happen at their times."""
    for number, row in enumerate(happenings(rules)):
        announce(clients, row.at_ns, DEADLINE, int(DEADLINES) * number + int(FAULT))


def _links(rules: PairRules, links: Links) -> I64:
    """(prefill engines, decode engines) number of the link between two; those that share one have the same."""
    shape = rules.num_prefill, rules.num_decode
    prefill, decode = np.indices(shape)
    shared = {"pair": prefill * shape[1] + decode, "prefill": prefill, "decode": decode, "all": prefill * 0}[rules.per]
    made: dict[int, int] = {}
    for number in np.unique(shared).tolist():
        made[number] = add_link(links, rules.setup_ns, rules.fragment_ns, rules.ns_per_byte, rules.fair)
    return np.vectorize(made.__getitem__, otypes=[np.int64])(shared)


def joined(sequences: Mapping[str, I64], pairs: Pairs) -> dict[str, I64]:
    """Both legs as one sequence: it begins to run on the prefill side, and what was done twice counts twice."""
    legs = pairs.legs.read()
    q = dict(sequences)
    q["scheduled"] = np.where(legs["scheduled"] != NEVER, legs["scheduled"], q["scheduled"])
    q["cached"] = legs["cached"]
    for name in ("recomputed", "preemptions", "spent"):
        q[name] = legs[name] + q[name]
    return q


def exposed(sequences: Mapping[str, I64], pairs: Pairs) -> tuple[I64, I64]:
    """(sequences,) ns between the end of the prefill and the first step of the decode: moving, and waiting for it.

    sequences   of the clients; one that never got so far ends with its end
    """
    p = pairs.read()
    computed, begun, arrived = p["computed_ns"], p["begun_ns"], p["arrived_ns"]
    began = np.where(sequences["scheduled"] != NEVER, sequences["scheduled"], sequences["finish"])
    is_two = (computed != NEVER) & (began != NEVER) & (p["handed"] == 1)
    gap = np.where(is_two, np.maximum(began - computed, 0), 0)
    until = np.where(arrived != NEVER, np.minimum(arrived, began), began)
    moving = np.where(is_two & (begun != NEVER), np.maximum(until - np.maximum(begun, computed), 0), 0)
    return moving, gap - moving


def with_decode_queue(parts: Parts, sequences: Mapping[str, I64], pairs: Pairs) -> Parts:
    """The wait on the decode side, which otherwise counts as a transfer, as a part of its own."""
    _, waiting = exposed(sequences, pairs)
    is_over = parts.ns[:, 0] != NEVER
    ns = np.concatenate([parts.ns, np.where(is_over, waiting, NEVER)[:, None]], axis=1)
    ns[is_over, _TRANSFER] -= waiting[is_over]
    return replace(parts, names=(*parts.names, "decode_queue"), ns=ns)


def pair_times(simulation_seqs: Mapping[str, I64], pairs: Pairs) -> PairTimes:
    """What the metrics want to know."""
    p, legs = pairs.read(), pairs.legs.read()
    tokens = simulation_seqs["prompt"]
    blocks = -(-tokens // p["block_tokens"])
    return PairTimes(
        p["computed_ns"],
        p["begun_ns"],
        p["arrived_ns"],
        p["freed_ns"],
        simulation_seqs["scheduled"],
        np.where(legs["engine"] >= 0, blocks * p["block_bytes"], 0),
        p["bytes"],
        p["attempt"],
        int(p["failed"]),
        int(p["expired"]),
        int(p["beats"]),
        bool(p["hands_out"]),
    )


def decode_columns(sequences: Mapping[str, I64], pairs: Pairs, began: I64) -> dict[str, I64]:
    """What is known of each sequence beside its times. began: (sequences,) first step on the decode side."""
    p, legs = pairs.read(), pairs.legs.read()
    moved = np.where(p["arrived_ns"] != NEVER, p["arrived_ns"] - p["begun_ns"], NEVER)
    return {
        "prefill_engine": legs["engine"],
        "decode_engine": np.where(p["handed"] == 1, sequences["engine"], NEVER),
        "prompt_computed_ns": p["computed_ns"],
        "decode_began_ns": began,
        "transfer_ns": np.where(p["begun_ns"] != NEVER, moved, NEVER),
        "transfer_bytes": p["bytes"],
        "attempts": p["attempt"],
    }
