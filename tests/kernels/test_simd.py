"""Vectors and the product of rows and a panel, compiled or plain."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from kvbench.core.jit import entry
from kvbench.kernels.products import PANEL, ROW_TILE, panel_product, strided_product
from kvbench.kernels.simd import (
    LANES,
    add,
    at,
    exp2,
    fma,
    greater,
    greatest,
    later,
    load,
    mul,
    pointer,
    power_of_two,
    soon,
    splat,
    store,
    stream,
    sub,
    total,
)


@entry
def copy_as_floats(stored, out):
    source, target = pointer(stored), at(pointer(out), 0)
    for i in range(0, len(out), LANES):
        soon(source, i + 100)
        later(source, i + 200)
        stream(target, i, load(source, i))


@entry
def calculate(a, b, out, scalars):
    left, right, target = pointer(a), pointer(b), pointer(out)
    store(target, 0, exp2(load(left, 0)))
    store(target, LANES, fma(load(left, 0), load(right, 0), splat(np.float32(3))))
    store(target, 2 * LANES, greater(sub(load(left, 0), load(right, 0)), mul(load(left, 0), load(right, 0))))
    scalars[0], scalars[1] = total(add(load(left, 0), load(right, 0))), greatest(load(left, 0))
    scalars[2] = power_of_two(a[0])


@entry
def multiply(x, w, out, accumulate):
    rows, depth = x.shape
    panel_product(pointer(x), depth, pointer(w), PANEL, pointer(out), PANEL, depth, accumulate, rows)


@entry
def multiply_turned(x, w, out):
    depth, rows = x.shape
    strided_product(pointer(x), 1, rows, pointer(w), PANEL, pointer(out), PANEL, depth, False, rows)


def test_the_three_types_of_kv_are_read_as_floats():
    values = np.random.default_rng(0).standard_normal(4 * LANES).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    small = np.arange(-2 * LANES, 2 * LANES).astype(np.int8)
    aligned = np.zeros(8 * LANES, np.float32)
    start = -(aligned.ctypes.data // 4) % LANES  # a stream goes to whole vectors
    out = aligned[start : start + 4 * LANES]
    for stored, expected in ((values, values), (bits, (bits.astype(np.uint32) << 16).view(np.float32)), (small, small)):
        copy_as_floats(stored, out)
        assert np.array_equal(out, expected)


def test_arithmetic_of_lanes():
    rng = np.random.default_rng(1)
    a, b = -20 * rng.random(LANES, dtype=np.float32), rng.standard_normal(LANES).astype(np.float32)
    out, scalars = np.zeros(3 * LANES, np.float32), np.zeros(3, np.float32)
    calculate(a, b, out, scalars)
    exact_a, exact_b = a.astype(float), b.astype(float)
    np.testing.assert_allclose(out[:LANES], np.exp2(exact_a), rtol=2e-7)
    np.testing.assert_allclose(out[LANES : 2 * LANES], exact_a * exact_b + 3, rtol=0, atol=1e-5)
    np.testing.assert_allclose(out[2 * LANES :], np.maximum(exact_a - exact_b, exact_a * exact_b), rtol=1e-6)
    np.testing.assert_allclose(scalars, [(exact_a + exact_b).sum(), a.max(), np.exp2(exact_a[0])], rtol=1e-5)


def test_two_to_the_power_of_anything_not_above_zero():
    x = np.concatenate([-np.geomspace(1e-6, 126, 400 * LANES - 2), [0.0, -1e30]]).astype(np.float32)
    out, scalars = np.zeros(3 * LANES, np.float32), np.zeros(3, np.float32)
    for i in range(0, len(x), LANES):
        calculate(x[i : i + LANES].copy(), np.ones(LANES, np.float32), out, scalars)
        expected = np.exp2(np.maximum(x[i : i + LANES].astype(float), -126))
        np.testing.assert_allclose(out[:LANES], expected, rtol=2e-7)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, ROW_TILE, ROW_TILE + 1, 3 * ROW_TILE + 5])
def test_a_row_of_a_product_has_the_same_bits_among_any_rows(rows):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((rows, 37), dtype=np.float32), rng.standard_normal((37, PANEL), dtype=np.float32)
    out = np.full((rows, PANEL), np.nan, np.float32)
    multiply(x, w, out, False)
    np.testing.assert_allclose(out, x.astype(float) @ w, rtol=0, atol=1e-5)
    alone, turned = np.empty((1, PANEL), np.float32), np.empty_like(out)
    for row in range(rows):
        multiply(x[row : row + 1], w, alone, False)
        assert np.array_equal(alone[0], out[row])
    multiply_turned(np.ascontiguousarray(x.T), w, turned)
    assert np.array_equal(turned, out)
    multiply(x, w, turned, True)
    np.testing.assert_allclose(turned, 2 * out, rtol=1e-5, atol=1e-5)


def test_a_cpu_that_nobody_knows_gets_short_vectors():
    code = "from kvbench.kernels.simd import LANES, FUSED; print(LANES, FUSED)"
    env = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "False"]
