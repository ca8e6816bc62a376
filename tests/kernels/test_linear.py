"""Products with packed weights against float64, and that a row's bits are its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.kernels import linear
from kvbench.kernels.products import PANEL


def arrays(tokens: int, inputs: int, outputs: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((tokens, inputs)), rng.standard_normal((outputs, inputs))
    return x.astype(np.float32), w.astype(np.float32)


@settings(max_examples=20)
@given(tokens=st.integers(0, 15), inputs=st.integers(1, 40), outputs=st.integers(1, 3 * PANEL + 1))
def test_error_against_float64(tokens, inputs, outputs):
    x, w = arrays(tokens, inputs, outputs)
    y = np.full((tokens, outputs), np.nan, np.float32)
    linear.multiply(x, linear.pack(w), y)
    bound = (inputs + 1) * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64))
    assert (np.abs(y - x.astype(np.float64) @ w.T.astype(np.float64)) <= bound).all()


@settings(max_examples=10)
@given(tokens=st.integers(1, 14), first=st.integers(0, 13), threads=st.integers(1, 2), outputs=st.integers(1, 70))
def test_bits_of_a_row_do_not_depend_on_the_others_nor_on_threads(tokens, first, threads, outputs):
    x, w = arrays(14, 24, outputs)
    packed = linear.pack(w)
    whole, part = np.empty((14, outputs), np.float32), np.empty((len(x[first : first + tokens]), outputs), np.float32)
    linear.multiply(x, packed, whole)
    linear.multiply(x[first : first + tokens], packed, part, threads)
    assert part.tobytes() == whole[first : first + tokens].tobytes()


def test_rows_beyond_a_chunk():
    """More rows than are multiplied with a panel at once."""
    x, w = arrays(50, 8000, 3)
    y = np.empty((50, 3), np.float32)
    linear.multiply(x, linear.pack(w), y)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.T, atol=1e-3)


def test_wrong_shapes_are_refused_before_anything_is_written():
    x, w = arrays(4, 24, 20)
    packed, y = linear.pack(w), np.zeros((4, 20), np.float32)
    wide = np.zeros((4, 20 + linear.PANEL), np.float32)
    for bad_x, bad_y in (
        (x[:, :23], y),
        (x[:3], y),
        (x, wide),
        (x.astype(np.float64), y),
        (x[:, ::-1], y),
    ):
        with pytest.raises(ValueError, match="linear: "):
            linear.multiply(bad_x, packed, bad_y)
    assert not y.any()
