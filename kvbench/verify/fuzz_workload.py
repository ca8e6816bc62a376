"""What a fuzz asks of an engine: small requests of every kind, drawn from a generator of random numbers.

Prompts share documents from their start or from the middle of a block, hold runs of ids from a tiny alphabet, or
repeat an earlier turn with its output. There are samples, sessions, priorities, namespaces, declared lengths that
are wrong, and cancels at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from ..core.requests import EXPLICIT, NONE, Requests

Segment = tuple[int, int, int]
"""stream, start, length"""

DOCUMENTS = 5
FIRST_OWN_STREAM = 100
STREAMS_EACH = 8
"""More than the samples of a request."""
ALPHABET = np.arange(97, dtype=np.int64) ** 2 % 3
"""The explicit ids; a segment of them is any part of these."""
GAPS_NS = (0, 0, 0, 1, 900, 4_000)
"""Between arrivals; a step takes a microsecond or a few."""
CANCELS_NS = (NONE,) * 8 + (0, 3_000, 40_000, 200_000)


@dataclass(frozen=True)
class Ask:
    """One request. after: index of the request that it follows, or NONE."""

    arrival_ns: int
    prompt: tuple[Segment, ...]
    output: Segment
    max_tokens: int
    samples: int
    namespace: int
    priority: int
    cancel_ns: int
    after: int
    think_ns: int


def draw_asks(rng: Generator, count: int, tokens: int) -> list[Ask]:
    """Requests for an engine that holds so many tokens."""
    asks: list[Ask] = []
    now = 0
    for number in range(count):
        now += _one_of(rng, GAPS_NS)
        asks.append(_ask(rng, asks, number, now, tokens))
    return asks


def _ask(rng: Generator, asks: Sequence[Ask], number: int, now: int, tokens: int) -> Ask:
    output = int(rng.integers(1, max(tokens // _one_of(rng, (2, 3, 16)), 2)))
    ask = Ask(
        arrival_ns=now,
        prompt=tuple(_segment(rng, max(tokens // _one_of(rng, (4, 6, 12)), 2)) for _ in range(rng.integers(1, 3))),
        output=(FIRST_OWN_STREAM + STREAMS_EACH * number, 0, output),
        max_tokens=max(output + _one_of(rng, (0, 0, 0, 3, 20, -2)), 1),
        samples=_one_of(rng, (1, 1, 1, 1, 2, 3)),
        namespace=_one_of(rng, (0, 0, 0, 1)),
        priority=int(rng.integers(0, 3)),
        cancel_ns=_one_of(rng, CANCELS_NS),
        after=NONE,
        think_ns=_one_of(rng, (0, 1, 7_000, 90_000)),
    )
    if not asks or rng.random() < 0.7:
        return ask
    before = int(rng.integers(max(len(asks) - 6, 0), len(asks)))
    ask = replace(ask, after=before, arrival_ns=0)
    if rng.random() < 0.6:  # a chat: the turn repeats what came before
        said = (*asks[before].prompt, asks[before].output, *ask.prompt)
        if sum(n for _, _, n in said) < tokens * 2 // 3:
            ask = replace(ask, prompt=said, namespace=asks[before].namespace)
    return ask


def _segment(rng: Generator, most: int) -> Segment:
    length = int(rng.integers(1, most + 1))
    kind = int(rng.integers(0, 4))
    if kind == 0:
        length = min(length, ALPHABET.size // 2)
        return EXPLICIT, int(rng.integers(0, ALPHABET.size - length)), length
    return int(rng.integers(1, DOCUMENTS)), 0 if kind < 3 else int(rng.integers(0, 20)), length


def _one_of(rng: Generator, values: Sequence[int]) -> int:
    return values[int(rng.integers(0, len(values)))]


def some_of(asks: Sequence[Ask], chosen: Sequence[int]) -> list[Ask]:
    """A choice of the requests, in order. One whose predecessor is left out arrives when the one before it does."""
    place = {number: i for i, number in enumerate(chosen)}
    kept: list[Ask] = []
    now = 0
    for number in chosen:
        ask = asks[number]
        if ask.after in place:
            kept.append(replace(ask, after=place[ask.after]))
            continue
        now = max(now, ask.arrival_ns)
        kept.append(replace(ask, after=NONE, arrival_ns=now))
    return kept


def request_table(asks: Sequence[Ask]) -> Requests:
    """The table of these requests."""
    segments = [segment for ask in asks for segment in ask.prompt]
    zero = np.zeros(len(asks), np.int64)

    def column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, np.int64)

    return Requests(
        arrival_ns=column([a.arrival_ns for a in asks]),
        prompt_tokens=column([sum(n for _, _, n in a.prompt) for a in asks]),
        output_tokens=column([a.output[2] for a in asks]),
        max_tokens=column([a.max_tokens for a in asks]),
        samples=column([a.samples for a in asks]),
        session_id=zero - 1,
        turn=zero,
        after=column([a.after for a in asks]),
        think_ns=column([a.think_ns for a in asks]),
        tenant=zero,
        namespace=column([a.namespace for a in asks]),
        priority=column([a.priority for a in asks]),
        phase=zero,
        cancel_ns=column([a.cancel_ns for a in asks]),
        output_stream=column([a.output[0] for a in asks]),
        output_start=zero,
        segment_offset=np.cumsum([0, *(len(a.prompt) for a in asks)], dtype=np.int64),
        segment_stream=column([stream for stream, _, _ in segments]),
        segment_start=column([start for _, start, _ in segments]),
        segment_length=column([n for _, _, n in segments]),
        token_ids=ALPHABET,
        namespaces=("", "other"),
    )
