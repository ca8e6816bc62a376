"""Who goes on from whom and who waits for whom: sessions of turns, forks, parallel calls that join, users.

    parent   whose prompt and answer stand in front of a request's own text
    after    whose end it waits for

A plain session is a chain in both. A fork goes on from an earlier turn than the last. A turn's calls go on from it side
by side; the next turn waits for all of them and holds their answers. A user's sessions follow each other in time only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from ..core.units import NS_PER_S, NS_PER_US
from . import lengths
from .draws import Purpose, Seeds, uniforms
from .keys import DEFAULT_NUM_PROMPTS
from .profile import stages

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Values = Mapping[str, Any]

_HISTORY = 8
"""Users: sessions of the mean length that each had before t = 0."""


@dataclass(frozen=True)
class Layout:
    """n rows in order of session, then position. Indices count rows; NONE is nobody.

    session     number of the session; first: its first row
    parent, after, joins   rows: gone on from, waited for, whose successors wait for this one too
    is_call     a parallel call of its parent; is_scan: one long prompt, seen once
    """

    session: I64
    first: I64
    parent: I64
    after: I64
    joins: I64
    is_call: Mask
    is_scan: Mask

    @property
    def num_sessions(self) -> int:
        return int(self.session[-1]) + 1

    @property
    def position(self) -> I64:
        """(n,) of a row in its session, from 0."""
        return np.arange(self.session.size) - self.first


def drawn(values: Values, name: str, seed: int, purpose: Purpose, size: int, phase: int, low: int = 1) -> I64:
    """(size,) whole numbers of the distribution under a key."""
    return lengths.whole_numbers(values[name], uniforms(seed, purpose, size, phase), name, low)


def number_of_requests(values: Values) -> int:
    """num_prompts, or what the stages bring in the mean, or the default."""
    if values["num_prompts"]:
        return int(values["num_prompts"])
    if values["arrivals.stages"]:
        return max(round(float(stages(values["arrivals.stages"]).amounts().sum())), 1)
    return DEFAULT_NUM_PROMPTS


def sessions(values: Values, seeds: Seeds, phase: int, n: int) -> Layout:
    """n rows of sessions; the last one is cut."""
    turns = drawn(values, "sessions.turns", seeds.lengths, Purpose.TURNS, n, phase)
    scan = _scans(values, seeds, phase, n)
    turns[scan] = 1
    starts = np.cumsum(turns) - turns
    num_sessions = int(np.searchsorted(starts, n))
    session = np.repeat(np.arange(num_sessions), turns[:num_sessions])[:n]
    first = starts[session]
    parent = _forked(values, seeds, phase, first)
    plain = Layout(session, first, parent, parent.copy(), np.full(n, NONE), np.zeros(n, np.bool_), scan[session])
    return _with_calls(plain, values, seeds, phase)


def _scans(values: Values, seeds: Seeds, phase: int, n: int) -> Mask:
    """(n,) by session."""
    share = values["sharing.scan_share"]
    if share == 0.0:
        return np.zeros(n, np.bool_)
    return uniforms(seeds.sharing, Purpose.SCAN, n, phase) < share


def _forked(values: Values, seeds: Seeds, phase: int, first: I64) -> I64:
    """(n,) the turn before, or for a share of the third and later turns any one before that."""
    n = first.size
    row = np.arange(n)
    parent = np.where(row == first, NONE, row - 1)
    share = values["sessions.fork_share"]
    if share == 0.0:
        return parent
    chosen = (row - first >= 2) & (uniforms(seeds.sharing, Purpose.FORK, n, phase) < share)
    u = uniforms(seeds.sharing, Purpose.FORK_FROM, n, phase)
    earlier = first + (u * np.maximum(row - first - 1, 0)).astype(np.int64)
    return np.where(chosen, earlier, parent)


def _with_calls(plain: Layout, values: Values, seeds: Seeds, phase: int) -> Layout:
    """Calls behind each turn that another one of its session follows; n rows in all, so fewer turns."""
    if values["agents.calls"] == 0:
        return plain
    n = plain.session.size
    calls = drawn(values, "agents.calls", seeds.lengths, Purpose.CALLS, n, phase, low=0)
    followed = np.append(plain.first[1:] == plain.first[:-1], False)
    calls[~followed] = 0
    place = np.cumsum(1 + calls) - (1 + calls)  # of each turn among all rows
    turn = np.repeat(np.arange(n), 1 + calls)[:n]
    row = np.arange(n)
    is_call = row != place[turn]
    parent_turn = plain.parent[turn]
    parent = np.where(is_call, place[turn], np.where(parent_turn == NONE, NONE, place[parent_turn]))
    # a turn waits for the first call of the turn before, which stands for all of them
    lead = place + (calls > 0)
    after = np.where(is_call, place[turn], np.where(parent_turn == NONE, NONE, lead[parent_turn]))
    joins = np.where(is_call & (row != lead[turn]), lead[turn], NONE)
    first = place[plain.first[turn]]
    return Layout(plain.session[turn], first, parent, after, joins, is_call, plain.is_scan[turn])


# ---------------------------------------------------------------- users


@dataclass(frozen=True)
class Users:
    """Rows of all users, one user after another, those before t = 0 included.

    virtual      (n,) before t = 0: said, but not asked in this run
    order        (m,) the rows that are asked, users by their first arrival
    arrival_ns   (n,) of a user's first real row; 0 else
    """

    layout: Layout
    virtual: Mask
    order: I64
    arrival_ns: I64


def users(values: Values, seeds: Seeds, phase: int, n: int) -> Users:
    """n real rows of `arrivals.users` users, each with a history before t = 0, so that t = 0 finds them anywhere.

    A user asks, has his answer after a response time (drawn for the history only), thinks, and asks again; his
    sessions follow one another. A user starts at a random moment far back, spread over a mean session.
    """
    count = min(values["arrivals.users"], n)
    if values["agents.calls"] != 0 or values["sharing.scan_share"]:
        raise UsageError("arrivals.process = users has neither agents.calls nor sharing.scan_share; remove them")
    mean_turns = float(drawn(values, "sessions.turns", seeds.lengths, Purpose.TURNS, 10_000, phase).mean())
    history = int(np.ceil(_HISTORY * mean_turns))
    quota = -(-n // count)
    spare = 16
    while True:
        found = _users_of(values, seeds, phase, count, history + quota + spare, mean_turns, history)
        rank = _rank_of_real(found.virtual, count)
        if int(((rank >= 0) & (rank < quota)).sum()) >= n:
            return _cut(found, rank, count, n)
        spare *= 4


def _users_of(
    values: Values, seeds: Seeds, phase: int, count: int, rows: int, mean_turns: float, history: int
) -> Users:
    """`rows` rows for each user."""
    n = count * rows
    turns = drawn(values, "sessions.turns", seeds.lengths, Purpose.TURNS, n, phase).reshape(count, rows)
    ends = np.minimum(np.cumsum(turns, axis=1), rows)
    lengths_cut = np.diff(ends, axis=1, prepend=0).ravel()
    session = np.repeat(np.cumsum(lengths_cut > 0) - 1, lengths_cut)
    row = np.arange(n)
    first = row[np.concatenate(([True], session[1:] != session[:-1]))][session]
    is_first = row % rows == 0
    after = np.where(is_first, NONE, row - 1)
    nothing = np.zeros(n, np.bool_)
    parent = _forked(values, seeds, phase, first)
    layout = Layout(session, first, parent, after, np.full(n, NONE), nothing, nothing)
    times = _virtual_times_us(values, seeds, phase, count, rows, mean_turns, history)
    return Users(layout, times < 0, row, times * NS_PER_US)


def _virtual_times_us(
    values: Values, seeds: Seeds, phase: int, count: int, rows: int, mean_turns: float, history: int
) -> I64:
    """(count * rows,) when each row would be asked if every answer took its drawn response time."""
    n = count * rows
    think = think_times_ns(values, seeds, phase, n).reshape(count, rows) // NS_PER_US
    u = uniforms(seeds.arrivals, Purpose.RESPONSE, n, phase)
    response = lengths.durations_ns(values["arrivals.response_s"], u, "arrivals.response_s") // NS_PER_US
    wait = think.copy()
    wait[:, 1:] += response.reshape(count, rows)[:, :-1]
    wait[:, 0] = 0
    mean_us = float((think.sum() + response.sum()) / n)
    spread = uniforms(seeds.arrivals, Purpose.USER_START, count, phase) * mean_turns * mean_us
    start = np.rint(spread - history * mean_us).astype(np.int64)
    return (start[:, None] + np.cumsum(wait, axis=1)).ravel()


def think_times_ns(values: Values, seeds: Seeds, phase: int, n: int) -> I64:
    """(n,) from the end of what a row waits for to its arrival."""
    return lengths.durations_ns(
        values["sessions.think_s"], uniforms(seeds.lengths, Purpose.THINK, n, phase), "sessions.think_s"
    )


def _rank_of_real(virtual: Mask, count: int) -> I64:
    """(n,) number of a real row among its user's, from 0; negative for a virtual one."""
    real = ~virtual.reshape(count, -1)
    rank: I64 = np.where(real, np.cumsum(real, axis=1) - 1, -1).ravel()
    return rank


def _cut(found: Users, rank: I64, count: int, n: int) -> Users:
    """The first n real rows, as many of each user as can be."""
    rows = rank.size // count
    chosen = np.flatnonzero(rank >= 0)
    chosen = chosen[np.argsort(rank[chosen], kind="stable")][:n]
    opens = rank == 0
    arrival = np.where(opens, found.arrival_ns, 0)
    if arrival.max(initial=0) > 1e9 * NS_PER_S:
        raise UsageError("arrivals.process = users: the first thinking lasts over 31 years; lower sessions.think_s")
    user_start = arrival.reshape(count, -1).max(axis=1)
    order = chosen[np.lexsort((chosen, user_start[chosen // rows]))]
    layout = found.layout
    after = np.where(opens, NONE, layout.after)
    return Users(
        Layout(layout.session, layout.first, layout.parent, after, layout.joins, layout.is_call, layout.is_scan),
        found.virtual,
        order,
        arrival,
    )
