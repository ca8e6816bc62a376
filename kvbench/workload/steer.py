"""sharing.hit_rate: shared prefixes longer or shorter, until an infinite cache finds the asked share of prompts.

Blocks are whole, so the length alone reaches it in steps: the smallest length that is enough is taken, and some
sessions get a prefix of their own, as long as the shared one. Everything else stays as drawn. What turns of sessions
find of each other counts too, so the rate has a floor, and the first prompt with each prefix computes it, so it has a
ceiling; beyond them nothing is steered, and a note says how far it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..core.errors import UsageError
from ..core.requests import I64, Requests

CLOSE = 0.001
"""So near to the asked rate the search ends: a tenth of a percentage point."""

TOLERANCE = 0.01

_MOST = 64.0
"""Largest factor on the prefixes."""

_GAIN = 0.005
"""A doubling of the prefixes that brings less is near the ceiling: the search ends."""

_TRIES = 12


@dataclass(frozen=True)
class Steering:
    """factor: on sharing.prefix; private: share of sessions whose prefix is their own."""

    factor: float = 1.0
    private: float = 0.0


@dataclass(frozen=True)
class _Try:
    steering: Steering
    requests: Requests
    rate: float


def steered(build: Callable[[Steering], Requests], asked: float, block_tokens: int) -> Requests:
    """The workload with the asked hit rate, or as drawn where it is out of reach; a note says which, and how."""

    def tried(steering: Steering) -> _Try:
        requests = build(steering)
        return _Try(steering, requests, infinite_hit_rate(requests, block_tokens))

    lengths = _lengths(tried, asked)
    enough = [t for t in lengths if t.rate >= asked]
    found = lengths
    if enough and min(abs(t.rate - asked) for t in lengths) > CLOSE:
        found = lengths + _private(tried, asked, min(enough, key=lambda t: t.rate).steering.factor)
    best = min(found, key=lambda t: abs(t.rate - asked))
    if abs(best.rate - asked) > TOLERANCE:
        best = lengths[0]
        rates = sorted(t.rate for t in found)
        said = (
            f"sharing.hit_rate = {asked:g} is out of reach, so nothing is steered: other prefixes give {rates[0]:.3f} "
            f"to {rates[-1]:.3f}, since the first prompt with each is computed, blocks of {block_tokens} tokens are "
            "whole, and turns of sessions find each other"
        )
    else:
        said = f"sharing.hit_rate = {asked:g}: sharing.prefix is drawn times {best.steering.factor:.4g}"
        if best.steering.private:
            said += f", and {100 * best.steering.private:.3g} % of sessions have one of their own"
    return replace(best.requests, notes=(*best.requests.notes, said))


def _lengths(tried: Callable[[Steering], _Try], asked: float) -> list[_Try]:
    """Prefixes longer or shorter: what was tried."""
    found = [tried(Steering())]
    low, high, factor = 0.0, _MOST, 1.0
    while len(found) < _TRIES and abs(found[-1].rate - asked) > CLOSE and high - low > 1e-3 * high:
        low, high = (factor, high) if found[-1].rate < asked else (low, factor)
        factor = min(2 * low, high) if high == _MOST else (low + high) / 2
        try:
            found.append(tried(Steering(factor)))
        except UsageError:  # longer than a stream may be
            break
        if found[-1].rate < asked and high == _MOST and found[-1].rate - found[-2].rate < _GAIN:
            break
    return found


def _private(tried: Callable[[Steering], _Try], asked: float, factor: float) -> list[_Try]:
    """Prefixes of that length, some of them private: what was tried."""
    found: list[_Try] = []
    low, high = 0.0, 1.0
    while len(found) < _TRIES and (not found or abs(found[-1].rate - asked) > CLOSE):
        share = (low + high) / 2
        found.append(tried(Steering(factor, share)))
        low, high = (share, high) if found[-1].rate > asked else (low, share)
    return found


def infinite_hit_rate(requests: Requests, block_tokens: int) -> float:
    """Of all prompt tokens those in leading whole blocks that an earlier prompt, or the answer to it, has computed.

    For generated requests, in order: pieces are equal or of different streams. The last token of a prompt is computed
    always, that of an answer never.
    """
    r = requests
    counts = np.diff(r.segment_offset)
    seen = np.zeros(len(r), np.int64)
    ends_said = np.zeros(len(r), np.int64)
    chain = r.namespace.copy()
    whole = np.ones(len(r), np.bool_)  # so far every piece was known
    said = np.unique(r.output_stream)
    for level in range(int(counts.max())):
        rows = np.flatnonzero(counts > level)
        place = r.segment_offset[:-1][rows] + level
        stream, length = r.segment_stream[place], r.segment_length[place]
        pieces = np.stack([chain[rows], stream, r.segment_start[place], length], axis=1)
        _, first, same = np.unique(pieces, axis=0, return_index=True, return_inverse=True)
        same = same.reshape(-1)
        is_said = _among(stream, said)
        whole[rows] &= (first[same] < np.arange(rows.size)) | is_said
        chain[rows] = same + (level + 1) * len(r) + len(r.namespaces)
        found = rows[whole[rows]]
        seen[found] += length[whole[rows]]
        ends_said[found] = is_said[whole[rows]]
    usable = np.minimum(seen - ends_said, r.prompt_tokens - 1) // block_tokens * block_tokens
    return float(usable.sum() / r.prompt_tokens.sum())


def _among(values: I64, ascending: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    place = np.minimum(np.searchsorted(ascending, values), ascending.size - 1)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = ascending[place] == values
    return found
