"""What this machine can do at most: reading, copying, multiplying. The kernels are measured beside these.

Each probe does an amount of work that the caller knows (bytes of its arrays, or the operations returned) and times
nothing itself. Arrays should be several times the last cache. Plain Python has no probe of the FMA units.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ..core.jit import PLAIN, entry
from . import simd
from .simd import F32, LANES, lanes_of
from .stream import finish, stream_row
from .threads import share

CHAINS = 12
"""Sums that grow beside each other: enough to hide the latency of a fused multiply-add, few enough for registers."""


def read(array: Any, threads: int) -> None:
    """Read all of a 1-d int64 array, in order."""
    share(array.size, threads, lambda start, stop: _sum(array[start:stop]))


def copy(target: Any, source: Any, threads: int) -> None:
    """memcpy between two 1-d arrays of one type."""
    share(source.size, threads, lambda start, stop: np.copyto(target[start:stop], source[start:stop]))


def stream_copy(rows: Any, threads: int) -> None:
    """rows[n/2:] = rows[:n/2] past the caches; rows (n, bytes) uint8, n even, C order."""
    share(rows.shape[0] // 2, threads, lambda start, stop: _stream(rows, start, stop))


def multiply_add(rounds: int, threads: int) -> int:
    """Multiply and add float32 vectors in registers, `rounds` in each thread. Returns the operations, two for each."""
    share(threads, threads, lambda start, stop: _chains(rounds))
    return rounds * threads * CHAINS * LANES * 2


def product(a: Any, b: Any, out: Any) -> None:
    """out = a @ b by NumPy's BLAS, under `blas_threads`."""
    np.matmul(a, b, out=out)


def blas_threads() -> Callable[[int], AbstractContextManager[Any]] | None:
    """A context manager that sets the threads of BLAS; None where the library for it (extra `kernels`) is missing."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    controller = ThreadpoolController()
    return lambda threads: controller.limit(limits=threads, user_api="blas") if controller.info() else nullcontext()


@entry
def _sum_compiled(array):
    # Integers: their sums may be reordered, so the loop becomes vectors without any fast-math flag.
    total = np.int64(0)
    for i in range(array.size):
        total += array[i]
    return total


_sum: Any = np.sum if PLAIN else _sum_compiled


@entry
def _stream(rows, start, stop):
    half = rows.shape[0] // 2
    for i in range(start, stop):
        stream_row(rows, i, rows, half + i)
    finish()


@intrinsic
def _run_chains(typing_context: Any, rounds: Any) -> Any:
    """x = x * a + b, `rounds` times on CHAINS vectors; returns a sum of them, so that none is left out."""
    if rounds != types.int64:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums = [cgutils.alloca_once_value(builder, lanes_of(F32, float(i))) for i in range(CHAINS)]
        factor, term = lanes_of(F32, 0.5), lanes_of(F32, 1.0)
        with cgutils.for_range(builder, args[0]):
            for place in sums:
                builder.store(simd.multiply_add(builder, builder.load(place), factor, term), place)
        total = builder.load(sums[0])
        for place in sums[1:]:
            total = builder.fadd(total, builder.load(place))
        return builder.extract_element(total, simd.I32(0))

    return types.float32(rounds), generate


@entry
def _chains(rounds):
    return _run_chains(rounds)
