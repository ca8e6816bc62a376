"""What a layer does between its products: RMSNorm, rotary positions, SwiGLU. float32, row by row.

A row's bits depend on that row alone. Widths are multiples of 16. Without jit the same is done by NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.core.extending import intrinsic
from numpy.typing import NDArray

from ..core.jit import PLAIN, entry, jit
from .simd import LANES, add, at, exp2, fma, greater, load, mul, pointer, splat, store, total, vector_type

F32 = NDArray[np.float32]

_MINUS_LOG2_E = np.float32(-math.log2(math.e))
_LEAST_GATE = np.float32(-80.0)
"""exp(80) is still a float32; below, the sigmoid is 0 to the eye of one."""


@intrinsic
def _divide(typing_context: Any, a: Any, b: Any) -> Any:
    return vector_type(vector_type, vector_type), lambda c, builder, s, args: builder.fdiv(*args)


@jit
def _normalise(x, weight, eps, out, width):
    """out = x / sqrt(mean of squares + eps) * weight, over pointers; out may be x."""
    squares = splat(np.float32(0))
    for j in range(0, width, LANES):
        v = load(x, j)
        squares = fma(v, v, squares)
    scale = splat(np.float32(1) / np.float32(math.sqrt(total(squares) / np.float32(width) + np.float32(eps))))
    for j in range(0, width, LANES):
        store(out, j, mul(mul(load(x, j), scale), load(weight, j)))


@entry
def _rms_norm(x, weight, eps, out):
    rows, width = x.shape
    xs, weights, outs = pointer(x), pointer(weight), pointer(out)
    for i in range(rows):
        _normalise(at(xs, i * width), weights, eps, at(outs, i * width), width)


@entry
def _add_rms_norm(x, change, weight, eps, out):
    rows, width = x.shape
    xs, changes, weights, outs = pointer(x), pointer(change), pointer(weight), pointer(out)
    for i in range(rows):
        for j in range(i * width, (i + 1) * width, LANES):
            store(xs, j, add(load(xs, j), load(changes, j)))
        _normalise(at(xs, i * width), weights, eps, at(outs, i * width), width)


@jit
def _rotate(x, cos, sin, half):
    for j in range(half):
        a, b = x[j], x[half + j]
        x[j] = a * cos[j] - b * sin[j]
        x[half + j] = b * cos[j] + a * sin[j]


@entry
def _split_heads(qkv, norms, eps, cos, sin, q, k, v):
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    half = dim // 2
    coss, sins, weights = pointer(cos), pointer(sin), pointer(norms)
    rows, qs, ks, vs = pointer(qkv), pointer(q), pointer(k), pointer(v)
    for t in range(tokens):
        row = at(rows, t * (heads + 2 * kv_heads) * dim)
        for h in range(heads + 2 * kv_heads):
            if h < heads:
                out, weight = at(qs, (t * heads + h) * dim), weights
            elif h < heads + kv_heads:
                out, weight = at(ks, (t * kv_heads + h - heads) * dim), at(weights, dim)
            else:
                out, weight = at(vs, (t * kv_heads + h - heads - kv_heads) * dim), weights
            for j in range(0, dim, LANES):
                store(out, j, load(row, h * dim + j))
            if h < heads + kv_heads:
                if norms.shape[0] > 0:
                    _normalise(out, weight, eps, out, dim)
                _rotate(out, at(coss, t * half), at(sins, t * half), half)


@entry
def _swiglu(gate_up, out):
    rows, width = out.shape
    gates, outs = pointer(gate_up), pointer(out)
    one = splat(np.float32(1))
    for i in range(rows):
        gate, up = at(gates, 2 * i * width), at(gates, (2 * i + 1) * width)
        for j in range(0, width, LANES):
            g = load(gate, j)
            e = exp2(mul(greater(g, splat(_LEAST_GATE)), splat(_MINUS_LOG2_E)))
            store(outs, i * width + j, mul(_divide(g, add(one, e)), load(up, j)))


def _rms_norm_plain(x: F32, weight: F32, eps: float, out: F32) -> None:
    out[:] = x * (1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)) * weight


def _add_rms_norm_plain(x: F32, change: F32, weight: F32, eps: float, out: F32) -> None:
    x += change
    _rms_norm_plain(x, weight, eps, out)


def _split_heads_plain(qkv: F32, norms: F32, eps: float, cos: F32, sin: F32, q: F32, k: F32, v: F32) -> None:
    heads, kv_heads = q.shape[1], k.shape[1]
    by_head = qkv.reshape(len(qkv), heads + 2 * kv_heads, q.shape[2])
    q[:], k[:], v[:] = np.split(by_head, (heads, heads + kv_heads), axis=1)
    for index, out in enumerate((q, k)):
        if len(norms):
            _rms_norm_plain(out, norms[index], eps, out)
        a, b = np.split(out.copy(), 2, axis=2)
        c, s = cos[:, None], sin[:, None]
        out[:] = np.concatenate((a * c - b * s, b * c + a * s), axis=2)


def _swiglu_plain(gate_up: F32, out: F32) -> None:
    gate, up = np.split(gate_up, 2, axis=1)
    out[:] = gate / (1 + np.exp(-np.maximum(gate, _LEAST_GATE))) * up


_normed: Any = _rms_norm_plain if PLAIN else _rms_norm
_added: Any = _add_rms_norm_plain if PLAIN else _add_rms_norm
_split: Any = _split_heads_plain if PLAIN else _split_heads
_gated: Any = _swiglu_plain if PLAIN else _swiglu


def _check(*arrays: F32) -> None:
    for array in arrays:
        if not array.flags.c_contiguous or array.dtype != np.float32 or array.shape[-1] % 16:
            raise ValueError(f"elementwise: {array.dtype} {array.shape} must be C-contiguous float32 of 16 n columns")


def rms_norm(x: F32, weight: F32, eps: float, out: F32) -> None:
    """out = x / sqrt(mean of its squares + eps) * weight, by row.

    x, out  (tokens, width) float32; out may be x
    weight  (width,) float32
    eps     a number
    """
    _check(x, weight, out)
    if x.shape != out.shape or weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: {x.shape}, weight {weight.shape}, out {out.shape}")
    _normed(x, weight, eps, out)


def add_rms_norm(x: F32, change: F32, weight: F32, eps: float, out: F32) -> None:
    """x += change, then out is x normalised: one pass over the residual stream.

    x, change, out  (tokens, width) float32; x and out are written
    """
    _check(x, change, weight, out)
    if not x.shape == change.shape == out.shape or weight.shape != x.shape[-1:]:
        raise ValueError(f"add_rms_norm: {x.shape}, change {change.shape}, weight {weight.shape}, out {out.shape}")
    _added(x, change, weight, eps, out)


def split_heads(qkv: F32, norms: F32, eps: float, cos: F32, sin: F32, q: F32, k: F32, v: F32) -> None:
    """Queries, keys and values of each head; queries and keys normalised, if asked for, and turned to their position.

    qkv       (tokens, (heads + 2 kv_heads) head_dim) float32
    norms     (2, head_dim) float32: weights of the norms of queries and of keys; (0, head_dim): none
    cos, sin  (tokens, head_dim / 2) float32: of the angle of each pair (j, j + head_dim / 2)
    q         (tokens, heads, head_dim) float32, written
    k, v      (tokens, kv_heads, head_dim) float32, written
    source    rotary positions in the "half" arrangement of Hugging Face checkpoints
    """
    _check(qkv, norms, q, k, v)
    tokens, heads, dim = q.shape
    wanted = {
        "qkv": (tokens, (heads + 2 * k.shape[1]) * dim),
        "cos": (tokens, dim // 2),
        "k": (tokens, k.shape[1], dim),
    }
    found = {"qkv": qkv.shape, "cos": cos.shape, "k": k.shape}
    if found != wanted or sin.shape != cos.shape or v.shape != k.shape or norms.shape not in ((0, dim), (2, dim)):
        raise ValueError(f"split_heads: {found}, wanted {wanted}")
    if not all(a.flags.c_contiguous and a.dtype == np.float32 for a in (cos, sin)):
        raise ValueError("split_heads: cos and sin must be C-contiguous float32")
    _split(qkv, norms, eps, cos, sin, q, k, v)


def swiglu(gate_up: F32, out: F32) -> None:
    """out = silu(gate) * up.

    gate_up  (tokens, 2 width) float32: gates, then ups
    out      (tokens, width) float32, written
    """
    _check(gate_up, out)
    if gate_up.shape != (out.shape[0], 2 * out.shape[1]):
        raise ValueError(f"swiglu: {gate_up.shape}, out {out.shape}")
    _gated(gate_up, out)
