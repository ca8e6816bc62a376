"""Norms, rotary positions and SwiGLU against float64 NumPy; each row for itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.kernels import elementwise
from tests.reference import transformer

rows_of = st.integers(0, 6)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@settings(max_examples=15)
@given(rows=rows_of, width=st.sampled_from([16, 48, 208]), scale=st.sampled_from([1e-4, 1.0, 1e6]))
def test_norms(rows, width, scale):
    x, change, weight = normal(rows, width, scale=scale), normal(rows, width, seed=1), normal(width, seed=2)
    out, added = np.empty_like(x), x.copy()
    elementwise.rms_norm(x, weight, 1e-5, out)
    np.testing.assert_allclose(out, transformer.rms_norm(x.astype(np.float64), weight, 1e-5), rtol=2e-6, atol=1e-30)
    elementwise.add_rms_norm(added, change, weight, 1e-5, out)
    assert (added == x + change).all()
    np.testing.assert_allclose(out, transformer.rms_norm(added.astype(np.float64), weight, 1e-5), rtol=2e-6, atol=1e-30)


@settings(max_examples=15)
@given(
    rows=rows_of, kv_heads=st.integers(1, 2), group=st.integers(1, 3), dim=st.sampled_from([64, 80]), norm=st.booleans()
)
def test_heads_are_normalised_and_turned(rows, kv_heads, group, dim, norm):
    heads = kv_heads * group
    qkv, norms = normal(rows, (heads + 2 * kv_heads) * dim), normal(2 if norm else 0, dim, seed=1)
    angle = np.arange(rows)[:, None] / 1e4 ** (np.arange(0, dim, 2) / dim)
    q, k, v = (np.full((rows, n, dim), np.nan, np.float32) for n in (heads, kv_heads, kv_heads))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    elementwise.split_heads(qkv, norms, 1e-6, cos, sin, q, k, v)
    wanted = np.split(
        qkv.astype(np.float64).reshape(rows, heads + 2 * kv_heads, dim), (heads, heads + kv_heads), axis=1
    )
    for i, found in enumerate((q, k)):
        x = transformer.rms_norm(wanted[i], norms[i], 1e-6) if norm else wanted[i]
        np.testing.assert_allclose(found, transformer.rotate(x, 1e4), atol=3e-6)
    assert (v == wanted[2]).all()


@settings(max_examples=10)
@given(rows=rows_of, width=st.sampled_from([16, 96]), scale=st.sampled_from([0.1, 5.0, 300.0]))
def test_swiglu(rows, width, scale):
    gate_up, out = normal(rows, 2 * width, scale=scale), np.empty((rows, width), np.float32)
    elementwise.swiglu(gate_up, out)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    wanted = gate / (1 + np.exp(-gate)) * up
    bound = np.abs(wanted) * (1e-6 + 2e-7 * np.abs(gate)) + 1e-28  # the exponent itself is rounded
    assert (np.abs(out - wanted) <= bound).all()


def test_a_row_does_not_depend_on_the_others():
    x, weight, gate_up = normal(7, 48), normal(48, seed=1), normal(7, 96)
    together, alone = np.empty((2, 7, 48), np.float32), np.empty((2, 7, 48), np.float32)
    elementwise.rms_norm(x, weight, 1e-5, together[0])
    elementwise.swiglu(gate_up, together[1])
    for i in range(7):
        elementwise.rms_norm(x[i : i + 1], weight, 1e-5, alone[0, i : i + 1])
        elementwise.swiglu(gate_up[i : i + 1], alone[1, i : i + 1])
    assert together.tobytes() == alone.tobytes()


def test_wrong_shapes_are_refused():
    x, weight = normal(3, 48), normal(48)
    for bad in (normal(3, 40), normal(2, 48), x.astype(np.float64), normal(48, 3).T):
        with pytest.raises(ValueError, match=r"elementwise|rms_norm"):
            elementwise.rms_norm(x, weight, 1e-5, bad)
    with pytest.raises(ValueError, match="swiglu"):
        elementwise.swiglu(x, normal(3, 48))
