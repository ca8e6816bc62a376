"""KV in fewer bits: bf16, and int8 with a float32 scale for every token and head.

bf16 is the upper half of a float32, rounded to nearest, ties to even; infinities stay, a NaN stays a NaN. int8: scale =
greatest magnitude / 127, element = x / scale rounded to nearest, ties to even, so none is off by more than half a
scale. A row with an infinity or a NaN cannot be held in int8: its scale is NaN, so the fault shows. A row below 1e-36
becomes 0.

The functions on arrays are NumPy and say what the numbers are; `put_row` and `get_row` are the same for one head's
vector inside kernels, by `simd.pointer`, and give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.core.extending import overload

from .simd import LANES, load, store

_GREATEST = np.float32(127)
_SMALLEST_NORMAL = np.float32(2.0**-126)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_QUIET = np.uint32(0x0040)
_HALF, _ONE, _SHIFT = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)


def to_bf16(x: Any) -> Any:
    """float32 of any shape -> the bits of bf16, uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    upper = bits >> _SHIFT
    with np.errstate(over="ignore"):  # a NaN's sum may wrap around; it is not used
        rounded = (bits + _HALF + (upper & _ONE)) >> _SHIFT
    return np.where((bits & _MAGNITUDE) > _INFINITY, upper | _QUIET, rounded).astype(np.uint16)


def from_bf16(bits: Any) -> Any:
    """Bits of bf16, uint16 -> float32, exactly."""
    return (np.asarray(bits).astype(np.uint32) << _SHIFT).view(np.float32)


def to_int8(x: Any) -> tuple[Any, Any]:
    """float32 (..., D) -> (int8 (..., D), float32 scales (...))."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        scale = np.abs(x).max(axis=-1) / _GREATEST
        usable = np.isfinite(scale) & (scale >= _SMALLEST_NORMAL)
        out = np.where(usable[..., None], np.rint(x / scale[..., None]), np.float32(0)).astype(np.int8)
    return out, np.where(np.isfinite(scale), np.where(usable, scale, np.float32(0)), np.float32(np.nan))


def from_int8(x: Any, scales: Any) -> Any:
    """int8 (..., D) and float32 scales (...) -> float32."""
    return x.astype(np.float32) * np.asarray(scales, np.float32)[..., None]


def through(x: Any, kv_dtype: str) -> Any:
    """What is read again of float32 (..., D) that was stored as a KV type, see layout.KV_DTYPES."""
    if kv_dtype == "bf16":
        return from_bf16(to_bf16(x))
    return from_int8(*to_int8(x)) if kv_dtype == "int8" else np.array(x, np.float32)


@dataclass(frozen=True)
class Loss:
    """What storing took away: the greatest error and the root of the mean square, and both of the values' own RMS."""

    greatest: float
    rms: float
    relative_greatest: float
    relative_rms: float


def loss(x: Any, kv_dtype: str) -> Loss:
    """Measured in float64 on float32 (..., D), finite and not empty."""
    exact = np.asarray(x, np.float64)
    error = through(x, kv_dtype).astype(np.float64) - exact
    size = float(np.sqrt(np.mean(exact**2))) or 1.0
    greatest, rms = float(np.abs(error).max()), float(np.sqrt(np.mean(error**2)))
    return Loss(greatest, rms, greatest / size, rms / size)


# ---- one row, inside kernels -----------------------------------------------------------------------------------------


def put_row(target: Any, source: Any, dim: int, scales: Any, scale_at: int) -> None:
    """target[0:dim] = source[0:dim] in the target's type; of int8 the scale goes to scales[scale_at].

    target   pointer to float32, bf16 bits or int8; source: to float32; dim a multiple of 16
    """
    if target.dtype == np.float32:
        target[:dim] = source[:dim]
    elif target.dtype == np.uint16:
        target[:dim] = to_bf16(source[:dim])
    else:
        target[:dim], scales[scale_at] = to_int8(source[:dim])


def get_row(target: Any, source: Any, dim: int, scales: Any, scale_at: int) -> None:
    """target[0:dim] = source[0:dim] as float32: the way back of `put_row`."""
    if source.dtype == np.float32:
        target[:dim] = source[:dim]
    elif source.dtype == np.uint16:
        target[:dim] = from_bf16(source[:dim])
    else:
        target[:dim] = from_int8(source[:dim], scales[scale_at])


def _put_float32(target, source, dim, scales, scale_at):
    for i in range(0, dim, LANES):
        store(target, i, load(source, i))


def _put_bf16(target, source, dim, scales, scale_at):
    for i in range(dim):
        bits = np.float32(source[i]).view(np.uint32)
        upper = np.uint32(bits >> _SHIFT)
        rounded = np.uint32(np.uint32(bits + np.uint32(_HALF + np.uint32(upper & _ONE))) >> _SHIFT)
        is_nan = np.uint32(bits & _MAGNITUDE) > _INFINITY
        target[i] = np.uint16(np.uint32(upper | _QUIET) if is_nan else rounded)


def _put_int8(target, source, dim, scales, scale_at):
    greatest = np.uint32(0)  # magnitudes as bits: integers have one order, so this becomes vectors
    for i in range(dim):
        greatest = max(greatest, np.uint32(np.float32(source[i]).view(np.uint32) & _MAGNITUDE))
    finite = greatest < _INFINITY
    scale = np.float32(np.uint32(greatest).view(np.float32) / _GREATEST)
    if finite and scale >= _SMALLEST_NORMAL:
        for i in range(dim):
            target[i] = np.int8(np.int32(np.rint(source[i] / scale)))
    else:
        for i in range(dim):
            target[i] = np.int8(0)
        scale = np.float32(0) if finite else np.float32(np.nan)
    scales[scale_at] = scale


def _get_float32(target, source, dim, scales, scale_at):
    for i in range(0, dim, LANES):
        store(target, i, load(source, i))


def _get_int8(target, source, dim, scales, scale_at):
    scale = scales[scale_at]
    for i in range(dim):
        target[i] = np.float32(source[i]) * scale


@overload(put_row)
def _put_row_of(target, source, dim, scales, scale_at):
    return {types.float32: _put_float32, types.uint16: _put_bf16, types.int8: _put_int8}[target.dtype]


@overload(get_row)
def _get_row_of(target, source, dim, scales, scale_at):
    return _get_int8 if source.dtype == types.int8 else _get_float32
