"""Paged decode and prefill attention: against float64, and bit by bit against itself."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.kernels.decode import paged_decode
from kvbench.kernels.layout import HEAD_DIMS, KV_DTYPES, LAYOUTS, KvCache, KvShape
from kvbench.kernels.prefill import paged_prefill

from ..reference.attention import attention, poisoned, write

EXAMPLES = 200 if os.environ.get("KVBENCH_LONG") == "1" else 12
DTYPES = tuple(KV_DTYPES) if PLAIN else ("float32", "bf16")  # each type is compiled on its own
BOUND = 2e-5


class Case:
    """Rows with lengths over a cache whose other slots are not numbers, and a query each."""

    def __init__(self, shape: KvShape, lengths: list[int], group: int, seed: int, spare: int = 1) -> None:
        rng, order = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        self.cache, self.lengths = poisoned(shape), np.array(lengths, np.int64)
        size = shape.block_tokens
        most = max([*lengths, 1])
        self.tables = np.full((len(lengths), -(-most // size) + spare), -1, np.int32)
        ids = iter(order.permutation(shape.num_blocks - 1) + 1)
        for row, length in enumerate(lengths):
            for i in range(-(-length // size)):
                self.tables[row, i] = next(ids)
            tokens = np.arange(length)
            write(self.cache, self.tables[row, tokens // size].astype(np.int64) * size + tokens % size, rng)
        self.q = rng.standard_normal((len(lengths), shape.num_kv_heads * group, shape.head_dim)).astype(np.float32)

    def decode(self, rows: Any = slice(None), **options: Any) -> Any:
        q = self.q[rows]
        out = np.full_like(q, np.nan)
        paged_decode(q, self.cache, 1, self.tables[rows], self.lengths[rows], out, **options)
        return out

    def expected(self, window: int = 0) -> Any:
        rows = range(len(self.q))
        found = [attention(self.q[r], self.cache, 1, self.tables[r], int(self.lengths[r]), window) for r in rows]
        return np.array(found).reshape(self.q.shape)


def shape_of(blocks: int, size: int, head_dim: int = 64, heads: int = 2, layout: str = "NHD", dtype: str = "float32"):
    return KvShape(2, blocks, heads, size, head_dim, layout, dtype)


@st.composite
def cases(draw: Any) -> Case:
    lengths = draw(st.lists(st.integers(0, 45), max_size=4))
    size = draw(st.sampled_from((1, 3, 16, 256)))
    blocks = 1 + sum(-(-n // size) for n in lengths) + draw(st.integers(0, 2))
    shape = shape_of(
        blocks,
        size,
        draw(st.sampled_from(HEAD_DIMS if PLAIN else (64, 128))),
        draw(st.integers(1, 2)),
        draw(st.sampled_from(LAYOUTS if PLAIN else ("NHD",))),
        draw(st.sampled_from(DTYPES)),
    )
    return Case(shape, lengths, draw(st.sampled_from((1, 2, 3, 4, 5, 8))), draw(st.integers(0, 99)))


def chunk_all(case: Case, row: int, chunk: int, exact: bool, **options: Any) -> Any:
    """All positions of one row, a query each, in chunks of so many tokens."""
    length = int(case.lengths[row])
    q = np.random.default_rng(5).standard_normal((length, *case.q.shape[1:])).astype(np.float32)
    out = np.full_like(q, np.nan)
    table = case.tables[row : row + 1]
    for start in range(0, length, chunk):
        part = slice(start, min(start + chunk, length))
        starts, context = np.array([0, part.stop - start]), np.array([start])
        paged_prefill(q[part], case.cache, 1, table, starts, context, out[part], exact=exact, **options)
    return q, out


@settings(max_examples=EXAMPLES)
@given(cases(), st.sampled_from((0, 1, 20)))
def test_decode_is_attention(case, window):
    np.testing.assert_allclose(case.decode(window=window), case.expected(window), rtol=0, atol=BOUND)


@settings(max_examples=EXAMPLES)
@given(cases(), st.sampled_from((0, 1, 20)), st.booleans(), st.data())
def test_prefill_is_attention_at_every_position(case, window, exact, data):
    counts = [data.draw(st.integers(0, min(int(n), 12))) for n in case.lengths]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    contexts = case.lengths - np.array(counts, np.int64)
    q = np.random.default_rng(3).standard_normal((sum(counts), *case.q.shape[1:])).astype(np.float32)
    out = np.full_like(q, np.nan)
    paged_prefill(q, case.cache, 1, case.tables, starts, contexts, out, window=window, exact=exact)
    for r, count in enumerate(counts):
        for i in range(count):
            row = int(starts[r]) + i
            expected = attention(q[row], case.cache, 1, case.tables[r], int(contexts[r]) + i + 1, window)
            np.testing.assert_allclose(out[row], expected, rtol=0, atol=BOUND)


def test_a_row_of_several_splits_and_tiles():
    case = Case(shape_of(140, 16, heads=1), [1100, 40, 1024], 2, 8)
    np.testing.assert_allclose(case.decode(), case.expected(), rtol=0, atol=BOUND)
    np.testing.assert_allclose(case.decode(window=1050), case.expected(1050), rtol=0, atol=BOUND)


def test_scores_far_apart():
    """The first keys outweigh all others by e^60 and more, in either order."""
    case = Case(shape_of(9, 16), [100], 3, 4)
    for sign in (30, -30):
        case.q *= sign
        np.testing.assert_allclose(case.decode(), case.expected(), rtol=0, atol=BOUND)


def bits_of_one_row(dtype: str, size: int, layout: str, seed: int, **options: Any) -> Any:
    """Row 1 of three, whatever is beside it and wherever its blocks are."""
    case = Case(shape_of(200, size, layout=layout, dtype=dtype), [5, 90, 33], 3, 7)
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.arange(1, 200))[: case.tables.shape[1]].astype(np.int32)
    moved = poisoned(case.cache.shape)
    for new, old in zip(ids, case.tables[1], strict=True):
        if old >= 0:
            moved.data[:, new], moved.scales[:, new % moved.scales.shape[1]] = (
                case.cache.data[:, old],
                (case.cache.scales[:, old % case.cache.scales.shape[1]]),
            )
    out = np.full_like(case.q[1:2], np.nan)
    paged_decode(case.q[1:2], moved, 1, ids[None], case.lengths[1:2], out, **options)
    return out[0], case


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_the_row_alone(dtype):
    alone, case = bits_of_one_row(dtype, 16, "NHD", 1)
    assert np.array_equal(alone, case.decode()[1])  # beside others
    assert np.array_equal(alone, case.decode([2, 1])[1])  # in another order
    assert np.array_equal(alone, case.decode(threads=2)[1])
    assert np.array_equal(alone, case.decode(threads=5)[1])
    for size, layout, seed in ((1, "NHD", 2), (7, "HND", 3), (64, "HND", 4)):
        assert np.array_equal(alone, bits_of_one_row(dtype, size, layout, seed)[0]), (size, layout)


def test_rows_that_share_blocks():
    case = Case(shape_of(20, 4), [30, 1], 1, 3)
    case.tables[1], case.q[1], case.lengths[1] = case.tables[0], case.q[0], 29
    out = case.decode()
    np.testing.assert_allclose(out, case.expected(), rtol=0, atol=BOUND)
    case.lengths[1] = 30
    assert np.array_equal(case.decode()[1], out[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_prefill_has_the_bits_of_decode_under_any_chunking(dtype):
    case = Case(shape_of(30, 4, heads=1, dtype=dtype), [40], 3, 6)
    q, whole = chunk_all(case, 0, 40, True)
    for chunk in (1, 7, 32):
        assert np.array_equal(chunk_all(case, 0, chunk, True)[1], whole), chunk
    assert np.array_equal(chunk_all(case, 0, 16, True, threads=2)[1], whole)
    tables = np.repeat(case.tables, 40, axis=0)
    decoded = np.empty_like(q)
    paged_decode(q, case.cache, 1, tables, np.arange(1, 41), decoded)
    assert np.array_equal(decoded, whole)
    fast = chunk_all(case, 0, 33, False, threads=2)[1]
    np.testing.assert_allclose(fast, whole, rtol=0, atol=BOUND)


def test_many_query_rows_and_several_tiles():
    """More rows than an item takes, and KV of several tiles, with and without a window inside a tile."""
    case = Case(shape_of(60, 4, heads=1), [230], 5, 2)
    for window in (0, 30, 130):
        q, out = chunk_all(case, 0, 115, False, window=window)
        for i in (0, 29, 30, 95, 96, 131, 199, 229):
            expected = attention(q[i], case.cache, 1, case.tables[0], i + 1, window)
            np.testing.assert_allclose(out[i], expected, rtol=0, atol=BOUND)


def arguments(**changed: Any) -> dict[str, Any]:
    case = Case(shape_of(9, 16), [40, 3], 2, 1)
    given = {"q": case.q, "cache": case.cache, "layer": 1, "tables": case.tables, "lengths": case.lengths}
    return given | {"out": np.empty_like(case.q)} | changed


WRONG = {
    "q of another type": {"q": np.zeros((2, 4, 64))},
    "q of another head size": {"q": np.zeros((2, 4, 80), np.float32)},
    "q with heads that share nothing": {"q": np.zeros((2, 3, 64), np.float32), "out": np.zeros((2, 3, 64), np.float32)},
    "q that is a view": {"q": np.zeros((2, 8, 64), np.float32)[:, ::2]},
    "out of another shape": {"out": np.zeros((1, 4, 64), np.float32)},
    "tables of another type": {"tables": np.zeros((2, 4), np.int64)},
    "tables of one row": {"tables": np.zeros((1, 4), np.int32)},
    "a block id past the cache": {"tables": np.full((2, 4), 9, np.int32)},
    "a block id below 0": {"tables": np.full((2, 4), -1, np.int32)},
    "lengths of another type": {"lengths": np.array([40, 3], np.int32)},
    "a length past the table": {"lengths": np.array([40, 65], np.int64)},
    "a length below 0": {"lengths": np.array([40, -1], np.int64)},
    "a layer that is not there": {"layer": 2},
    "no thread": {"threads": 0},
    "a window below 0": {"window": -1},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_in_one_line(changed):
    paged_decode(**arguments())
    with pytest.raises(UsageError) as refused:
        paged_decode(**arguments(**changed))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("starts", "contexts"),
    [([0, 1], [0, 0]), ([0, 1, 3], [0, 0]), ([0, 2, 1], [0, 0]), ([0, 1, 2], [64, 0]), ([0, 1, 2], [-1, 0])],
)
def test_chunks_that_do_not_fit_are_refused_in_one_line(starts, contexts):
    given = arguments()
    lengths = given.pop("lengths")
    paged_prefill(row_starts=np.array([0, 1, 2]), contexts=lengths - 1, **given)
    for exact in (False, True):
        with pytest.raises(UsageError) as refused:
            paged_prefill(row_starts=np.array(starts), contexts=np.array(contexts), exact=exact, **given)
        assert "\n" not in str(refused.value)


def test_no_rows_no_work():
    case = Case(shape_of(3, 4), [], 2, 0)
    assert case.decode().shape == (0, 4, 64)
    paged_prefill(case.q, case.cache, 1, case.tables, np.array([0]), np.zeros(0, np.int64), case.q.copy())


def test_a_share_that_fails_is_heard():
    from kvbench.kernels.threads import share_out

    def work(share: int, first: int, last: int) -> None:
        if share == 1:
            raise ValueError(f"{first} to {last}")

    with pytest.raises(ValueError, match="2 to 5"):
        share_out(work, [0, 2, 5])


def test_the_cache_is_described_by_its_shape():
    shape = shape_of(5, 4, 80, 3, "HND", "int8")
    cache = shape.allocate()
    assert cache.data.shape == (2, 5, 2, 3, 4, 80)
    assert cache.scales.shape == (2, 5, 2, 3, 4)
    assert shape.nbytes == cache.data.nbytes + cache.scales.nbytes
    assert shape_of(5, 4, 80, 3).allocate().data.shape == (2, 5, 2, 4, 3, 80)
    for layout in LAYOUTS:
        other = KvShape(1, 5, 3, 4, 80, layout)
        strides = [s // 4 for s in other.allocate().data.strides]
        block, side, token, head = strides[1], strides[2], *strides[3:5]
        assert other.strides == (block, side, head, token) if layout == "NHD" else (block, side, token, head)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_blocks": 0}, {"num_layers": 1.5}, {"block_tokens": 257}, {"head_dim": 72}, {"layout": "DHN"},
        {"kv_dtype": "float16"}, {"num_blocks": 2**32},
    ],
)  # fmt: skip
def test_sizes_that_make_no_sense(changed):
    given = {"num_layers": 1, "num_blocks": 4, "num_kv_heads": 2, "block_tokens": 16, "head_dim": 64}
    with pytest.raises(UsageError) as refused:
        KvShape(**given | changed)
    assert "\n" not in str(refused.value)


def test_memory_of_another_shape_is_no_cache():
    shape = shape_of(4, 4)
    with pytest.raises(UsageError, match="C-contiguous"):
        KvCache(shape, np.zeros((2, 3)), np.zeros(shape.scales_shape, np.float32))
