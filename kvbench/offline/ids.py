"""The ids of a trace as opaque units in a plain LRU: the convention of figures published with such traces.

Leading ids that are present / ids, the last, partial one of a prompt included. Children may outlive their parents,
nothing is capped, answers do not take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.jit import entry
from ..core.requests import I64, Requests
from ..workload.rows import take_ragged


@dataclass(frozen=True)
class IdRows:
    """The ids of requests as they come, numbered from 0: request r has ids[offset[r] : offset[r + 1]].

    counted   (n,) 0 or 1: whether what it finds is counted. asked: ids of those that are
    """

    offset: I64
    ids: I64
    counted: I64
    num_ids: int
    asked: int


def id_rows(requests: Requests, order: I64, counted: I64) -> IdRows:
    """order: (n,) requests as they come. counted: (n,) 0 or 1."""
    lengths = np.diff(requests.segment_offset)
    _, ids = np.unique(requests.segment_stream, return_inverse=True)
    offset = np.concatenate(([0], np.cumsum(lengths[order])))
    in_order = take_ragged(ids.astype(np.int64), lengths, order)
    return IdRows(offset, in_order, counted[order], int(ids.max()) + 1, int(lengths[counted == 1].sum()))


def hit_rate_ids(rows: IdRows, capacity: int) -> float:
    """In an LRU of `capacity` ids (0 = no bound)."""
    found = _lru_ids(rows.offset, rows.ids, rows.counted, rows.num_ids, capacity or rows.ids.size)
    return float(found / max(rows.asked, 1))


@entry
def _lru_ids(offset, ids, counted, num_ids, capacity):
    """A doubly linked list over ids; record num_ids is its head (next = least recent)."""
    before = np.full(num_ids + 1, -1, np.int64)
    after = np.full(num_ids + 1, -1, np.int64)
    before[num_ids] = after[num_ids] = num_ids
    present, total = 0, 0
    for r in range(offset.size - 1):
        at = offset[r]
        while at < offset[r + 1] and before[ids[at]] >= 0:
            at += 1
        total += (at - offset[r]) * counted[r]
        for k in range(offset[r], offset[r + 1]):
            i = ids[k]
            if before[i] >= 0:
                after[before[i]] = after[i]
                before[after[i]] = before[i]
            else:
                present += 1
            last = before[num_ids]
            after[last], before[i] = i, last
            after[i], before[num_ids] = num_ids, i
        while present > capacity:
            oldest = after[num_ids]
            after[num_ids] = after[oldest]
            before[after[oldest]] = num_ids
            before[oldest] = -1
            present -= 1
    return total
