"""Small workloads for engines, drawn by hypothesis, and the request table that a list of asks comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvbench.core.requests import EXPLICIT, NONE, Requests

from ..reference.engine import Ask

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
"""A real trace, where it lies beside the checkout."""
DOCUMENTS = (1, 2)
"""Virtual streams that prompts have in common."""
FIRST_OWN_STREAM = 100


def request_table(asks: list[Ask]) -> Requests:
    """The table of these asks. Explicit ids (stream 0) go to token_ids, one segment for each run of them."""
    ids: list[int] = []
    segments: list[tuple[int, int, int]] = []
    offset, output_stream, output_start = [0], [], []
    for ask in asks:
        segments += _segments(ask.prompt, ids)
        offset.append(len(segments))
        ((stream, start, _),) = _segments(ask.output, ids)
        output_stream.append(stream)
        output_start.append(start if stream == EXPLICIT else 0)

    def column(values: Any) -> np.ndarray:
        return np.array(list(values), np.int64)

    n = len(asks)
    roots = _session_roots(asks)
    return Requests(
        arrival_ns=column(a.arrival_ns if a.after is None else 0 for a in asks),
        prompt_tokens=column(a.num_prompt for a in asks),
        output_tokens=column(a.output_tokens for a in asks),
        max_tokens=column(a.max_tokens for a in asks),
        samples=column(a.samples for a in asks),
        session_id=column(roots),
        turn=column(_turns(asks)),
        after=column(NONE if a.after is None else a.after for a in asks),
        think_ns=column(a.think_ns for a in asks),
        tenant=np.zeros(n, np.int64),
        namespace=column(a.namespace for a in asks),
        priority=column(a.priority for a in asks),
        phase=np.zeros(n, np.int64),
        cancel_ns=column(NONE if a.cancel_ns is None else a.cancel_ns for a in asks),
        output_stream=column(output_stream),
        output_start=column(output_start),
        segment_offset=column(offset),
        segment_stream=column(s for s, _, _ in segments),
        segment_start=column(s for _, s, _ in segments),
        segment_length=column(n for _, _, n in segments),
        token_ids=column(ids),
        joins=column(NONE if a.joins is None else a.joins for a in asks),
        namespaces=("", "other"),
    )


def _segments(runs: list[tuple[int, int, int]], ids: list[int]) -> list[tuple[int, int, int]]:
    segments: list[tuple[int, int, int]] = []
    for stream, start, length in runs:
        if stream != EXPLICIT:
            segments.append((stream, start, length))
            continue
        if segments and segments[-1][0] == EXPLICIT:
            _, begin, before = segments.pop()
        else:
            begin, before = len(ids), 0
        segments.append((EXPLICIT, begin, before + 1))
        ids.append(start)
    return segments


def _session_roots(asks: list[Ask]) -> list[int]:
    roots: list[int] = []
    for i, ask in enumerate(asks):
        roots.append(i if ask.after is None else roots[ask.after])
    return roots


def _turns(asks: list[Ask]) -> list[int]:
    turns: list[int] = []
    for ask in asks:
        turns.append(0 if ask.after is None else turns[ask.after] + 1)
    return turns


def asks_of(requests: Requests) -> list[Ask]:
    """The asks of a table without explicit ids (a trace)."""
    r = requests
    asks = []
    for i in range(len(r)):
        own = slice(r.segment_offset[i], r.segment_offset[i + 1])
        columns = (r.segment_stream[own], r.segment_start[own], r.segment_length[own])
        asks.append(
            Ask(
                prompt=list(zip(*(c.tolist() for c in columns), strict=True)),
                output=[(int(r.output_stream[i]), 0, int(r.output_tokens[i]))],
                arrival_ns=int(r.arrival_ns[i]),
                output_tokens=int(r.output_tokens[i]),
                max_tokens=int(r.max_tokens[i]),
                samples=int(r.samples[i]),
                after=None if r.after[i] == NONE else int(r.after[i]),
                think_ns=int(r.think_ns[i]),
            )
        )
    return asks


# ---------------------------------------------------------------- drawing


@st.composite
def _pieces(draw: st.DrawFn, most: int) -> list[tuple[int, int, int]]:
    """A prompt: the head of a document, or a middle of one, or ids from a small alphabet; perhaps two of these."""
    runs: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["head", "head", "middle", "ids"]))
        if kind == "ids":
            tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
            runs += [(EXPLICIT, token, 1) for token in tokens]
        else:
            start = 0 if kind == "head" else draw(st.integers(0, 20))
            runs.append((draw(st.sampled_from(DOCUMENTS)), start, draw(st.integers(1, most))))
    return runs


@st.composite
def _ask(draw: st.DrawFn, index: int, asks: list[Ask], most: int) -> Ask:
    output = draw(st.sampled_from([1, 2, 5, 9, 17, 30, 60, 60]))
    ids = draw(st.integers(0, 3)) == 0
    stream = FIRST_OWN_STREAM + 10 * index
    ask = Ask(
        prompt=draw(_pieces(most)),
        output=[(EXPLICIT, i % 3, 1) for i in range(output)] if ids else [(stream, 0, output)],
        output_tokens=output,
        max_tokens=max(output + draw(st.sampled_from([0, 0, 0, 3, 20, -2])), 1),
        samples=draw(st.sampled_from([1, 1, 1, 1, 2, 3])),
        namespace=draw(st.sampled_from([0, 0, 0, 1])),
        priority=draw(st.integers(0, 2)),
        cancel_ns=draw(st.sampled_from([None] * 9 + [0, 3_000, 40_000, 400_000])),
    )
    if asks and draw(st.integers(0, 2)) == 0:
        ask.after = draw(st.integers(0, len(asks) - 1))
        if asks[ask.after].joins is not None:
            ask.after = asks[ask.after].joins
        ask.think_ns = draw(st.sampled_from([0, 1, 7_000, 300_000]))
        if draw(st.integers(0, 3)) == 0:
            ask.joins, ask.after = ask.after, asks[ask.after].after  # a call beside that one
        elif draw(st.booleans()):  # a chat: the turn repeats what came before
            before = asks[ask.after]
            ask.prompt = before.prompt + before.output + ask.prompt
            ask.namespace = before.namespace
    return ask


@st.composite
def workloads(draw: st.DrawFn, most_asks: int = 12, most_tokens: int = 60) -> list[Ask]:
    """Asks of up to some hundred tokens, most of them at the same time; steps take some microseconds."""
    asks: list[Ask] = []
    now = 0
    for index in range(draw(st.integers(1, most_asks))):
        ask = draw(_ask(index, asks, most_tokens))
        now += draw(st.sampled_from([0, 0, 0, 1, 900, 9_000, 100_000]))
        if ask.after is None:
            ask.arrival_ns = now
        asks.append(ask)
    return asks
