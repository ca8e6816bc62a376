"""Block keys: equal exactly where the tokens of two blocks are, however a prompt was cut into segments."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.core.requests import EXPLICIT, MAX_STREAM, MAX_STREAM_TOKENS
from kvbench.prefix import keys as product
from kvbench.prefix.keys import block_keys, sequence_keys

from ..engine.workloads import request_table
from ..reference.engine import Ask
from ..reference.timed import block_contents, tokens_of

Run = tuple[int, int, int]


@entry
def window(keys, sequence, start, stop, out):
    product.fill_keys(keys, sequence, start, stop, out)


@entry
def one_key(keys, sequence, block):
    return product.key_at(keys, sequence, block)


def naive_blocks(runs: list[Run], block_tokens: int) -> list[tuple[Any, ...]]:
    """Whole blocks as tuples of tokens: (stream, index) of a virtual one, (EXPLICIT, id) of an explicit one."""
    tokens = tokens_of(runs)
    return [tuple(tokens[i : i + block_tokens]) for i in range(0, len(tokens) - block_tokens + 1, block_tokens)]


def keys_of(asks: list[Ask], block_tokens: int) -> list[list[int]]:
    """Keys of prompt and output of every sequence."""
    keys = block_keys(request_table(asks), block_tokens)
    tokens = [ask.num_prompt + ask.output_tokens for ask in asks for _ in range(ask.samples)]
    return [sequence_keys(keys, np.int64(s), n // block_tokens).tolist() for s, n in enumerate(tokens)]


def assert_keys_name_contents(asks: list[Ask], block_tokens: int) -> None:
    """key -> content and content -> key are functions, over all blocks of all sequences."""
    key_of: dict[Any, int] = {}
    content_of: dict[int, Any] = {}
    sequences = [(ask, sample) for ask in asks for sample in range(ask.samples)]
    for (ask, sample), keys in zip(sequences, keys_of(asks, block_tokens), strict=True):
        output = [(stream + sample if stream else EXPLICIT, start, n) for stream, start, n in ask.output]
        contents = naive_blocks(ask.prompt + output, block_tokens)
        assert len(contents) == len(keys)
        for content, key in zip(contents, keys, strict=True):
            assert key_of.setdefault(content, key) == key, content
            assert content_of.setdefault(key, content) == content, key


def cut(runs: list[Run], at: list[int]) -> list[Run]:
    """The same tokens in other pieces: cut at these offsets."""
    pieces: list[Run] = []
    begin = 0
    for stream, start, length in runs:
        inner = sorted({0, length} | {a - begin for a in at if 0 < a - begin < length})
        pieces += [(stream, start + a, b - a) for a, b in pairwise(inner)]
        begin += length
    return pieces


@st.composite
def prompts(draw: st.DrawFn) -> list[Run]:
    """Heads, middles and continuations of two streams, and ids out of three, so that blocks meet by chance."""
    runs: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["stream", "stream", "continue", "ids"]))
        length = draw(st.integers(1, 14))
        if kind == "ids":
            runs += [(EXPLICIT, token, 1) for token in draw(st.lists(st.integers(0, 2), min_size=1, max_size=14))]
        elif kind == "continue" and runs and runs[-1][0] != EXPLICIT:
            stream, start, before = runs[-1]
            runs.append((stream, start + before, length))
        else:
            runs.append((draw(st.integers(1, 2)), draw(st.integers(0, 9)), length))
    return runs


@st.composite
def tables(draw: st.DrawFn) -> list[Ask]:
    asks = []
    for i in range(draw(st.integers(1, 6))):
        n = draw(st.integers(1, 12))
        ids = [(EXPLICIT, draw(st.integers(0, 2)), 1) for _ in range(n)]
        output = draw(st.sampled_from([[(1, 0, n)], [(10 + 5 * i, 0, n)], ids]))
        asks.append(Ask(draw(prompts()), output, output_tokens=n, max_tokens=n, samples=draw(st.integers(1, 2))))
    return asks


@given(asks=tables(), block_tokens=st.sampled_from([1, 2, 3, 4, 7, 16]))
def test_keys_are_equal_exactly_where_tokens_are(asks, block_tokens):
    assert_keys_name_contents(asks, block_tokens)


@given(runs=prompts(), at=st.lists(st.integers(1, 50), max_size=6), block_tokens=st.integers(1, 6))
def test_cutting_a_segment_changes_nothing(runs, at, block_tokens):
    output = [(99, 0, 5)]
    asks = [Ask(prompt, output, output_tokens=5, max_tokens=5) for prompt in (runs, cut(runs, at))]
    whole, pieces = keys_of(asks, block_tokens)
    assert whole == pieces


@given(runs=prompts(), block_tokens=st.integers(1, 6))
def test_the_reference_names_contents_too(runs, block_tokens):
    """The canonical runs by which the reference engine names a block stand for its tokens."""
    contents = block_contents(runs, block_tokens)
    assert [tuple(tokens_of(list(content))) for content in contents] == naive_blocks(runs, block_tokens)


@given(data=st.data(), asks=tables(), block_tokens=st.sampled_from([1, 3, 4]))
def test_any_window_and_any_single_key(data, asks, block_tokens):
    keys = block_keys(request_table(asks), block_tokens)
    for sequence, whole in enumerate(keys_of(asks, block_tokens)):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        out = np.full(len(whole) + 1, 7, np.int64)
        window(keys, sequence, start, stop, out)
        assert out.tolist() == [7] * start + whole[start:stop] + [7] * (len(whole) + 1 - stop)
        assert [one_key(keys, sequence, block) for block in range(len(whole))] == whole


def test_a_generated_output_meets_the_next_turn():
    """What was generated is found by the prompt that repeats it, though it begins in the middle of a block."""
    first = Ask([(1, 0, 6)], [(50, 0, 9)], output_tokens=9, max_tokens=9)
    turn = Ask([(1, 0, 6), (50, 0, 9), (2, 0, 5)], [(60, 0, 4)], output_tokens=4, max_tokens=4)
    before, after = keys_of([first, turn], 4)
    assert after[:3] == before[:3]
    assert after[3] not in before


def test_samples_differ_from_their_first_own_token_on():
    ask = Ask([(1, 0, 4)], [(50, 0, 8)], output_tokens=8, max_tokens=8, samples=3)
    sequences = keys_of([ask], 4)
    assert len({tuple(keys[:1]) for keys in sequences}) == 1
    assert len({keys[1] for keys in sequences}) == 3


def test_virtual_and_explicit_never_meet():
    virtual = [(1, 0, 4), (2, 5, 3), (3, 0, 1)]
    explicit = [(EXPLICIT, token, 1) for token in (0, 1, 2, 3, 5, 6, 7, 0)]
    a, b = keys_of([Ask(virtual, [(9, 0, 1)]), Ask(explicit, [(9, 0, 1)])], 4)
    assert not set(a) & set(b)


@pytest.mark.parametrize("block_tokens", [1, 16])
def test_the_largest_streams_and_offsets(block_tokens):
    last = MAX_STREAM_TOKENS - 32
    places = [(MAX_STREAM - 2, last), (MAX_STREAM - 2, 0), (MAX_STREAM - 3, last), (1, last), (1, 0)]
    asks = [Ask([(stream, start, 32)], [(7, 0, 1)]) for stream, start in places]
    assert_keys_name_contents(asks, block_tokens)
    assert min(min(keys) for keys in keys_of(asks, block_tokens)) >= 0


def test_many_contents_are_told_apart():
    """The table of interned blocks grows and is hashed anew."""
    random = np.random.default_rng(1)
    asks = []
    for i in range(400):
        ids = [(EXPLICIT, int(token), 1) for token in random.integers(0, 3, 24)]
        asks.append(Ask([(1, int(random.integers(1, 40)), 7), *ids], [(1000 + i, 0, 1)]))
    assert_keys_name_contents(asks, 3)


@pytest.mark.parametrize("block_tokens", [2, 3])
def test_prompts_of_ids_that_leave_each_other_at_any_token(block_tokens):
    """Hundreds of blocks: guessed from what followed before, hashed ahead, or gathered across a cut."""
    random = np.random.default_rng(2)
    prompts = [random.integers(0, 3, 150).tolist()]
    for _ in range(30):
        before = prompts[random.integers(0, len(prompts))]
        prompts.append(before[: random.integers(0, 150)] + random.integers(0, 3, 20).tolist())
    asks = []
    for i, ids in enumerate(prompts):
        runs = [(EXPLICIT, token, 1) for token in ids]
        asks.append(Ask(runs, [(1000 + i, 0, 1)]))
        asks.append(Ask([*runs[:7], (1, 0, 5), *runs], [(2000 + i, 0, 1)]))
    assert_keys_name_contents(asks, block_tokens)


def test_a_repeated_prompt_of_ids_is_one_run():
    ids = np.random.default_rng(3).integers(0, 9, 64)
    runs = [(EXPLICIT, int(token), 1) for token in ids]
    keys = block_keys(request_table([Ask(runs, [(7, 0, 1)])] * 2), 4)
    assert len(np.unique(ids.reshape(-1, 4), axis=0)) == 16
    assert np.diff(keys.offset).tolist() == [1, 1]
