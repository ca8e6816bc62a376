"""Work that several threads share: a kernel releases the GIL, so plain threads of Python do.

Numba's own thread pools are not used: one of them does not survive a fork, one aborts when two threads call it at
once, and the third needs a library that is not always there. Handing over a part costs some ten microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from ..core.errors import UsageError


def check_threads(threads: int) -> int:
    """The number itself. UsageError: less than one, or more than the machine has processors."""
    most = os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise UsageError(f"{threads} threads: this machine has {most} processors; take 1 to {most}")
    return threads


def share(total: int, threads: int, run: Callable[[int, int], object]) -> None:
    """run(start, stop) over total items in at most `threads` neighbouring pieces at once; the caller works too."""
    pieces = min(threads, total)
    if pieces <= 1:
        run(0, total)
        return
    edges = [total * i // pieces for i in range(pieces + 1)]
    others = [_pool(pieces - 1).submit(run, edges[i], edges[i + 1]) for i in range(1, pieces)]
    try:
        run(edges[0], edges[1])
    finally:
        for other in others:
            other.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="kvbench-kernel")
