"""Block keys: what a whole block holds, as one int64 that is equal exactly when the content is.

A sequence's tokens are (stream, index) pairs. A block that is an aligned piece of one virtual stream has the
key (stream << 26 | index // block_tokens): no tokens are made, and one *run* covers all whole blocks of a
segment. Pieces of a stream that are not aligned are runs too, under a number for (stream, index % block_tokens).
Any other block (it spans two segments, or holds explicit ids) is interned: equal contents get the same negative
number, compared piece by piece, so a key is never a guess.

A key says what is in the block, not what comes before it: the same document behind another prefix has the
same keys and is another block; that is the radix tree's and the hash chain's affair.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..core.requests import EXPLICIT, Requests

STREAM_SHIFT = 26
_UNALIGNED = 1 << 62
"""Above the keys of aligned pieces."""


@struct
class BlockKeys:
    """Keys of every sequence as runs: block first[r] + i of the sequence has key[r] + i, until the next run.

    offset   (num_sequences + 1,) runs of sequence s are offset[s] .. offset[s + 1]
    first    (runs,) block index within the sequence
    key      (runs,)
    """

    offset: "i8[::1]"
    first: "i4[::1]"
    key: "i8[::1]"


def block_keys(requests: Requests, block_tokens: int) -> BlockKeys:
    """Keys of prompt + output of every sequence (requests in order, samples within)."""
    r = requests
    seq_request = np.repeat(np.arange(len(r)), r.samples)
    sample = np.arange(seq_request.size) - np.repeat(np.cumsum(r.samples) - r.samples, r.samples)
    explicit = r.output_stream[seq_request] == EXPLICIT
    out_stream = np.where(explicit, EXPLICIT, r.output_stream[seq_request] + sample)
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        offset, first, key = _compile(
            seq_request,
            out_stream,
            r.output_start[seq_request],
            r.output_tokens[seq_request],
            r.segment_offset,
            r.segment_stream,
            r.segment_start,
            r.segment_length,
            r.token_ids,
            block_tokens,
        )
    return BlockKeys(offset, first, key)


@entry
def _compile(seq_request, out_stream, out_start, out_tokens, seg_offset, seg_stream, seg_start, seg_length, ids, bt):
    num = seq_request.size
    offset = np.zeros(num + 1, np.int64)
    capacity = seg_length.size + 4 * num + 16
    first = np.empty(capacity, np.int32)
    key = np.empty(capacity, np.int64)
    runs = np.int64(0)
    interner = _Interner(
        np.zeros(1024, np.int64),
        np.zeros(1024, np.int64),
        np.zeros(64, np.int64),
        np.zeros(64, np.uint64),
        0,
        np.zeros((bt, 3), np.int64),
        0,
        0,
    )
    for s in range(num):
        request = seq_request[s]
        block = 0
        last = seg_offset[request + 1]
        for g in range(seg_offset[request], last + 1):
            if g < last:
                stream, start, length = seg_stream[g], seg_start[g], seg_length[g]
            else:
                stream, start, length = out_stream[s], out_start[s], out_tokens[s]
            step = 1 if stream == 0 else length  # an explicit id is a piece of its own
            at = 0
            while at < length:
                index = ids[start + at] if stream == 0 else start + at
                left = min(step, length - at)
                if interner.filled == 0 and left >= bt:
                    first, key = _room(first, key, runs)
                    first[runs] = block
                    key[runs] = _stretch(interner, stream, index, bt)
                    runs += 1
                    take = left // bt * bt
                    block += take // bt
                else:
                    take = min(left, bt - interner.filled)
                    _add_piece(interner, stream, index, take)
                    if interner.filled == bt:
                        first, key = _room(first, key, runs)
                        first[runs] = block
                        key[runs] = _intern(interner)
                        runs += 1
                        block += 1
                at += take
        interner.filled = 0
        interner.num_pieces = 0
        offset[s + 1] = runs
    return offset, first[:runs].copy(), key[:runs].copy()


@struct
class _Interner:
    """slots: open-addressing table of id + 1. pieces: flat (stream, start, length) of every interned block.

    begin: first piece of each id (and the end of the last). hashes: of each id. current: the open block.
    """

    slots: "i8[::1]"
    pieces: "i8[::1]"
    begin: "i8[::1]"
    hashes: "u8[::1]"
    count: "i8"
    current: "i8[:,::1]"
    num_pieces: "i8"
    filled: "i8"


@jit
def _room(first, key, runs):
    if runs < first.size:
        return first, key
    return _grown(first, 0), _grown(key, 0)


@jit
def _grown(array, extra):
    """A copy of twice the length and extra. A loop: an assigned slice takes Numba seconds to compile."""
    out = np.zeros(2 * array.size + extra, array.dtype)
    for i in range(array.size):
        out[i] = array[i]
    return out


@jit
def _add_piece(it, stream, start, length):
    """Append to the open block; a piece that continues the one before is merged, so cuts do not matter."""
    n = it.num_pieces
    cur = it.current
    if n > 0 and cur[n - 1, 0] == stream and cur[n - 1, 1] + cur[n - 1, 2] == start:
        cur[n - 1, 2] += length
    else:
        cur[n, 0] = stream
        cur[n, 1] = start
        cur[n, 2] = length
        it.num_pieces = n + 1
    it.filled += length


@jit
def _intern(it):
    """Key of the open block; closes it. Negative, so it never meets that of a stretch."""
    n = it.num_pieces
    cur = it.current
    it.num_pieces = 0
    it.filled = 0
    if n == 1:  # a piece that came in parts has the key that it has when it comes whole
        return _stretch(it, cur[0, 0], cur[0, 1], cur[0, 2])
    return -(_number(it, n) + 1)


@jit
def _stretch(it, stream, index, bt):
    """Key of the first block of a stretch of one stream; the blocks that follow count on from it."""
    phase = index % bt
    if phase == 0:
        return (stream << STREAM_SHIFT) | (index // bt)
    cur = it.current  # nothing is open
    cur[0, 0], cur[0, 1], cur[0, 2] = stream, phase, 0  # no content has a piece of no length
    return _UNALIGNED | (_number(it, np.int64(1)) << STREAM_SHIFT) | (index // bt)


@jit
def _number(it, n):
    """Number of a content of n pieces, from 0; it is stored when it is new."""
    cur = it.current
    h = np.uint64(0)
    for i in range(n):
        for c in range(3):
            h = (h ^ np.uint64(cur[i, c])) * np.uint64(0x9E3779B97F4A7C15)
            h ^= h >> np.uint64(29)
    if 2 * (it.count + 1) > it.slots.size:
        _rehash(it)
    mask = it.slots.size - 1
    at = np.int64(h & np.uint64(mask))
    while it.slots[at] != 0:
        found = it.slots[at] - 1
        if it.hashes[found] == h and _same(it, found, n):
            return found
        at = (at + 1) & mask
    it.slots[at] = it.count + 1
    return _store(it, h, n)


@jit
def _same(it, found, n):
    begin = it.begin[found]
    if it.begin[found + 1] - begin != n:
        return False
    for i in range(n):
        for c in range(3):
            if it.pieces[3 * (begin + i) + c] != it.current[i, c]:
                return False
    return True


@jit
def _store(it, h, n):
    new = it.count
    if new + 2 > it.begin.size:
        it.begin = _grown(it.begin, 0)
        it.hashes = _grown(it.hashes, 0)
    begin = it.begin[new]
    if 3 * (begin + n) > it.pieces.size:
        it.pieces = _grown(it.pieces, 3 * n)
    for i in range(n):
        for c in range(3):
            it.pieces[3 * (begin + i) + c] = it.current[i, c]
    it.begin[new + 1] = begin + n
    it.hashes[new] = h
    it.count = new + 1
    return new


@jit
def _rehash(it):
    slots = np.zeros(2 * it.slots.size, np.int64)
    mask = slots.size - 1
    for i in range(it.count):
        at = np.int64(it.hashes[i] & np.uint64(mask))
        while slots[at] != 0:
            at = (at + 1) & mask
        slots[at] = i + 1
    it.slots = slots


@jit
def fill_keys(keys, sequence, start, stop, out):
    """Write the keys of blocks start .. stop of a sequence to out[start:stop] (the same positions)."""
    if stop <= start:
        return
    first = keys.first
    r = keys.offset[sequence]
    end = keys.offset[sequence + 1]
    if start > 0:  # last run that begins at or before start
        low, high = r, end
        while high - low > 1:
            middle = (low + high) >> 1
            if first[middle] <= start:
                low = middle
            else:
                high = middle
        r = low
    at = start
    while at < stop:
        limit = stop
        if r + 1 < end and first[r + 1] < stop:
            limit = np.int64(first[r + 1])
        base = keys.key[r] - first[r]
        for i in range(at, limit):
            out[i] = base + i
        at = limit
        r += 1


@inline
def key_at(keys, sequence, block):
    """Key of one block; one look where it lies in the sequence's last run, as a generated one does."""
    first = keys.first
    low, high = keys.offset[sequence], keys.offset[sequence + 1] - 1
    if first[high] <= block:
        low = high
    while low < high:
        middle = (low + high + 1) >> 1
        if first[middle] <= block:
            low = middle
        else:
            high = middle - 1
    return keys.key[low] + block - first[low]


@entry
def sequence_keys(keys, sequence, num_blocks):
    """Keys of the first num_blocks blocks of a sequence, (num_blocks,) int64."""
    out = np.zeros(num_blocks, np.int64)
    fill_keys(keys, sequence, 0, num_blocks, out)
    return out
