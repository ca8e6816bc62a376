"""Numbers of blocks of explicit token ids: equal numbers exactly where the ids are equal, in order of first appearance.

A block is hashed, looked up, and compared id by id with the block that it may equal; a prompt that repeats another
is compared with what followed there and not even hashed. Numbers are handed out in a row, so blocks that are new one
after the other, and later prompts that repeat them, are one run of keys.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..kernels.prefetch import prefetch

_WINDOW = 16
"""Blocks that are hashed before the first of them is looked up: their places in the table are on their way then."""

_HIGH = np.uint64(0xFFFFFFFF00000000)


@struct
class IdBlocks:
    """n blocks of bt ids.

    slots    open addressing: the upper half of a block's hash, and its number + 1 in the lower; 0 = empty
    hashes   (n,)
    place    (n,) where its ids begin: in the table of ids, or (below 0) at -1 - place of `own`
    own      ids of blocks that do not lie side by side in the table of ids; own_ids of them
    weights  (bt,) odd factors of the hash
    window   hashes of the next blocks
    """

    slots: "u8[::1]"
    hashes: "u8[::1]"
    place: "i8[::1]"
    count: "i8"
    own: "i8[::1]"
    own_ids: "i8"
    weights: "u8[::1]"
    window: "u8[::1]"


@jit
def make_id_blocks(bt):
    weights = np.empty(bt, np.uint64)
    x = np.uint64(0x9E3779B97F4A7C15)
    for i in range(bt):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        weights[i] = x | np.uint64(1)
    return IdBlocks(
        np.zeros(1024, np.uint64),
        np.zeros(64, np.uint64),
        np.zeros(64, np.int64),
        0,
        np.zeros(0, np.int64),
        0,
        weights,
        np.zeros(_WINDOW, np.uint64),
    )


@jit
def number_blocks(t, ids, start, num, out):
    """out[:num] = numbers of `num` blocks whose ids lie side by side from ids[start] on."""
    _reserve(t, num)
    slots, hashes, place, own, weights, window = t.slots, t.hashes, t.place, t.own, t.weights, t.window
    bt, count, mask = weights.size, t.count, np.uint64(slots.size - 1)
    guess, hashed = count, 0
    for b in range(num):
        begin = start + b * bt
        if guess < count and _is_same(ids, begin, ids, own, place[guess], bt):
            out[b] = guess
            guess += 1
            continue
        if b >= hashed:
            hashed = min(b + _WINDOW, num)
            for i in range(b, hashed):
                h = _hash(ids, start + i * bt, weights)
                window[i % _WINDOW] = h
                prefetch(slots, np.int64(h & mask))
        h = window[b % _WINDOW]
        at = np.int64(h & mask)
        found = np.int64(-1)
        while slots[at] != np.uint64(0):
            if (slots[at] ^ h) & _HIGH == np.uint64(0):
                other = np.int64(slots[at] & ~_HIGH) - 1
                if _is_same(ids, begin, ids, own, place[other], bt):
                    found = other
                    break
            at = (at + 1) & np.int64(mask)
        if found < 0:
            found = count
            slots[at] = (h & _HIGH) | np.uint64(count + 1)
            hashes[count], place[count] = h, begin
            count += 1
        out[b] = found
        guess = found + 1
    t.count = count


@jit
def number_gathered(t, ids, gathered):
    """Number of one block whose ids were gathered from several places, (bt,); they are kept where it is new."""
    _reserve(t, 1)
    slots, bt = t.slots, gathered.size
    mask = np.uint64(slots.size - 1)
    h = _hash(gathered, 0, t.weights)
    at = np.int64(h & mask)
    while slots[at] != np.uint64(0):
        if (slots[at] ^ h) & _HIGH == np.uint64(0):
            other = np.int64(slots[at] & ~_HIGH) - 1
            if _is_same(gathered, 0, ids, t.own, t.place[other], bt):
                return other
        at = (at + 1) & np.int64(mask)
    if t.own_ids + bt > t.own.size:
        t.own = _grown(t.own, 2 * t.own.size + 64 * bt)
    for i in range(bt):
        t.own[t.own_ids + i] = gathered[i]
    number = t.count
    slots[at] = (h & _HIGH) | np.uint64(number + 1)
    t.hashes[number], t.place[number] = h, -1 - t.own_ids
    t.own_ids += bt
    t.count = number + 1
    return number


@jit
def _hash(ids, begin, weights):
    """Indices are unsigned here: a signed one may count from the end, and that test keeps a loop from vectors."""
    h, at = np.uint64(0), np.uint64(begin)
    for i in range(np.uint64(weights.size)):
        h += np.uint64(ids[at + i]) * weights[i]
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    return h ^ (h >> np.uint64(32))


@inline
def _is_same(a, begin, ids, own, place, bt):
    """Whether bt ids of a are those of a block."""
    return _equal(a, begin, ids, place, bt) if place >= 0 else _equal(a, begin, own, -1 - place, bt)


@jit
def _equal(a, begin, b, other, bt):
    x, y = np.uint64(begin), np.uint64(other)
    if a[x] != b[y]:
        return False
    difference = np.int64(0)
    for i in range(np.uint64(bt)):
        difference |= a[x + i] ^ b[y + i]
    return difference == 0


@jit
def _reserve(t, num):
    """Room for so many new blocks, at most half of the slots taken."""
    need = t.count + num
    if need > t.place.size:
        t.hashes = _grown(t.hashes, max(2 * t.hashes.size, need))
        t.place = _grown(t.place, max(2 * t.place.size, need))
    size = t.slots.size
    if 2 * need <= size:
        return
    while 2 * need > size:
        size *= 4
    slots, hashes, mask = np.zeros(size, np.uint64), t.hashes, size - 1
    for number in range(t.count):
        h = hashes[number]
        at = np.int64(h & np.uint64(mask))
        while slots[at] != np.uint64(0):
            at = (at + 1) & mask
        slots[at] = (h & _HIGH) | np.uint64(number + 1)
    t.slots = slots


@jit
def _grown(array, size):
    out = np.zeros(size, array.dtype)
    for i in range(array.size):
        out[i] = array[i]
    return out
