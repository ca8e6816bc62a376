"""KV in fewer bits: bf16, int8 with a float32 scale for every token and head, int4 with a bf16 scale for 32 channels.

bf16 is the upper half of a float32, rounded to nearest, ties to even; infinities stay, a NaN stays a NaN. int8: scale =
greatest magnitude / 127, element = x / scale rounded to nearest, ties to even, so none is off by more than half a
scale. A row with an infinity or a NaN cannot be held in int8: its scale is NaN, so the fault shows. A row below 1e-36
becomes 0. int4 is the same with a greatest element of 7 in each group of `packed`, whose scale is rounded to bf16; that
may move the greatest by 3 % of a scale more.

The functions on arrays are NumPy and say what the numbers are; `put_row` and `get_row` are the same for one head's
vector inside kernels, by `simd.pointer`, and give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.core.extending import overload

from ..core.jit import inline
from .packed import GROUP, GROUP_BYTES, HALF, ZERO, load_channels, row_bytes, unpacked
from .simd import LANES, load, store

_GREATEST, _GREATEST4 = np.float32(127), np.float32(7)
_SMALLEST_NORMAL = np.float32(2.0**-126)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_QUIET, _NAN_BF16 = np.uint32(0x0040), np.uint32(0x7FC0)
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


def to_int4(x: Any) -> Any:
    """float32 (..., D), D a multiple of 16 -> uint8 (..., packed.row_bytes(D))."""
    x = np.asarray(x, np.float32)
    count = -(-x.shape[-1] // GROUP)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, count * GROUP - x.shape[-1])]
    groups = np.pad(x, padding).reshape(*x.shape[:-1], count, GROUP)
    with np.errstate(all="ignore"):
        exact = np.abs(groups).max(axis=-1) / _GREATEST4
        finite = np.isfinite(exact)
        usable = finite & (exact >= _SMALLEST_NORMAL)
        bits = to_bf16(np.where(finite, np.where(usable, exact, np.float32(0)), np.float32(np.nan)))
        whole = np.rint(groups / from_bf16(bits)[..., None])
        whole = np.where(usable[..., None], np.clip(whole, -_GREATEST4, _GREATEST4), np.float32(0))
    half_bytes = (whole.astype(np.int8) + np.int8(ZERO)).astype(np.uint8)
    pairs = half_bytes[..., :HALF] | (half_bytes[..., HALF:] << 4)
    scales = np.stack((bits & 0xFF, bits >> 8), axis=-1).astype(np.uint8)
    return np.concatenate((scales, pairs), axis=-1).reshape(*x.shape[:-1], count * GROUP_BYTES)


def through(x: Any, kv_dtype: str) -> Any:
    """What is read again of float32 (..., D) that was stored as a KV type, see layout.KV_DTYPES."""
    if kv_dtype == "bf16":
        return from_bf16(to_bf16(x))
    if kv_dtype == "int4":
        return unpacked(to_int4(x), np.shape(x)[-1])
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

    target   pointer to float32, bf16 bits, int8 or int4 (uint8); source: to float32; dim a multiple of 16
    """
    if target.dtype == np.float32:
        target[:dim] = source[:dim]
    elif target.dtype == np.uint16:
        target[:dim] = to_bf16(source[:dim])
    elif target.dtype == np.uint8:
        row = to_int4(source[:dim])
        target[: len(row)] = row
    else:
        target[:dim], scales[scale_at] = to_int8(source[:dim])


def get_row(target: Any, source: Any, dim: int, scales: Any, scale_at: int) -> None:
    """target[0:dim] = source[0:dim] as float32: the way back of `put_row`."""
    if source.dtype == np.float32:
        target[:dim] = source[:dim]
    elif source.dtype == np.uint16:
        target[:dim] = from_bf16(source[:dim])
    elif source.dtype == np.uint8:
        target[:dim] = unpacked(source[: row_bytes(dim)], dim)
    else:
        target[:dim] = from_int8(source[:dim], scales[scale_at])


def _put_float32(target, source, dim, scales, scale_at):
    for i in range(0, dim, LANES):
        store(target, i, load(source, i))


@inline
def _nearest(bits):
    """Bits of the bf16 nearest to a float32 that is a number, ties to even."""
    even = np.uint32(np.uint32(bits >> _SHIFT) & _ONE)
    return np.uint32(np.uint32(bits + np.uint32(_HALF + even)) >> _SHIFT)


def _put_bf16(target, source, dim, scales, scale_at):
    for i in range(dim):
        bits = np.float32(source[i]).view(np.uint32)
        is_nan = np.uint32(bits & _MAGNITUDE) > _INFINITY
        target[i] = np.uint16(np.uint32(np.uint32(bits >> _SHIFT) | _QUIET) if is_nan else _nearest(bits))


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


def _put_int4(target, source, dim, scales, scale_at):
    for first in range(0, dim, GROUP):
        place, count = first // GROUP * GROUP_BYTES, min(GROUP, dim - first)
        greatest = np.uint32(0)
        for i in range(first, first + count):
            greatest = max(greatest, np.uint32(np.float32(source[i]).view(np.uint32) & _MAGNITUDE))
        finite = greatest < _INFINITY
        exact = np.float32(np.uint32(greatest).view(np.float32) / _GREATEST4)
        usable = finite and exact >= _SMALLEST_NORMAL
        rounded = _nearest(np.uint32(exact.view(np.uint32)))
        scale = np.uint32(rounded << _SHIFT).view(np.float32)
        stored = rounded if usable else np.uint32(0) if finite else _NAN_BF16
        target[place] = np.uint8(stored & np.uint32(0xFF))
        target[place + 1] = np.uint8(stored >> np.uint32(8))
        for j in range(HALF):
            low, high = np.int32(0), np.int32(0)
            if usable:
                low = np.int32(np.rint(source[first + j] / scale))
                if j + HALF < count:
                    high = np.int32(np.rint(source[first + j + HALF] / scale))
            low, high = min(max(low, -7), 7) + ZERO, min(max(high, -7), 7) + ZERO
            target[place + 2 + j] = np.uint8(low + 16 * high)


def _get_vectors(target, source, dim, scales, scale_at):
    for i in range(0, dim, LANES):
        store(target, i, load_channels(source, i))


def _get_int8(target, source, dim, scales, scale_at):
    scale = scales[scale_at]
    for i in range(dim):
        target[i] = np.float32(source[i]) * scale


@overload(put_row)
def _put_row_of(target, source, dim, scales, scale_at):
    by_type = {types.float32: _put_float32, types.uint16: _put_bf16, types.int8: _put_int8, types.uint8: _put_int4}
    return by_type[target.dtype]


@overload(get_row)
def _get_row_of(target, source, dim, scales, scale_at):
    return _get_int8 if source.dtype == types.int8 else _get_vectors
