"""WEKA Claude Code sessions (one JSON object a file, or one a line; a file or a folder) -> Requests.

    block_size, hash_id_scope      64; "local": an id means something in its own file only
    tool_tokens, system_tokens     the head of the first prompt
    requests[]                     t (s from the session's start), in, out (tokens), hash_ids, think_time, api_time (s)
      of type "subagent"           t, duration_ms, requests[] of its own

`hash_ids` covers whole blocks, in // block_size, and what is left over is given an id of its own here; or it has an id
for that too. A turn follows
on the one before it by think_time, or by what t and api_time leave. A subagent's t is when it had ended: it began
duration_ms earlier, beside its siblings. Its requests are a session of their own that follows on the request before
it; their t counts from its start, or from the session's in newer files. The request that waits for subagents is
timed by its own think_time, which runs from the request before them.
There is no clock between sessions: their starts are drawn (trace.rate), or a concurrency lets them in.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM, NONE, Requests
from ...core.units import NS_PER_S
from ..format import Format, names
from ..json_columns import F64, Row, number_column, turns
from ..options import TraceOptions
from ..prompts import of_ids
from ..records import documents
from ..rows import I64, Faults, mark_lengths, shown
from ..source import Trace
from ..table import request_table

BLOCK_TOKENS = 64

_MAX_BLOCK = 1 << 20
_MAX_S = 1e9
_SLACK_S = 1.0
"""t and think_time are rounded, each to about half a second."""


@dataclass
class Calls:
    """Requests of all files in order, flat; each list has one value for each.

    rows, places   the objects without their ids, and where each stands
    ids            (blocks,) int64, None where they are no list of ids
    chain          which conversation: a session's own or a subagent's
    parent         for the first request of a subagent the request before it; NONE else
    start_s        of that subagent, on the session's clock; NaN else
    """

    rows: list[Row] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    ids: list[I64 | None] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)

    chains: int = 0

    def new_chain(self) -> int:
        self.chains += 1
        return self.chains - 1

    def add(self, row: Any, place: str, chain: int, parent: int = NONE, start_s: float = np.nan) -> None:
        row = row if type(row) is dict else {}
        self.ids.append(_id_array(row.pop("hash_ids", None)))
        self.rows.append(row)
        self.places.append(place)
        self.chain.append(chain)
        self.parent.append(parent)
        self.start_s.append(start_s)


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a session or of a folder of them. UsageError: mixed block sizes, a file that is no session, and
    wrong requests unless they are skipped."""
    calls = Calls()
    sizes: dict[int, str] = {}
    base = warm = 0
    openings: list[tuple[Any, ...]] = []
    sessions = [(_with_requests(value, place), place) for source in trace.files for value, place in documents(source)]
    for session, place in sessions:
        sizes.setdefault(options.block_tokens or _block_size(place, session), place)
        first = len(calls.rows)
        _append(calls, session, place)
        if session.get("hash_id_scope", "local") == "local":
            base = _made_distinct(calls.ids[first:], base)
        openings.append(tuple((row.get("in"), row.get("out")) for row in calls.rows[first : first + 2]))
        warm += sum(v for v in (session.get("tool_tokens"), session.get("system_tokens")) if type(v) is int)
    if len(sizes) > 1:
        told = ", ".join(f"{size} in {name}" for size, name in sizes.items())
        raise UsageError(f"{trace.name}: mixed block sizes: {told}; put sessions of one size into a folder")
    notes: tuple[str, ...] = ()
    if len(sessions) > 1 and warm:
        notes = (
            f"ids are local to a file: tools and system prompts ({warm // len(sessions):,} tokens a session), which "
            "sessions would share in production, count as new in each",
        )
    notes += _fork_note(openings)
    if options.num_prompts > len(calls.rows):
        notes += (f"num_prompts asks for {options.num_prompts} requests, the trace has {len(calls.rows)}",)
    return _requests(calls, next(iter(sizes)), options, notes)


def _fork_note(openings: list[tuple[Any, ...]]) -> tuple[str, ...]:
    """Sessions that begin with the same two requests as another: kept, but no independent samples."""
    counts = Counter(map(repr, (opening for opening in openings if len(opening) == 2)))
    forked = sum(count for count in counts.values() if count > 1)
    if forked == 0:
        return ()
    return (f"{forked} of {len(openings)} sessions begin with the same two requests as another: forks of one session",)


FORMAT = Format(read, keys=names("requests", "requests block_size"), timed=False)


def _with_requests(session: Any, place: str) -> Row:
    if type(session) is not dict or not isinstance(session.get("requests"), list) or not session["requests"]:
        raise UsageError(f"{_placed(place)}: is no session: an object with requests is wanted")
    return session


def _placed(place: str) -> str:
    """With a line: that of a whole file is its first."""
    return place if re.search(r":\d+$", place) else f"{place}:1"


def _block_size(name: str, session: Row) -> int:
    size = session.get("block_size", BLOCK_TOKENS)
    if type(size) is not int or not 1 <= size <= _MAX_BLOCK:
        raise UsageError(f"{_placed(name)}: block_size is {shown(size)}, a number of tokens is wanted")
    return size


def _append(calls: Calls, session: Row, name: str) -> None:
    """The requests of one session, those of a subagent where it stands."""
    own, before, ended_s = calls.new_chain(), NONE, 0.0
    for i, entry in enumerate(session["requests"]):
        place = f"{name}: requests[{i}]"
        if type(entry) is dict and isinstance(entry.get("requests"), list):
            inner = calls.new_chain()
            for k, row in enumerate(entry["requests"]):
                opens = (before, _start_of(entry, row, ended_s)) if k == 0 else (NONE, np.nan)
                calls.add(row, f"{place}.requests[{k}]", inner, *opens)
            continue
        before = len(calls.rows)
        calls.add(entry, place, own)
        ended_s = _seconds(calls.rows[-1], "t") + _seconds(calls.rows[-1], "api_time")


def _start_of(entry: Row, first: Any, ended_s: float) -> float:
    """When a subagent's first request came, on the session's clock."""
    began = _seconds(entry, "t") - _seconds(entry, "duration_ms") / 1e3
    if began < ended_s - _SLACK_S:  # no room for the duration: t is its start
        began = _seconds(entry, "t")
    offset = _seconds(first, "t") if type(first) is dict else 0.0
    absolute = offset > _SLACK_S and offset >= began - _SLACK_S
    return offset if absolute else began + offset


def _seconds(row: Row, name: str) -> float:
    """A time that may be missing; what is wrong with one is said where the columns are checked."""
    value: Any = row.get(name)
    return float(value) if type(value) in (int, float) and 0 <= value <= _MAX_S else 0.0


def _id_array(ids: Any) -> I64 | None:
    """(blocks,) int64 (ids from 2**63 wrapped); None where it is no list of whole numbers >= 0."""
    if not isinstance(ids, list):
        return None
    try:
        found = np.array(ids) if ids else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        return None
    if found.ndim != 1 or found.dtype.kind not in "iu" or (found.size and found.dtype.kind == "i" and found.min() < 0):
        return None
    return found.astype(np.int64)


def _made_distinct(ids: list[I64 | None], base: int) -> int:
    """Ids of one file moved beyond those of the files before, in place. Returns the next base."""
    known = [row for row in ids if row is not None and row.size]
    if not known:
        return base
    low, high = min(int(row.min()) for row in known), max(int(row.max()) for row in known)
    if low >= 0 and high < MAX_STREAM // 16:
        for row in known:
            row += base
        return base + high + 1
    names, dense = np.unique(np.concatenate(known), return_inverse=True)
    for row, numbers in zip(known, np.split(dense, np.cumsum([row.size for row in known])[:-1]), strict=True):
        row[:] = numbers + base
    return base + int(names.size)


def _requests(calls: Calls, block: int, options: TraceOptions, notes: tuple[str, ...]) -> Requests:
    n = min(options.num_prompts or len(calls.rows), len(calls.rows))
    rows, ids = calls.rows[:n], calls.ids[:n]
    faults = Faults(n, lambda i: calls.places[i])
    faults.mark(np.array([not row for row in rows], np.bool_), lambda i: "is no request")
    prompt, output = number_column(rows, ("in",), faults), number_column(rows, ("out",), faults)
    t, api, think = (
        number_column(rows, (name,), faults, required=name == "t", whole=False, most=_MAX_S)
        for name in ("t", "api_time", "think_time")
    )
    mark_lengths(faults, prompt, output)
    faults.mark(np.array([row is None for row in ids], np.bool_), lambda i: "has no list of ids in hash_ids")
    counts = np.array([0 if row is None else row.size for row in ids], np.int64)
    faults.mark(
        (counts != prompt // block) & (counts != -(-prompt // block)),
        lambda i: f"{prompt[i]:.0f} tokens are {prompt[i] // block:.0f} whole blocks of {block}, not {counts[i]} ids",
    )
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    after, think_ns = _links(calls, kept, t, np.nan_to_num(api), think)
    chain = np.array(calls.chain, np.int64)[kept]
    prompt_tokens = prompt[kept].astype(np.int64)
    flat = np.concatenate([row for row in (ids[i] for i in kept) if row is not None])
    covered, ceil = _with_tails(flat, counts[kept], prompt_tokens, block)
    return request_table(
        kept.size,
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        session_id=np.unique(chain, return_inverse=True)[1].astype(np.int64),
        turn=turns(chain)[0],
        after=after,
        think_ns=think_ns,
        **of_ids(covered, ceil, prompt_tokens, block),
        notes=(*faults.note(), *notes),
    )


def _links(calls: Calls, kept: I64, t: F64, api: F64, think: F64) -> tuple[I64, I64]:
    """(kept,) predecessor among the kept rows, and ns from its end."""
    before = turns(np.array(calls.chain, np.int64)[kept])[1]
    parent, start_s = np.array(calls.parent, np.int64)[kept], np.array(calls.start_s)[kept]
    rank = np.full(t.size + 1, NONE, np.int64)
    rank[kept] = np.arange(kept.size)
    spawned = (before == NONE) & (parent != NONE)
    after = np.where(spawned, rank[parent], before)
    t, api, think = t[kept], api[kept], think[kept]
    left = np.where(spawned, start_s, t) - (t + api)[after]  # where there is no predecessor it is not used
    gap = np.where(spawned | np.isnan(think), np.maximum(left, 0.0), think)
    return after, np.where(after == NONE, 0, np.rint(gap * NS_PER_S)).astype(np.int64)


def _with_tails(ids: I64, counts: I64, prompt_tokens: I64, block: int) -> tuple[I64, I64]:
    """Ids and counts where tokens beyond the last whole block have an id too: their own, or a new one."""
    tail = counts < -(-prompt_tokens // block)
    ends = np.cumsum(counts)[tail]
    fresh = int(ids.max(initial=0)) + 1 + np.arange(ends.size)
    return np.insert(ids, ends, fresh), counts + tail
