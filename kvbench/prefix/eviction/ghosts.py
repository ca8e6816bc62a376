"""Names of what was evicted not long ago: a ring in order of eviction, and a table that finds a name in it.

A name is the chain hash of a prefix through the first block of what left: the same prefix, the same name. The oldest
are forgotten when the blocks behind the names exceed a limit.
"""

from __future__ import annotations

import numpy as np

from ...core.jit import jit, struct

NO_PLACE = -1


@struct
class Ghosts:
    """name, length   (twice the limit,) ring: chain hash (0 = recalled) and blocks; `count` of them from `head` on
    table             (power of two,) ring place + 1 of a name, 0 = empty
    blocks, limit     of the names in the ring; at most
    """

    name: "i8[::1]"
    length: "i8[::1]"
    table: "i8[::1]"
    head: "i8"
    count: "i8"
    blocks: "i8"
    limit: "i8"


def make_ghosts(limit: int) -> Ghosts:
    """Nothing remembered. A name stands for one block at least, so there are at most `limit`."""
    size = 1 << (2 * max(limit, 1)).bit_length()
    room = 2 * limit + 1
    return Ghosts(np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(size, np.int64), 0, 0, 0, limit)


@jit
def _home(name, mask):
    return np.int64((np.uint64(name) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@jit
def _find(ghosts, name):
    """Place in the table, or NO_PLACE."""
    table, names = ghosts.table, ghosts.name
    mask = table.size - 1
    at = _home(name, mask)
    while table[at] != 0:
        if names[table[at] - 1] == name:
            return at
        at = (at + 1) & mask
    return NO_PLACE


@jit
def _drop(ghosts, at):
    """Delete an entry of the table with backward shift, and its name."""
    table, names = ghosts.table, ghosts.name
    mask = table.size - 1
    dropped = table[at] - 1
    look = at
    while True:
        look = (look + 1) & mask
        if table[look] == 0:
            break
        home = _home(names[table[look] - 1], mask)
        if ((look - home) & mask) >= ((look - at) & mask):
            table[at] = table[look]
            at = look
    table[at] = 0
    ghosts.blocks -= ghosts.length[dropped]
    names[dropped] = 0


@jit
def recall(ghosts, name):
    """True if a name is remembered; then it no longer is."""
    at = _find(ghosts, name)
    if at == NO_PLACE:
        return False
    _drop(ghosts, at)
    return True


@jit
def remember(ghosts, name, length):
    """Something of `length` blocks left; what is remembered longest gives way."""
    recall(ghosts, name)
    if length > ghosts.limit:
        return
    names, size = ghosts.name, ghosts.name.size
    while ghosts.blocks + length > ghosts.limit:
        oldest = names[ghosts.head]
        if oldest != 0:
            _drop(ghosts, _find(ghosts, oldest))
        ghosts.head = (ghosts.head + 1) % size
        ghosts.count -= 1
    if ghosts.count == size:
        _close_gaps(ghosts)
        names = ghosts.name
    place = (ghosts.head + ghosts.count) % size
    ghosts.count += 1
    ghosts.blocks += length
    names[place] = name
    ghosts.length[place] = length
    _enter(ghosts.table, name, place)


@jit
def _enter(table, name, place):
    mask = table.size - 1
    at = _home(name, mask)
    while table[at] != 0:
        at = (at + 1) & mask
    table[at] = place + 1


@jit
def _close_gaps(ghosts):
    """Move the names together; at least half of a full ring are gaps, so this is amortised O(1)."""
    size = ghosts.name.size
    names, lengths = np.zeros(size, np.int64), np.zeros(size, np.int64)
    n = 0
    for i in range(ghosts.count):
        place = (ghosts.head + i) % size
        if ghosts.name[place] != 0:
            names[n], lengths[n] = ghosts.name[place], ghosts.length[place]
            n += 1
    ghosts.name, ghosts.length, ghosts.head, ghosts.count = names, lengths, 0, n
    for at in range(ghosts.table.size):
        ghosts.table[at] = 0
    for place in range(n):
        _enter(ghosts.table, names[place], place)


@jit
def forget_all(ghosts):
    for i in range(ghosts.table.size):
        ghosts.table[i] = 0
    for i in range(ghosts.name.size):
        ghosts.name[i] = 0
    ghosts.head = ghosts.count = ghosts.blocks = 0
