"""Bytes from one place to another, through the caches or past them.

A store that goes past the caches (non-temporal) does not read the line that it overwrites, so a copy moves two bytes
per byte instead of three; what was written is then not in any cache. Memory is named by (rows, row) of arrays, so the
plain path needs no addresses. Under NUMBA_DISABLE_JIT the same functions are NumPy's assignment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ..core.jit import PLAIN, jit

LINE = 64
"""Bytes of a cache line: non-temporal stores want whole ones."""
CHUNK = 8 * LINE

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WIDE = ir.VectorType(_I32, LINE // 4)
_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def _stream_chunk(typing_context: Any, target: Any, source: Any) -> Any:
    """CHUNK bytes to the address target, which is a multiple of LINE."""
    if target != types.int64 or source != types.int64:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(base: Any, offset: int) -> Any:
            return builder.inttoptr(builder.add(base, _I64(offset)), _WIDE.as_pointer())

        mark = builder.module.add_metadata([_I32(1)])
        lines = [builder.load(place(args[1], at), align=1) for at in range(0, CHUNK, LINE)]
        for at, line in zip(range(0, CHUNK, LINE), lines, strict=True):
            builder.store(line, place(args[0], at), align=LINE).set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(target, source), generate


@intrinsic
def _copy(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """memmove between two addresses."""
    if {target, source, size} != {types.int64}:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, origin = (builder.inttoptr(a, _POINTER) for a in args[:2])
        cgutils.raw_memmove(builder, to, origin, args[2], _I64(1))
        return context.get_dummy_value()

    return types.void(target, source, size), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    """Everything stored before is seen before everything stored after."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@jit
def _copy_row(sources, source, targets, target):
    """targets[target] = sources[source], through the caches; both (n, bytes) uint8, C order, maybe one array."""
    size = sources.shape[1]
    _copy(np.int64(targets.ctypes.data) + target * size, np.int64(sources.ctypes.data) + source * size, size)


@jit
def _stream_row(sources, source, targets, target):
    """The same past the caches. finish() has to follow before another thread reads."""
    size = sources.shape[1]
    to, origin = np.int64(targets.ctypes.data) + target * size, np.int64(sources.ctypes.data) + source * size
    head = min(-to & (LINE - 1), size)
    _copy(to, origin, head)
    at = head
    while at + CHUNK <= size:
        _stream_chunk(to + at, origin + at)
        at += CHUNK
    _copy(to + at, origin + at, size - at)


@jit
def _finish():
    _fence()


def _copy_row_plain(sources: Any, source: int, targets: Any, target: int) -> None:
    targets[target] = sources[source]


def _finish_plain() -> None:
    """NumPy's stores are seen as they are."""


copy_row = _copy_row_plain if PLAIN else _copy_row
stream_row = _copy_row_plain if PLAIN else _stream_row
finish = _finish_plain if PLAIN else _finish
