"""Links: what operations move over, each a queue that is worked off on a clock of its own.

    add_link    a new link, or another direction of one that is there
    begin       an operation is given to a link
    end_next    the operation that is done first leaves its link

First in, first out: one operation at a time has the whole link. Fair: n operations have an nth of it each. The second
is counted in virtual time, which goes by at 1/n of real time: an operation ends when virtual time reaches what it was
at its beginning plus its work, so nothing is reckoned anew when others come and go. Both queues are lists in the order
of their ends. Two directions of one link are two links; where they share the medium, they have one queue.

`next_ns` is when something ends next: the loop of a run reads it, and nothing else, as long as nothing moves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from ..core.jit import PLAIN, entry, jit, struct
from ..core.journal import MOVE_COLUMNS
from ..core.units import NEVER_NS
from .operations import (
    DRAINING,
    ENDED,
    FAILED,
    MOVING,
    NO_ROW,
    OP_BEGIN,
    OP_BYTES,
    OP_END,
    OP_FRAGMENTS,
    OP_KIND,
    OP_LINK,
    OP_NEXT,
    OP_STATE,
    OP_WORK,
    Operations,
)

FIFO, FAIR, DELAY = range(3)
"""How a queue is worked off. DELAY: it is no link, each operation takes its own time beside the others."""

VIRTUAL = 1 << 12
"""Units of virtual time in a ns: rounding delays an operation by no more than its neighbours / 4096 ns."""


@struct
class Links:
    """l links over q queues.

    rates        (l, 3) float64: ns to set up, ns a fragment, ns a byte; see costs.links
    queue        (l,) the queue of a link
    up           (l,) 0: the link is down, what moves over it fails
    bytes, fragments, begun, busy_ns   (l,) given to it so far, in how many operations; ns of the link that they take
    fair         (q,) FIFO, FAIR or DELAY
    head, tail   (q,) first and last operation of a queue, linked by OP_NEXT
    active       (q,) operations in a queue
    virtual      (q,) virtual time at `since` (fair); since: (q,) ns
    next_ns      when the next operation of all ends
    logs         what has ended is noted; log, num_log: (room, 6) core.journal.MOVE_COLUMNS of each operation
    """

    rates: "f8[:,::1]"
    queue: "i8[::1]"
    up: "i8[::1]"
    bytes: "i8[::1]"
    fragments: "i8[::1]"
    begun: "i8[::1]"
    busy_ns: "i8[::1]"
    fair: "i8[::1]"
    head: "i8[::1]"
    tail: "i8[::1]"
    active: "i8[::1]"
    virtual: "i8[::1]"
    since: "i8[::1]"
    next_ns: "i8"
    logs: "b1"
    log: "i8[:,::1]"
    num_log: "i8"


def make_links(logs: bool = False) -> Links:
    """None. logs: what will move is noted when it ends."""
    integers = [np.zeros(0, np.int64) for _ in range(12)]
    return Links(np.zeros((0, 3)), *integers, NEVER_NS, logs, np.zeros((0, len(MOVE_COLUMNS)), np.int64), 0)


def add_link(
    links: Links, setup_ns: float, fragment_ns: float, ns_per_byte: float, fair: int = FIFO, beside: int = -1
) -> int:
    """A new link. Returns its number.

    beside   a link whose queue it shares (half duplex), by whose rule; -1: none
    """
    _add_link(links, float(setup_ns), float(fragment_ns), float(ns_per_byte), int(fair), int(beside))
    return int(links.queue.size) - 1


@entry
def _add_link(links, setup_ns, fragment_ns, ns_per_byte, fair, beside):
    n = links.queue.size
    rates = np.zeros((n + 1, 3), np.float64)
    for i in range(n):
        for column in range(3):
            rates[i, column] = links.rates[i, column]
    rates[n, 0], rates[n, 1], rates[n, 2] = setup_ns, fragment_ns, ns_per_byte
    links.rates = rates
    queue = links.head.size if beside < 0 else links.queue[beside]
    links.queue = _appended(links.queue, queue)
    links.up = _appended(links.up, 1)
    links.bytes = _appended(links.bytes, 0)
    links.fragments = _appended(links.fragments, 0)
    links.begun = _appended(links.begun, 0)
    links.busy_ns = _appended(links.busy_ns, 0)
    if beside >= 0:
        return
    links.fair = _appended(links.fair, fair)
    links.head = _appended(links.head, NO_ROW)
    links.tail = _appended(links.tail, NO_ROW)
    links.active = _appended(links.active, 0)
    links.virtual = _appended(links.virtual, 0)
    links.since = _appended(links.since, 0)


@jit
def _appended(values, value):
    out = np.zeros(values.size + 1, np.int64)
    for i in range(values.size):
        out[i] = values[i]
    out[values.size] = value
    return out


@jit
def begin(links, ops, row, link, num_bytes, fragments, work, now):
    """Give a RESERVED row to a link, which takes `work` ns for it alone (costs.links.transfer_ns)."""
    rows, queue = ops.rows, links.queue[link]
    rows[row, OP_STATE] = MOVING
    rows[row, OP_LINK], rows[row, OP_BYTES], rows[row, OP_FRAGMENTS] = link, num_bytes, fragments
    rows[row, OP_BEGIN], rows[row, OP_WORK] = now, work
    links.bytes[link] += num_bytes
    links.fragments[link] += fragments
    links.begun[link] += 1
    links.busy_ns[link] += work
    if links.fair[queue] == FAIR:
        _join(links, ops, row, queue, work, now)
    elif links.fair[queue] == DELAY:
        _wait_out(links, ops, row, queue, work, now)
    else:
        _line_up(links, ops, row, queue, work, now)
    _find_next(links, ops)


@jit
def _wait_out(links, ops, row, queue, work, now):
    """Beside all others: into the list by its end."""
    rows = ops.rows
    rows[row, OP_END] = now + work
    _insert(links, ops, row, queue)


@jit
def _line_up(links, ops, row, queue, work, now):
    """First in, first out: it starts when the one before it has ended."""
    rows, last = ops.rows, links.tail[queue]
    free = now if last == NO_ROW else max(now, rows[last, OP_END])
    rows[row, OP_END] = free + work
    rows[row, OP_NEXT] = NO_ROW
    if last == NO_ROW:
        links.head[queue] = row
    else:
        rows[last, OP_NEXT] = row
    links.tail[queue] = row
    links.active[queue] += 1


@jit
def _join(links, ops, row, queue, work, now):
    """Fair: into the list by the virtual time of its end, which OP_END holds until it is over."""
    rows, n = ops.rows, links.active[queue]
    if n > 0:
        links.virtual[queue] += (now - links.since[queue]) * VIRTUAL // n
    links.since[queue] = now
    rows[row, OP_END] = links.virtual[queue] + work * VIRTUAL
    _insert(links, ops, row, queue)


@jit
def _insert(links, ops, row, queue):
    """Into the list of a queue by its end, behind those that end then, too."""
    rows, end = ops.rows, ops.rows[row, OP_END]
    before, after = np.int64(NO_ROW), links.head[queue]
    while after != NO_ROW and rows[after, OP_END] <= end:
        before, after = after, rows[after, OP_NEXT]
    rows[row, OP_NEXT] = after
    if before == NO_ROW:
        links.head[queue] = row
    else:
        rows[before, OP_NEXT] = row
    if after == NO_ROW:
        links.tail[queue] = row
    links.active[queue] += 1


@jit
def _end_of(links, ops, queue):
    """When the first operation of a queue ends if nothing else comes."""
    head = links.head[queue]
    if head == NO_ROW:
        return NEVER_NS
    if links.fair[queue] != FAIR:
        return ops.rows[head, OP_END]
    left = max(ops.rows[head, OP_END] - links.virtual[queue], 0) * links.active[queue]
    return links.since[queue] + (left + VIRTUAL - 1) // VIRTUAL


@jit
def expected_end(links, ops, row):
    """When a moving operation ends if no other one comes to its link."""
    rows = ops.rows
    queue = links.queue[rows[row, OP_LINK]]
    if links.fair[queue] != FAIR:
        return rows[row, OP_END]
    end, before, n = links.since[queue], links.virtual[queue], links.active[queue]
    at = links.head[queue]
    while True:
        end += (max(rows[at, OP_END] - before, 0) * n + VIRTUAL - 1) // VIRTUAL
        if at == row:
            return end
        before, n, at = rows[at, OP_END], n - 1, rows[at, OP_NEXT]


@jit
def lengthen(links, ops, row, ns):
    """A moving operation takes `ns` longer than was thought, and whoever queues behind it waits: first in, first out.

    The measured clock knows how long a copy takes when it has been made.
    """
    rows = ops.rows
    link = rows[row, OP_LINK]
    rows[row, OP_WORK] += ns
    rows[row, OP_END] += ns
    links.busy_ns[link] += ns
    before, at = row, rows[row, OP_NEXT]
    while at != NO_ROW:
        rows[at, OP_END] = max(rows[at, OP_BEGIN], rows[before, OP_END]) + rows[at, OP_WORK]
        before, at = at, rows[at, OP_NEXT]
    _find_next(links, ops)


@jit
def _find_next(links, ops):
    links.next_ns = NEVER_NS
    for queue in range(links.head.size):
        links.next_ns = min(links.next_ns, _end_of(links, ops, queue))


@jit
def _note(links, row, is_fair, failed):
    """An operation that has ended: the link was its own from start_ns on, or, fair, partly."""
    if links.num_log == links.log.shape[0]:
        log = np.zeros((2 * links.num_log + 64, links.log.shape[1]), np.int64)
        for i in range(links.num_log):
            for column in range(log.shape[1]):
                log[i, column] = links.log[i, column]
        links.log = log
    to = links.log[links.num_log]
    to[0], to[1], to[3], to[4], to[5] = row[OP_LINK], row[OP_KIND], row[OP_END], row[OP_BYTES], np.int64(failed)
    to[2] = row[OP_BEGIN] if is_fair else row[OP_END] - row[OP_WORK]
    links.num_log += 1


def _end_next(links, ops):
    """The operation that ends next has ended. Returns its row: ENDED, or FAILED if it was aborted or its link is down.

    Ties go to the link that was made first. It may not be called before links.next_ns.
    """
    now, queue = links.next_ns, 0
    while _end_of(links, ops, queue) != now:
        queue += 1
    rows, row = ops.rows, links.head[queue]
    links.head[queue] = rows[row, OP_NEXT]
    if links.head[queue] == NO_ROW:
        links.tail[queue] = NO_ROW
    if links.fair[queue] == FAIR:
        links.virtual[queue] = max(links.virtual[queue], rows[row, OP_END])
        links.since[queue] = now
    links.active[queue] -= 1
    rows[row, OP_END] = now
    failed = rows[row, OP_STATE] == DRAINING or links.up[rows[row, OP_LINK]] == 0
    rows[row, OP_STATE] = FAILED if failed else ENDED
    if links.logs and links.fair[queue] != DELAY:
        _note(links, rows[row], links.fair[queue] == FAIR, failed)
    _find_next(links, ops)
    return row


end_next = jit(_end_next)


def _nothing_moves(links, ops):
    """Stands for `end_next` in a run without links, and is never called."""
    return NO_ROW


LAND_FUNCTION: Any = None if PLAIN else types.FunctionType(types.int64(Links.numba_type, Operations.numba_type))


@cache
def end_pointer(moves: bool) -> Any:
    """`end_next` as a function pointer: a run without links compiles none of it."""
    function = _end_next if moves else _nothing_moves
    return function if PLAIN else njit(LAND_FUNCTION.signature, cache=True, error_model="numpy")(function)
