"""Which engine holds which block, as its events say: a table from chain hash to a set of engines.

Events come block by block, late, and some not at all, so nothing here is a tree: an engine may have a block and not
the one before it. What counts is how many blocks it has from the start of a prompt on.

What must always hold: an entry has an engine; an empty place ends every probe.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..kernels.prefetch import AHEAD, prefetch
from ..prefix.chain_hash import chain

WORD_BITS = 32
"""Engines to a word of int64: no shift comes near the sign."""


@struct
class BlockView:
    """table  (places, 1 + words) chain hash (0 = empty), and the set of engines; places is a power of two
    num       entries
    alive     (words,) scratch: a set of engines
    """

    table: "i8[:,::1]"
    num: "i8"
    alive: "i8[::1]"


def make_block_view(num_engines: int, room: int = 64) -> BlockView:
    """Nobody has anything. room: places to begin with, a power of two."""
    words = -(-num_engines // WORD_BITS)
    return BlockView(np.zeros((room, 1 + words), np.int64), 0, np.zeros(words, np.int64))


@inline
def _home(content, mask):
    return (content >> 7) & mask


@jit
def _find(table, content):
    """Place of a block, or the empty one that ends its probe."""
    mask = table.shape[0] - 1
    at = _home(content, mask)
    while table[at, 0] != 0 and table[at, 0] != content:
        at = (at + 1) & mask
    return at


@jit
def stored(view, content, engine):
    """An engine has a block."""
    at = _find(view.table, content)
    if view.table[at, 0] == 0:
        if 2 * (view.num + 1) > view.table.shape[0]:
            _enlarge(view)
            at = _find(view.table, content)
        view.table[at, 0] = content
        view.num += 1
    view.table[at, 1 + engine // WORD_BITS] |= np.int64(1) << (engine % WORD_BITS)


@jit
def removed(view, content, engine):
    """An engine has a block no more; one that was never stored (the event was lost) is no news."""
    at = _find(view.table, content)
    if view.table[at, 0] != 0:
        _remove(view, at, engine)


@jit
def _remove(view, at, engine):
    table = view.table
    table[at, 1 + engine // WORD_BITS] &= ~(np.int64(1) << (engine % WORD_BITS))
    for word in range(1, table.shape[1]):
        if table[at, word] != 0:
            return
    view.num -= 1
    mask = table.shape[0] - 1
    place = at
    while True:  # backward shift: no tombstones
        place = (place + 1) & mask
        if table[place, 0] == 0:
            break
        if ((place - _home(table[place, 0], mask)) & mask) >= ((place - at) & mask):
            for word in range(table.shape[1]):
                table[at, word] = table[place, word]
            at = place
    table[at, 0] = 0
    for word in range(1, table.shape[1]):
        table[at, word] = 0


@jit
def _enlarge(view):
    old = view.table
    view.table = np.zeros((2 * old.shape[0], old.shape[1]), np.int64)
    for i in range(old.shape[0]):
        if old[i, 0] != 0:
            at = _find(view.table, old[i, 0])
            for word in range(old.shape[1]):
                view.table[at, word] = old[i, word]


@jit
def drop_engine(view, engine):
    """An engine has nothing any more. O(places)."""
    old = view.table
    view.table = np.zeros(old.shape, np.int64)
    view.num = 0
    for i in range(old.shape[0]):
        if old[i, 0] == 0:
            continue
        old[i, 1 + engine // WORD_BITS] &= ~(np.int64(1) << (engine % WORD_BITS))
        left = np.int64(0)
        for word in range(1, old.shape[1]):
            left |= old[i, word]
        if left != 0:
            view.num += 1
            at = _find(view.table, old[i, 0])
            for word in range(old.shape[1]):
                view.table[at, word] = old[i, word]


@jit
def held_prefix(view, root, keys, n, out):
    """Write to out[i] how many blocks of keys[0:n] engine i has from the start on. keys become chain hashes.

    root   the hash that the chain begins with
    """
    table, alive = view.table, view.alive
    mask = table.shape[0] - 1
    content = root
    for i in range(n):
        content = chain(content, keys[i])
        keys[i] = content
    for word in range(alive.size):
        alive[word] = (np.int64(1) << WORD_BITS) - 1
    position = np.int64(0)
    while position < n:
        if position + AHEAD < n:
            prefetch(table, _home(keys[position + AHEAD], mask))
        at = _find(table, keys[position])
        left = np.int64(0)
        for word in range(alive.size):
            lost = alive[word] & ~table[at, 1 + word]
            if lost != 0:
                _note(out, word, lost, position)
                alive[word] ^= lost
            left |= alive[word]
        if left == 0:
            return
        position += 1
    for word in range(alive.size):
        _note(out, word, alive[word], position)


@jit
def _note(out, word, engines, blocks):
    """out of every engine in a set of one word is so many blocks."""
    first = word * WORD_BITS
    for bit in range(min(WORD_BITS, out.size - first)):
        if (engines >> bit) & 1 == 1:
            out[first + bit] = blocks
