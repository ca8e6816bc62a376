"""A heap of events (time_ns, kind, number, subject): the earliest first, ties by kind, then in the order of pushing."""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..core.units import NEVER_NS
from .rows import doubled

_TIME, KIND, _NUMBER, _SUBJECT = range(4)


@struct
class EventHeap:
    """rows: (capacity, 4), the first `size` are a heap. number: events pushed so far."""

    rows: "i8[:,::1]"
    size: "i8"
    number: "i8"


def make_event_heap() -> EventHeap:
    return EventHeap(np.zeros((64, 4), np.int64), 0, 0)


@inline
def first_time(heap):
    """Time of the earliest event, or NEVER_NS."""
    return heap.rows[0, _TIME] if heap.size > 0 else NEVER_NS


@inline
def _earlier(rows, a, b):
    for column in range(3):
        if rows[a, column] != rows[b, column]:
            return rows[a, column] < rows[b, column]
    return False


@inline
def _swap(rows, a, b):
    for column in range(4):
        rows[a, column], rows[b, column] = rows[b, column], rows[a, column]


@jit
def push_event(heap, time_ns, kind, subject):
    """Add an event. O(log n); the heap grows as needed."""
    at = heap.size
    if at == heap.rows.shape[0]:
        heap.rows = doubled(heap.rows)
    rows = heap.rows
    rows[at, _TIME] = time_ns
    rows[at, KIND] = kind
    rows[at, _NUMBER] = heap.number
    rows[at, _SUBJECT] = subject
    heap.number += 1
    heap.size = at + 1
    while at > 0 and _earlier(rows, at, (at - 1) >> 1):
        _swap(rows, at, (at - 1) >> 1)
        at = (at - 1) >> 1


@jit
def pop_event(heap):
    """Remove the earliest event. Returns (time, kind, subject)."""
    rows = heap.rows
    time_ns, kind, subject = rows[0, _TIME], rows[0, KIND], rows[0, _SUBJECT]
    n = heap.size - 1
    heap.size = n
    for column in range(4):
        rows[0, column] = rows[n, column]
    at = 0
    while True:
        least = at
        for child in range(2 * at + 1, 2 * at + 3):
            if child < n and _earlier(rows, child, least):
                least = child
        if least == at:
            break
        _swap(rows, at, least)
        at = least
    return time_ns, kind, subject
