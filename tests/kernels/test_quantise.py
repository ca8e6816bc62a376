"""bf16 bit by bit against exact fractions, int8 against its own bound, inside the kernel and outside."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.kernels.kv_write import write
from kvbench.kernels.layout import KvShape
from kvbench.kernels.packed import halves, unpacked
from kvbench.kernels.quantise import from_bf16, from_int8, loss, through, to_bf16, to_int4, to_int8

from ..reference.kv import bf16, bf16_value

LONG = os.environ.get("KVBENCH_LONG") == "1"
FLOATS = st.integers(0, 2**32 - 1).map(lambda n: np.uint32(n).view(np.float32))
EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x00008000, 0x00018000, 0x0000FFFF, 0x3F808000, 0x3F818000, 0x3F808001,
    0x3F807FFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x007FFFFF, 0x807F8000,
)  # fmt: skip
"""Zeros, the smallest numbers, ties to both sides, what becomes infinite, infinities."""


def through_kernel(x: np.ndarray, kv_dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(data, scales) of rows (n, 64) as `write` stores them."""
    shape = KvShape(1, len(x), 1, 1, 64, "NHD", kv_dtype)
    cache, rows = shape.allocate(), np.ascontiguousarray(x[:, None])
    write(rows, rows, cache, 0, np.arange(len(x)))
    return cache.data[0, :, 0, 0, 0], cache.scales[0, :, 0, 0, 0]


@settings(max_examples=400 if LONG else 40)
@given(st.lists(FLOATS, min_size=1, max_size=64))
def test_bf16_is_the_nearest_and_ties_are_even(values):
    x = np.resize(np.array(values, np.float32), (1, 64))
    found, stored = to_bf16(x), through_kernel(x, "bf16")[0]
    assert found.tolist() == stored.tolist()
    for value, got in zip(x[0], found[0].tolist(), strict=True):
        if np.isnan(value):
            assert (got & 0x7F80, bool(got & 0x7F)) == (0x7F80, True)
            assert got >> 15 == np.signbit(value)
        else:
            assert got == bf16(value), value


def test_bf16_at_the_edges():
    x = np.array(EDGES, np.uint32).view(np.float32)
    assert to_bf16(x).tolist() == [bf16(value) for value in x]
    assert through_kernel(np.resize(x, (1, 64)), "bf16")[0][0, : len(x)].tolist() == [bf16(value) for value in x]


def test_a_nan_of_low_bits_only_stays_a_nan():
    x = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert to_bf16(x).tolist() == [0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF]
    assert np.isnan(from_bf16(to_bf16(x))).all()
    assert through_kernel(np.resize(x, (1, 64)), "bf16")[0][0, :4].tolist() == [0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF]


def test_every_bf16_comes_back():
    every = np.arange(1 << 16, dtype=np.uint16)
    back = to_bf16(from_bf16(every))
    nan = np.isnan(from_bf16(every))
    assert np.array_equal(back[~nan], every[~nan])
    assert np.isnan(from_bf16(back[nan])).all()


@settings(max_examples=200 if LONG else 30)
@given(st.integers(0, 2**32 - 1), st.integers(-30, 37))
def test_int8_is_within_half_a_scale(seed, exponent):
    x = (np.random.default_rng(seed).standard_normal((3, 64)) * 10.0**exponent).astype(np.float32)
    data, scales = to_int8(x)
    stored, stored_scales = through_kernel(x, "int8")
    assert np.array_equal(stored, data)
    assert np.array_equal(stored_scales, scales)
    assert np.array_equal(scales, np.abs(x).max(axis=1) / np.float32(127))
    error = np.abs(from_int8(data, scales).astype(np.float64) - x)
    assert (error <= 0.5001 * scales[:, None].astype(np.float64)).all()
    assert np.abs(data).max(axis=1).tolist() == [127] * 3


def test_int8_rounds_ties_to_even():
    x = np.zeros((1, 64), np.float32)
    x[0, :6] = (127, 0.5, 1.5, 2.5, -0.5, -1.5)
    for data in (to_int8(x)[0], through_kernel(x, "int8")[0]):
        assert data[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("value", "scale"), [(0.0, 0.0), (1e-40, 0.0), (np.inf, np.nan), (-np.inf, np.nan), (np.nan, np.nan)]
)
def test_int8_of_rows_without_a_scale(value, scale):
    x = np.zeros((2, 64), np.float32)
    x[0, 5] = value
    x[1] = 3.0  # its neighbour is not touched by it
    for data, scales in (to_int8(x), through_kernel(x, "int8")):
        assert not data[0].any()
        assert np.array_equal(scales[0], np.float32(scale), equal_nan=True)
        assert (data[1] == 127).all()


@settings(max_examples=200 if LONG else 30)
@given(st.integers(0, 2**32 - 1), st.integers(-30, 36))
def test_int4_is_within_half_a_scale_of_its_group(seed, exponent):
    x = (np.random.default_rng(seed).standard_normal((3, 64)) * 10.0**exponent).astype(np.float32)
    x[:, 32:] *= np.float32(100)  # a group of its own: the first one keeps its scale
    stored = through_kernel(x, "int4")[0]
    assert np.array_equal(stored, to_int4(x))
    elements, bits = halves(stored)
    scales = from_bf16(bits).astype(np.float64)
    assert scales.tolist() == [
        [float(bf16_value(bf16(np.abs(g).max() / np.float32(7)))) for g in r] for r in x.reshape(3, 2, 32)
    ]
    error = np.abs(unpacked(stored, 64).astype(np.float64) - x).reshape(3, 2, 32)
    assert (error <= 0.53 * scales[..., None]).all()
    assert np.abs(elements).max(axis=2).tolist() == [[7, 7]] * 3


@pytest.mark.parametrize(
    ("value", "scale"), [(0.0, 0.0), (1e-40, 0.0), (np.inf, np.nan), (-np.inf, np.nan), (np.nan, np.nan)]
)
def test_int4_of_groups_without_a_scale(value, scale):
    x = np.full((1, 64), 3.0, np.float32)
    x[0, :32] = 0
    x[0, 5] = value
    for rows in (to_int4(x), through_kernel(x, "int4")[0]):
        elements, bits = halves(rows)
        assert not elements[0, 0].any()
        assert np.array_equal(from_bf16(bits)[0, 0], np.float32(scale), equal_nan=True)
        assert (elements[0, 1] == 7).all()  # its neighbour is not touched by it


def test_int4_of_a_head_that_ends_within_a_group():
    x = np.random.default_rng(3).standard_normal((4, 80), np.float32)
    rows = to_int4(x)
    assert rows.shape == (4, 54)
    assert np.abs(unpacked(rows, 80) - x).max() < 0.3
    assert (rows[:, 36 + 2 + 8 :] >> 4 == 8).all()  # unused halves are zero


def test_loss_is_what_the_types_promise():
    x = np.random.default_rng(0).standard_normal((50, 64), np.float32)
    assert loss(x, "float32").greatest == 0
    half, eighth = loss(x, "bf16"), loss(x, "int8")
    assert 0 < half.rms < half.greatest <= np.abs(x).max() * 2**-8
    assert half.relative_rms < eighth.relative_rms < 0.01 < loss(x, "int4").relative_rms < 0.15
    assert eighth.greatest <= np.abs(x).max() / 127 / 2 * 1.0001
    assert loss(np.zeros((1, 64), np.float32), "int8") == loss(np.zeros((1, 64), np.float32), "float32")
    with np.errstate(all="ignore"):
        assert np.isnan(through(np.full((1, 64), np.inf, np.float32), "int8")).all()
