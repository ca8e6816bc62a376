"""BLAKE3 of up to 64 bytes, which is one block: what SGLang's router hashes a routing key with.

source: the BLAKE3 paper (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020), sections 2.1 to 2.3
"""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_ROUNDS = 7
BLOCK_BYTES = 64


def blake3_short(data: bytes) -> bytes:
    """The 32 bytes of the hash. ValueError: more than a block."""
    if len(data) > BLOCK_BYTES:
        raise ValueError(f"{len(data)} bytes are more than one block of {BLOCK_BYTES}")
    words = list(struct.unpack("<16I", data.ljust(BLOCK_BYTES, b"\0")))
    state = [*_IV, *_IV[:4], 0, 0, len(data), _CHUNK_START | _CHUNK_END | _ROOT]
    for _ in range(_ROUNDS):
        for i, lanes in enumerate((*_COLUMNS, *_DIAGONALS)):
            _mix(state, lanes, words[2 * i], words[2 * i + 1])
        words = [words[i] for i in _PERMUTATION]
    return struct.pack("<8I", *(state[i] ^ state[i + 8] for i in range(8)))


def _mix(state: list[int], lanes: tuple[int, int, int, int], x: int, y: int) -> None:
    a, b, c, d = lanes
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        state[a] = (state[a] + state[b] + word) & _MASK
        state[d] = _turned(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) & _MASK
        state[b] = _turned(state[b] ^ state[c], second)


def _turned(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & _MASK
