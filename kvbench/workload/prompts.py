"""Prompts of a trace as segments of streams: the columns segment_* and output_* of Requests.

of_ids    block ids: equal ids are equal tokens
apart     lengths alone: no prompt shares anything
Growing   prompts that go on from what was said before
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.requests import EXPLICIT, MAX_STREAM
from .rows import I64

Piece = tuple[int, int, int]
"""stream, start, length"""


def of_ids(ids: I64, counts: I64, prompt_tokens: I64, block_tokens: int) -> dict[str, Any]:
    """Every id a stream of `block_tokens` tokens, the last of a prompt of what is left."""
    n = prompt_tokens.size
    streams = _streams(ids)
    offset = np.concatenate(([0], np.cumsum(counts)))
    length = np.full(ids.size, block_tokens, np.int64)
    length[offset[1:] - 1] = prompt_tokens - (counts - 1) * block_tokens
    return {
        "output_stream": int(streams.max()) + 1 + np.arange(n),
        "segment_offset": offset,
        "segment_stream": streams,
        "segment_start": np.zeros(ids.size, np.int64),
        "segment_length": length,
        "block_hint": block_tokens,
    }


def apart(prompt_tokens: I64) -> dict[str, Any]:
    """Every prompt a stream of its own."""
    n = prompt_tokens.size
    return {**of_ids(np.arange(n), np.ones(n, np.int64), prompt_tokens, 0), "block_hint": 0}


class Growing:
    """Prompts piece by piece, request after request.

    Streams are numbered as they come; the output of a request takes the stream after its last new one.
    """

    def __init__(self) -> None:
        self._next = 1
        self._pieces: list[Piece] = []
        self._counts: list[int] = []
        self._outputs: list[tuple[int, int]] = []

    def fresh(self, length: int) -> list[Piece]:
        """Tokens that nobody had before; none for a length of 0."""
        if length <= 0:
            return []
        self._next += 1
        return [(self._next - 1, 0, length)]

    def add(self, prompt: list[Piece], output_tokens: int, output: Piece | None = None) -> list[Piece]:
        """One more request. Returns its context when it has ended: prompt and output.

        output   what is generated, where that is known as explicit ids; a stream of its own else
        """
        told = [output] if output else self.fresh(max(output_tokens, 1))
        self._outputs.append(told[0][:2])
        self._pieces += prompt
        self._counts.append(len(prompt))
        stream, start, _ = told[0]
        return [*prompt, (stream, start, output_tokens)] if output_tokens else list(prompt)

    def columns(self) -> dict[str, Any]:
        stream, start, length = np.array(self._pieces, np.int64).reshape(-1, 3).T.copy()
        output = np.array(self._outputs, np.int64).reshape(-1, 2)
        return {
            "output_stream": output[:, 0].copy(),
            "output_start": np.where(output[:, 0] == EXPLICIT, output[:, 1], 0),
            "segment_offset": np.concatenate(([0], np.cumsum(np.array(self._counts, np.int64)))),
            "segment_stream": stream,
            "segment_start": start,
            "segment_length": length,
        }


def total(pieces: list[Piece]) -> int:
    """Tokens of some pieces."""
    return sum(length for _, _, length in pieces)


def leading(pieces: list[Piece], tokens: int) -> list[Piece]:
    """The first tokens of some pieces, as many as there are."""
    kept: list[Piece] = []
    for stream, start, length in pieces:
        if tokens <= 0:
            break
        kept.append((stream, start, min(length, tokens)))
        tokens -= length
    return kept


def _streams(ids: I64) -> I64:
    """One stream for each different id: id + 1, or a dense numbering where ids are too large for that."""
    if ids.min() >= 0 and ids.max() < MAX_STREAM // 2:
        return ids + 1
    return np.unique(ids, return_inverse=True)[1].astype(np.int64) + 1
