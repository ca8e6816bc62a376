"""Block keys: what a whole block holds, as one int64 that is equal exactly when the content is.

A sequence's tokens are (stream, index) pairs. A block that is an aligned piece of one virtual stream has the
key (stream << 26 | index // block_tokens): no tokens are made, and one *run* covers all whole blocks of a
segment. Pieces of a stream that are not aligned are runs too, under a number for (stream, index % block_tokens).
Any other block (it spans two segments, or holds explicit ids) is interned: equal contents get the same negative
number, compared piece by piece or id by id, so a key is never a guess.

A key says what is in the block, not what comes before it: the same document behind another prefix has the
same keys and is another block; that is the radix tree's and the hash chain's affair.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..core.requests import EXPLICIT, Requests
from .id_blocks import make_id_blocks, number_blocks, number_gathered

STREAM_SHIFT = 26
_UNALIGNED = 1 << 62
"""Above the keys of aligned pieces."""

_OF_IDS = -(1 << 62)
"""Keys of blocks of explicit ids count from here; those of mixed blocks count down from -1."""


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
    sequences = seq_request, out_stream, r.output_start[seq_request], r.output_tokens[seq_request]
    segments = r.segment_offset, r.segment_stream, r.segment_start, r.segment_length
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        if r.token_ids.size == 0:
            return BlockKeys(*_compile(*sequences, *segments, block_tokens))
        return BlockKeys(*_compile_ids(*sequences, *segments, r.token_ids, block_tokens))


@entry
def _compile(seq_request, out_stream, out_start, out_tokens, seg_offset, seg_stream, seg_start, seg_length, bt):
    """Runs of every sequence, of virtual streams alone."""
    num = seq_request.size
    offset = np.zeros(num + 1, np.int64)
    capacity = seg_length.size + 4 * num + 16
    first = np.empty(capacity, np.int32)
    key = np.empty(capacity, np.int64)
    runs = np.int64(0)
    interner = _make_interner(bt)
    for s in range(num):
        request = seq_request[s]
        block = 0
        last = seg_offset[request + 1]
        for g in range(seg_offset[request], last + 1):
            if g < last:
                stream, start, length = seg_stream[g], seg_start[g], seg_length[g]
            else:
                stream, start, length = out_stream[s], out_start[s], out_tokens[s]
            first, key = _room(first, key, runs + 2)
            block, runs = _add_stretch(interner, stream, start, length, bt, first, key, runs, block)
        interner.filled = 0
        interner.num_pieces = 0
        offset[s + 1] = runs
    return offset, first[:runs].copy(), key[:runs].copy()


@entry
def _compile_ids(
    seq_request, out_stream, out_start, out_tokens, seg_offset, seg_stream, seg_start, seg_length, ids, bt
):
    """The same where some segments are explicit ids. A block of ids alone has a number by its ids (id_blocks)."""
    num = seq_request.size
    offset = np.zeros(num + 1, np.int64)
    room = _whole_blocks(seq_request, out_tokens, seg_offset, seg_length, bt)
    first, key = np.empty(room, np.int32), np.empty(room, np.int64)
    runs = np.int64(0)
    interner, blocks = _make_interner(bt), make_id_blocks(bt)
    open_ids, numbers = np.empty(bt, np.int64), np.empty(64, np.int64)
    for s in range(num):
        request = seq_request[s]
        block, num_open = 0, 0  # of the open block, as long as it holds ids alone
        begin, last = runs, seg_offset[request + 1]
        for g in range(seg_offset[request], last + 1):
            if g < last:
                stream, start, length = seg_stream[g], seg_start[g], seg_length[g]
            else:
                stream, start, length = out_stream[s], out_start[s], out_tokens[s]
            if stream != EXPLICIT:
                _spill(interner, open_ids, num_open)
                num_open = 0
                block, runs = _add_stretch(interner, stream, start, length, bt, first, key, runs, block)
                continue
            at = 0
            while at < length:
                left = length - at
                if interner.filled > 0:  # behind a virtual piece
                    take = min(left, bt - interner.filled)
                    _add_ids(interner, ids, start + at, take)
                    if interner.filled == bt:
                        runs = _add_run(first, key, runs, begin, block, _intern(interner))
                        block += 1
                elif num_open > 0 or left < bt:
                    take = min(left, bt - num_open)
                    for i in range(take):
                        open_ids[num_open + i] = ids[start + at + i]
                    num_open += take
                    if num_open == bt:
                        number = number_gathered(blocks, ids, open_ids)
                        runs = _add_run(first, key, runs, begin, block, _OF_IDS + number)
                        block += 1
                        num_open = 0
                elif bt == 1:  # an id is its own key
                    for i in range(left):
                        runs = _add_run(first, key, runs, begin, block + i, ids[start + at + i])
                    block += left
                    take = left
                else:
                    whole = left // bt
                    if whole > numbers.size:
                        numbers = np.empty(2 * whole, np.int64)
                    number_blocks(blocks, ids, start + at, whole, numbers)
                    for i in range(whole):
                        runs = _add_run(first, key, runs, begin, block + i, _OF_IDS + numbers[i])
                    block += whole
                    take = whole * bt
                at += take
        interner.filled = 0
        interner.num_pieces = 0
        offset[s + 1] = runs
    if 2 * runs > room:
        return offset, first[:runs], key[:runs]
    return offset, first[:runs].copy(), key[:runs].copy()


@jit
def _whole_blocks(seq_request, out_tokens, seg_offset, seg_length, bt):
    """Of all sequences: there are no more runs."""
    num = np.int64(0)
    for s in range(seq_request.size):
        tokens = out_tokens[s]
        for g in range(seg_offset[seq_request[s]], seg_offset[seq_request[s] + 1]):
            tokens += seg_length[g]
        num += tokens // bt
    return num


@inline
def _add_stretch(interner, stream, start, length, bt, first, key, runs, block):
    """Append a piece of a virtual stream to a sequence, where there is room. Returns its (blocks, runs) so far."""
    at = 0
    while at < length:
        left = length - at
        if interner.filled == 0 and left >= bt:
            first[runs], key[runs] = block, _stretch(interner, stream, start + at, bt)
            runs += 1
            take = left // bt * bt
            block += take // bt
        else:
            take = min(left, bt - interner.filled)
            _add_piece(interner, stream, start + at, take)
            if interner.filled == bt:
                first[runs], key[runs] = block, _intern(interner)
                runs += 1
                block += 1
        at += take
    return block, runs


@inline
def _add_run(first, key, runs, begin, block, name):
    """The next block of a sequence whose runs began at `begin`: it goes on with the last one where it can."""
    if runs > begin and key[runs - 1] + block - first[runs - 1] == name:
        return runs
    first[runs], key[runs] = block, name
    return runs + 1


@jit
def _add_ids(it, ids, start, num):
    for i in range(start, start + num):
        _add_piece(it, np.int64(EXPLICIT), ids[i], np.int64(1))


@jit
def _spill(it, open_ids, num):
    """The open block held ids alone, and now something else comes."""
    _add_ids(it, open_ids, 0, num)


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
def _make_interner(bt):
    return _Interner(
        np.zeros(1024, np.int64),
        np.zeros(1024, np.int64),
        np.zeros(64, np.int64),
        np.zeros(64, np.uint64),
        0,
        np.zeros((bt, 3), np.int64),
        0,
        0,
    )


@jit
def _room(first, key, runs):
    """Both, with room for so many."""
    if runs <= first.size:
        return first, key
    return _grown(first, runs), _grown(key, runs)


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
