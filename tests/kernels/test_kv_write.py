"""KV write and gather against a plain dictionary of slots: random shapes, all types and layouts, no more touched."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.kernels import kv_write
from kvbench.kernels.kv_write import gather, write
from kvbench.kernels.layout import KV_DTYPES, LAYOUTS, KvCache, KvShape
from kvbench.kernels.quantise import through
from kvbench.speed.check import poisoned

from ..reference.kv import PlainCache
from .caches import bits, filled, random_rows, shapes

EXAMPLES = 300 if os.environ.get("KVBENCH_LONG") == "1" else 30


def read_back(cache: KvCache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Every slot, by `gather` over all blocks in order."""
    shape = cache.shape
    table = np.arange(shape.num_blocks, dtype=np.int32)
    return gather(cache, layer, table, shape.num_blocks * shape.block_tokens)


def assert_holds(cache: KvCache, plain: PlainCache) -> None:
    """Every slot of every layer has what was written last, or is poisoned still."""
    shape = cache.shape
    untouched = poisoned(shape)
    for layer in range(shape.num_layers):
        found, poison = read_back(cache, layer), read_back(untouched, layer)
        for slot in range(shape.num_blocks * shape.block_tokens):
            for head in range(shape.num_kv_heads):
                held = plain.held.get((layer, slot, head))
                for side in range(2):
                    wanted = poison[side][slot, head] if held is None else through(held[side], shape.kv_dtype)
                    assert np.array_equal(found[side][slot, head], wanted, equal_nan=True)


@settings(max_examples=EXAMPLES)
@given(shapes(), st.lists(st.integers(0, 8), min_size=1, max_size=3), st.integers(0, 2**32 - 1), st.booleans())
def test_what_is_written_is_read_and_nothing_else_changes(shape, counts, seed, past_caches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_write, "STREAM_FROM", 0 if past_caches else 1 << 40)
        write_and_compare(shape, counts, seed)


def write_and_compare(shape: KvShape, counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache, plain = poisoned(shape), PlainCache(shape.block_tokens)
    for count in counts:  # later calls write over earlier ones
        k, v = random_rows(rng, shape, count)
        slots = rng.integers(0, shape.num_blocks * shape.block_tokens, count)  # the same one twice, too
        layer = int(rng.integers(0, shape.num_layers))
        write(k, v, cache, layer, slots)
        plain.write(k, v, layer, slots)
    assert_holds(cache, plain)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_bits_do_not_depend_on_batch_layout_or_threads(monkeypatch, kv_dtype, twice):
    monkeypatch.setattr(kv_write, "SHARE_FROM", 0)
    rng = np.random.default_rng(0)
    shape = KvShape(1, 7, 3, 4, 80, "NHD", kv_dtype)
    k, v = random_rows(rng, shape, 20)
    slots = rng.permutation(28)[:20]
    if twice:
        slots[5] = slots[11]  # the later one wins, whoever writes it
    found = []
    for layout in LAYOUTS:
        for threads in (1, 2, 5):
            cache = KvShape(1, 7, 3, 4, 80, layout, kv_dtype).allocate()
            write(k, v, cache, 0, slots, threads)
            found.append(np.stack(read_back(cache, 0)).tobytes())
    monkeypatch.setattr(kv_write, "STREAM_FROM", 0)
    one_by_one = shape.allocate()
    for t in range(20):
        write(k[t : t + 1], v[t : t + 1], one_by_one, 0, slots[t : t + 1])
    found.append(np.stack(read_back(one_by_one, 0)).tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_rows_that_are_no_whole_lines_go_through_the_caches(monkeypatch, kv_dtype):
    """Also of memory that begins elsewhere, as NumPy's does: the bits are the same."""
    monkeypatch.setattr(kv_write, "STREAM_FROM", 0)
    rng = np.random.default_rng(2)
    shape = KvShape(1, 3, 2, 4, 128, "HND", kv_dtype)
    k, v = random_rows(rng, shape, 12)
    aligned = shape.allocate()
    memory = np.zeros(aligned.data.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 8
    data = memory[start : start + aligned.data.nbytes].view(aligned.data.dtype).reshape(aligned.data.shape)
    shifted = KvCache(shape, data, np.zeros_like(aligned.scales))
    slots = rng.permutation(12)
    for cache in (aligned, shifted):
        write(k, v, cache, 0, slots)
    assert aligned.data.tobytes() == shifted.data.tobytes()
    assert aligned.scales.tobytes() == shifted.scales.tobytes()
    assert kv_write._in_whole_lines(aligned) == (kv_dtype != "int4")
    assert not kv_write._in_whole_lines(shifted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_a_token_lies(layout):
    """The layout's own words, without any kernel to read it back."""
    shape = KvShape(2, 3, 2, 4, 64, layout)
    cache = poisoned(shape)
    k, v = random_rows(np.random.default_rng(1), shape, 1)
    write(k, v, cache, 1, np.array([2 * 4 + 3]))
    block = cache.data[1, 2]
    at = (3, slice(None)) if layout == "NHD" else (slice(None), 3)
    assert np.array_equal(block[0][at], k[0])
    assert np.array_equal(block[1][at], v[0])
    assert np.isnan(cache.data).sum() == cache.data.size - k.size - v.size


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_gather_follows_the_table(kv_dtype):
    shape = KvShape(2, 6, 2, 4, 64, "HND", kv_dtype)
    cache = poisoned(shape)
    k, v = random_rows(np.random.default_rng(2), shape, 11)
    table = np.array([4, 1, 5, 0], np.int32)
    positions = np.arange(11)
    write(k, v, cache, 1, table[positions // 4] * np.int64(4) + positions % 4)
    for length in (0, 1, 4, 9, 11):
        found = gather(cache, 1, table, length)
        assert found[0].tobytes() == through(k[:length], kv_dtype).tobytes()
        assert found[1].tobytes() == through(v[:length], kv_dtype).tobytes()
    shared = gather(cache, 1, np.array([4, 4], np.int32), 8)[0]  # one block in two places
    assert np.array_equal(shared[:4], shared[4:])


def test_nothing_is_written_for_no_tokens():
    cache = filled(KvShape(1, 2, 2, 4, 64))
    before = bits(cache)
    empty = np.zeros((0, 2, 64), np.float32)
    write(empty, empty, cache, 0, np.zeros(0, np.int64), 2)
    assert bits(cache) == before


GOOD = np.zeros((3, 2, 64), np.float32)
SLOTS = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("k", "v", "layer", "slots", "message"),
    [
        (GOOD, GOOD, 2, SLOTS, "layer 2 of 2"),
        (GOOD, GOOD, -1, SLOTS, "layer -1 of 2"),
        (GOOD[:2], GOOD, 0, SLOTS, "k is float32"),
        (GOOD, GOOD[:, :1], 0, SLOTS, "v is float32"),
        (GOOD, GOOD[:, :, :32], 0, SLOTS, "v is float32"),
        (GOOD.astype(np.float64), GOOD, 0, SLOTS, "k is float64"),
        (np.zeros((3, 64, 2), np.float32).swapaxes(1, 2), GOOD, 0, SLOTS, "C-contiguous"),
        (GOOD, GOOD, 0, SLOTS.astype(np.int32), "slots are int32"),
        (GOOD, GOOD, 0, SLOTS[:, None], "slots are int64"),
        (GOOD, GOOD, 0, np.arange(6)[::2], "C-contiguous"),
        (GOOD, GOOD, 0, np.array([0, 1, 12]), "slot 12 is not in the KV cache; ids are 0 to 11"),
        (GOOD, GOOD, 0, np.array([0, -1, 2]), "slot -1 is not"),
    ],
)
def test_bad_input_writes_nothing(k, v, layer, slots, message):
    cache = filled(KvShape(2, 3, 2, 4, 64))
    before = bits(cache)
    with pytest.raises(UsageError, match=message) as error:
        write(k, v, cache, layer, slots)
    assert "\n" not in str(error.value)
    assert bits(cache) == before


@pytest.mark.parametrize(
    ("layer", "table", "length", "message"),
    [
        (2, np.zeros(2, np.int32), 4, "layer 2 of 2"),
        (0, np.zeros(2, np.int64), 4, "table is int64"),
        (0, np.zeros((1, 2), np.int32), 4, "table is int32"),
        (0, np.zeros(2, np.int32), 9, "9 tokens need 3 blocks; the table has 2"),
        (0, np.zeros(2, np.int32), -1, "-1 tokens"),
        (0, np.array([0, 3], np.int32), 8, "block 3 is not in the KV cache"),
        (0, np.array([-1, 0], np.int32), 8, "block -1 is not"),
    ],
)
def test_bad_input_of_gather(layer, table, length, message):
    with pytest.raises(UsageError, match=message):
        gather(KvShape(2, 3, 2, 4, 64).allocate(), layer, table, length)


def test_gather_does_not_look_behind_the_last_block():
    assert gather(KvShape(1, 3, 2, 4, 64).allocate(), 0, np.array([1, 99], np.int32), 4)[0].shape == (4, 2, 64)
