"""Copies of blocks against plain assignment in order: chains, shared sources, every type, past the caches or not."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.kernels import kv_copy
from kvbench.kernels.kv_copy import copy_blocks, copy_layers
from kvbench.kernels.kv_write import write
from kvbench.kernels.layout import KvCache, KvShape
from kvbench.speed.check import poisoned

from ..reference.kv import PlainCache
from .caches import bits, filled, random_rows, shapes
from .test_kv_write import assert_holds

EXAMPLES = 300 if os.environ.get("KVBENCH_LONG") == "1" else 30


def copied(cache: KvCache, pairs: np.ndarray) -> KvCache:
    """What should be there: one assignment after the other."""
    data, scales = cache.data.copy(), cache.scales.copy()
    for source, target in pairs.tolist():
        data[:, target] = data[:, source]
        if cache.shape.kv_dtype == "int8":
            scales[:, target] = scales[:, source]
    return KvCache(cache.shape, data, scales)


@pytest.fixture(params=["through the caches", "past them"])
def path(request, monkeypatch):
    monkeypatch.setattr(kv_copy, "STREAM_FROM", 1 << 60 if request.param == "through the caches" else 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_random_copies_in_order(path, threads):
    @settings(max_examples=EXAMPLES)
    @given(shapes(), st.integers(0, 12), st.integers(0, 2**32 - 1))
    def check(shape, count, seed):
        cache = filled(shape, seed % 1000)
        pairs = np.random.default_rng(seed).integers(0, shape.num_blocks, (count, 2))  # chains and cycles among them
        wanted = bits(copied(cache, pairs))
        written = copy_blocks(cache, pairs, threads)
        assert bits(cache) == wanted
        scales = cache.scales.nbytes if shape.kv_dtype == "int8" else 0
        assert written == (cache.data.nbytes + scales) // shape.num_blocks * count

    check()


def test_a_chain_hands_on(path):
    cache = filled(KvShape(3, 5, 1, 2, 64))
    first = cache.data[:, 0].copy()
    copy_blocks(cache, np.array([(0, 1), (1, 2), (2, 3), (3, 4)]), 2)
    assert all(np.array_equal(cache.data[:, i], first, equal_nan=True) for i in range(5))


@settings(max_examples=EXAMPLES)
@given(shapes(), st.integers(0, 2**32 - 1))
def test_writes_and_copies_mixed(shape, seed):
    """As a sequence that forks: written, copied, both written on; unwritten slots stay poisoned in the copy too."""
    rng = np.random.default_rng(seed)
    cache, plain = poisoned(shape), PlainCache(shape.block_tokens)
    for _ in range(3):
        k, v = random_rows(rng, shape, 3)
        slots = rng.integers(0, shape.num_blocks * shape.block_tokens, 3)
        write(k, v, cache, 0, slots)
        plain.write(k, v, 0, slots)
        pairs = rng.integers(0, shape.num_blocks, (2, 2))
        copy_blocks(cache, pairs)
        plain.copy(pairs, shape.num_layers, shape.num_kv_heads)
    assert_holds(cache, plain)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 511, 512, 513, 1500])
@pytest.mark.parametrize("offset", [0, 1, 8, 63])
def test_any_size_at_any_address(size, offset):
    """Lines are stored whole where they can be; what is before and behind them is there, and no neighbour changes."""
    memory = np.random.default_rng(size).integers(0, 256, 4 * size + 64, np.uint8)
    before = memory.copy()
    rows = memory[offset : offset + 4 * size].reshape(4, size)
    copy_layers(rows, rows, np.array([(0, 2), (2, 3)]), 1, True, 1)
    before[offset + 2 * size : offset + 3 * size] = before[offset : offset + size]
    before[offset + 3 * size : offset + 4 * size] = before[offset : offset + size]
    assert np.array_equal(memory, before)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (np.zeros((2, 3), np.int64), r"pairs are int64 \(2, 3\)"),
        (np.zeros(2, np.int64), "pairs are"),
        (np.zeros((2, 2), np.int32), "pairs are int32"),
        (np.zeros((2, 4), np.int64)[:, ::2], "pairs are"),
        (np.array([(0, 1), (1, 5)]), "block 5 is not in the KV cache; ids are 0 to 4"),
        (np.array([(-1, 1)]), "block -1 is not"),
    ],
)
def test_bad_input_copies_nothing(pairs, message):
    cache = filled(KvShape(1, 5, 1, 2, 64))
    before = bits(cache)
    with pytest.raises(UsageError, match=message):
        copy_blocks(cache, pairs)
    assert bits(cache) == before
