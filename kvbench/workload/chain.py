"""Block ids of any requests, as a trace of ids has them: one id for each prefix of whole blocks, and for the rest."""

from __future__ import annotations

import numpy as np

from ..core.requests import EXPLICIT, Requests
from .rows import I64


def has_own_ids(requests: Requests, block_tokens: int) -> bool:
    """Whether segments are ids of that block size already: each a block, the last of a prompt what is left."""
    r = requests
    if r.block_hint != block_tokens or block_tokens == 0 or r.segment_start.any():
        return False
    inner = np.ones(r.segment_length.size, np.bool_)
    inner[r.segment_offset[1:] - 1] = False
    return bool(
        (r.segment_length[inner] == block_tokens).all()
        and (r.segment_length <= block_tokens).all()
        and (r.segment_stream != EXPLICIT).all()
    )


def shares_nothing(requests: Requests) -> bool:
    """Whether every piece of every prompt is a stream that no other has."""
    streams = requests.segment_stream
    return bool((streams != EXPLICIT).all()) and np.unique(streams).size == streams.size


def block_ids(requests: Requests, block_tokens: int) -> tuple[I64, I64]:
    """(ids,) numbered in order of appearance, and (n,) how many each request has: ceil(prompt / block_tokens).

    Equal ids are equal tokens with equal tokens before them, in one namespace. What is left at the end of a prompt
    has an id that only the same rest after the same prefix has.
    """
    r = requests
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    ids: list[int] = []
    offset, namespace = r.segment_offset.tolist(), r.namespace.tolist()
    pieces = np.stack([r.segment_stream, r.segment_start, r.segment_length], axis=1).tolist()
    tokens = r.token_ids.tolist()
    for i in range(len(r)):
        parent = -1 - namespace[i]
        for content in _blocks(pieces[offset[i] : offset[i + 1]], tokens, block_tokens):
            parent = known.setdefault((parent, content), len(known))
            ids.append(parent)
    return np.array(ids, np.int64), -(-r.prompt_tokens // block_tokens)


def _blocks(pieces: list[list[int]], tokens: list[int], size: int) -> list[tuple[int, ...]]:
    """The content of each block of a prompt: token ids, or stream, start, length of its pieces; joined where cut."""
    found: list[tuple[int, ...]] = []
    current: list[int] = []
    filled = 0
    for stream, start, length in pieces:
        at = 0
        while at < length:
            take = min(length - at, size - filled)
            _extend(current, tokens, stream, start + at, take)
            filled, at = filled + take, at + take
            if filled == size:
                found.append(tuple(current))
                current, filled = [], 0
    if current:
        found.append(tuple(current))
    return found


def _extend(current: list[int], tokens: list[int], stream: int, start: int, length: int) -> None:
    """Add a piece to a block. An explicit token is a piece of its own, named by its id."""
    if stream == EXPLICIT:
        for token in tokens[start : start + length]:
            current += (EXPLICIT, token, 1)
    elif len(current) >= 3 and current[-3] == stream and current[-2] + current[-1] == start:
        current[-1] += length
    else:
        current += (stream, start, length)
