"""int4 as it lies in memory, and LANES elements of a KV row in whichever type it is stored.

A row of int4 is groups of GROUP channels, each GROUP_BYTES long: its scale as bf16, then 16 bytes; their lower halves
are the first 16 channels and their upper ones the others. An element is its half byte minus 8, times the scale. The
scale lies beside what it scales, so the strides that address a cache, and the copies of its blocks, do for int4 what
they do for other types. A row of a head size that is no multiple of GROUP ends in a group of which half is unused.

Type of the elements of data -> KV type: float32, uint16 bf16, int8 int8, uint8 int4 (bytes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from ..core.jit import PLAIN
from .simd import (
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    VECTOR,
    ask_for,
    element,
    floats_of,
    lanes_of,
    read_vector,
    spread,
    vector_type,
)

GROUP, HALF, GROUP_BYTES = 32, 16, 18
ZERO = 8
"""What half a byte holds of an element that is 0."""


def row_bytes(head_dim: int) -> int:
    """Of one head's vector of one token as int4; head_dim a multiple of HALF."""
    return -(-head_dim // GROUP) * GROUP_BYTES


def halves(rows: Any) -> tuple[Any, Any]:
    """uint8 (..., groups * GROUP_BYTES) -> int8 elements (..., groups, GROUP), scales' bits (..., groups)"""
    groups = rows.reshape(*rows.shape[:-1], rows.shape[-1] // GROUP_BYTES, GROUP_BYTES)
    scales = groups[..., 0].astype(np.uint16) | (groups[..., 1].astype(np.uint16) << 8)
    low, high = groups[..., 2:] & 15, groups[..., 2:] >> 4
    return np.concatenate((low, high), axis=-1).astype(np.int8) - np.int8(ZERO), scales


def unpacked(rows: Any, head_dim: int) -> Any:
    """uint8 (..., row_bytes(head_dim)) -> float32 (..., head_dim)."""
    elements, scales = halves(rows)
    values = elements.astype(np.float32) * floats_of(scales)[..., None]
    return values.reshape(*rows.shape[:-1], GROUP * scales.shape[-1])[..., :head_dim]


# ---- LLVM IR ---------------------------------------------------------------------------------------------------------


def reader_of(pointer: Any) -> Any:
    """(builder, pointer to a row, channel) -> LANES channels as float32, for a Numba pointer type."""
    return _read_packed if pointer.dtype == types.uint8 else read_vector


def line_of(pointer: Any) -> int:
    """Channels in a cache line."""
    return 2 * 64 if pointer.dtype == types.uint8 else int(512 // pointer.dtype.bitwidth)


def ask_for_channel(builder: Any, pointer: Any, row: Any, channel: Any, locality: int) -> None:
    """Prefetch the line in which a channel lies, about."""
    channel = I64(channel) if isinstance(channel, int) else channel
    packed = pointer.dtype == types.uint8
    ask_for(builder, row, builder.lshr(channel, I64(1)) if packed else channel, locality)


def _read_packed(builder: Any, row: Any, channel: Any) -> Any:
    channel = I64(channel) if isinstance(channel, int) else channel
    group = element(builder, row, builder.mul(builder.lshr(channel, I64(5)), I64(GROUP_BYTES)))
    bits = builder.load(builder.bitcast(group, I16.as_pointer()), align=1)
    scale = builder.bitcast(builder.shl(builder.zext(bits, I32), I32(16)), F32)
    first = builder.add(builder.and_(channel, I64(HALF - 1)), I64(2))
    place = builder.bitcast(element(builder, group, first), ir.VectorType(I8, LANES).as_pointer())
    pairs = builder.zext(builder.load(place, align=1), ir.VectorType(I32, LANES))
    shift = builder.trunc(builder.lshr(builder.and_(channel, I64(HALF)), I64(2)), I32)
    shifts = builder.insert_element(ir.Constant(ir.VectorType(I32, LANES), ir.Undefined), shift, I32(0))
    shifts = builder.shuffle_vector(shifts, shifts, lanes_of(I32, 0))
    whole = builder.and_(builder.lshr(pairs, shifts), lanes_of(I32, 15))
    values = builder.sitofp(builder.sub(whole, lanes_of(I32, ZERO)), VECTOR)
    return builder.fmul(values, spread(builder, scale))


@intrinsic
def _load_channels(typing_context: Any, pointer: Any, channel: Any) -> Any:
    read = reader_of(pointer)
    return vector_type(pointer, types.int64), lambda c, builder, s, args: read(builder, *args)


def _load_channels_plain(row: Any, channel: int) -> Any:
    if row.dtype == np.uint8:
        first = channel // GROUP * GROUP_BYTES
        return unpacked(row[first : first + GROUP_BYTES], GROUP)[channel % GROUP :][:LANES]
    return floats_of(row[channel : channel + LANES])


load_channels: Any = _load_channels_plain if PLAIN else _load_channels
"""load_channels(row, channel): LANES channels from a multiple of LANES on, as float32.

row   pointer to a row of float32, bf16 bits (uint16), int8 without its scale, or int4 (uint8)
"""
