"""Which request goes on from which: how many leading tokens a later turn has in common with the turn before it.

Compared by content, (stream, index) or explicit id, so a trace that only says "after" shares what it really repeats.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.requests import EXPLICIT, I64, NONE, Requests
from ..scheduler.state_columns import COMMON, KEPT_SLOT, NO_REQUEST, NO_SLOT, PARENT, WANTED

Run = tuple[int, int, int]
"""(stream, start, length); explicit ids lie at start in token_ids."""


def lineage_table(requests: Requests) -> I64:
    """(requests, 4) PARENT, COMMON, WANTED, KEPT_SLOT at t = 0; see scheduler.state_columns.

    A turn in another namespace shares nothing. What is refused at arrival counts as wanted until it comes.
    """
    table = np.full((len(requests), 4), 0, np.int64)
    table[:, PARENT], table[:, KEPT_SLOT] = NO_REQUEST, NO_SLOT
    for child in np.flatnonzero(requests.after != NONE).tolist():
        parent = int(requests.after[child])
        if requests.namespace[parent] != requests.namespace[child]:
            continue
        common = common_tokens(requests, parent, child)
        if common > 0:
            table[child, PARENT], table[child, COMMON] = parent, common
            table[parent, WANTED] += 1
    return table


def common_tokens(requests: Requests, parent: int, child: int) -> int:
    """Leading tokens of a prompt that are those of another request's prompt and first output."""
    before = [*_prompt(requests, parent), _output(requests, parent)]
    return _common(before, _prompt(requests, child), requests.token_ids)


def _prompt(r: Requests, request: int) -> Iterator[Run]:
    for g in range(int(r.segment_offset[request]), int(r.segment_offset[request + 1])):
        yield int(r.segment_stream[g]), int(r.segment_start[g]), int(r.segment_length[g])


def _output(r: Requests, request: int) -> Run:
    return int(r.output_stream[request]), int(r.output_start[request]), int(r.output_tokens[request])


def _common(before: list[Run], after: Iterator[Run], ids: I64) -> int:
    total = 0
    runs = iter(before)
    stream, start, left = next(runs)
    for other, at, length in after:
        while length > 0:
            while left == 0:
                following = next(runs, None)
                if following is None:
                    return total
                stream, start, left = following
            n = min(left, length)
            same = _same_tokens(stream, start, other, at, n, ids)
            total += same
            if same < n:
                return total
            start, left, at, length = start + n, left - n, at + n, length - n
    return total


def _same_tokens(stream: int, start: int, other: int, at: int, n: int, ids: I64) -> int:
    """How many of n tokens agree from the first on."""
    if stream != other:
        return 0
    if stream != EXPLICIT:
        return n if start == at else 0
    differ = np.flatnonzero(ids[start : start + n] != ids[at : at + n])
    return int(differ[0]) if differ.size else n
