"""XXH3, 64 bits, of 4 to 128 bytes: how Dynamo names the blocks of a prompt, from the published algorithm."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
)
LONGEST = 128


def xxh3_64(data: bytes, seed: int) -> int:
    """The hash. ValueError: a length for which it is another function, which no recorded block has."""
    if not 4 <= len(data) <= LONGEST:
        raise ValueError(f"{len(data)} bytes; 4 to {LONGEST} are known here")
    if len(data) <= 8:
        return _of_4_to_8(data, seed)
    if len(data) <= 16:
        return _of_9_to_16(data, seed)
    total = len(data) * 0x9E3779B185EBCA87
    for i in range((len(data) - 1) // 32 + 1):  # from both ends to the middle
        total += _mixed(data, 16 * i, 32 * i, seed) + _mixed(data, len(data) - 16 * (i + 1), 32 * i + 16, seed)
    return _avalanche(total & _MASK)


def _of_4_to_8(data: bytes, seed: int) -> int:
    low = seed & 0xFFFFFFFF
    seed ^= int.from_bytes(low.to_bytes(4, "little"), "big") << 32
    both = int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)
    h = both ^ (((_secret(8) ^ _secret(16)) - seed) & _MASK)
    h ^= _rotated(h, 49) ^ _rotated(h, 24)
    h = h * 0x9FB21C651E98DF25 & _MASK
    h ^= (h >> 35) + len(data)
    h = h * 0x9FB21C651E98DF25 & _MASK
    return h ^ (h >> 28)


def _of_9_to_16(data: bytes, seed: int) -> int:
    low = _word(data, 0) ^ (((_secret(24) ^ _secret(32)) + seed) & _MASK)
    high = _word(data, len(data) - 8) ^ (((_secret(40) ^ _secret(48)) - seed) & _MASK)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche((len(data) + swapped + high + _folded(low, high)) & _MASK)


def _mixed(data: bytes, at: int, secret: int, seed: int) -> int:
    low = _word(data, at) ^ ((_secret(secret) + seed) & _MASK)
    return _folded(low, _word(data, at + 8) ^ ((_secret(secret + 8) - seed) & _MASK))


def _folded(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(h: int) -> int:
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & _MASK
    return h ^ (h >> 32)


def _rotated(h: int, bits: int) -> int:
    return (h << bits | h >> (64 - bits)) & _MASK


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _secret(at: int) -> int:
    return _word(_SECRET, at)
