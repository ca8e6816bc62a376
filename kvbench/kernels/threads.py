"""Work that several threads share: compiled code releases the GIL, so plain threads of Python do.

Numba's own parallel loops would compile every kernel a second time, and their runtimes fail in a forked child or under
two callers. Here a share costs some 20 to 50 us to hand over, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..core.errors import UsageError

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process and number of threads: a forked child has none of its parent's threads."""


def check_threads(threads: int) -> int:
    """The number itself. UsageError: less than one, or more than the machine has processors."""
    most = os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise UsageError(f"{threads} threads: this machine has {most} processors; take 1 to {most}")
    return threads


def share(total: int, threads: int, run: Callable[[int, int], object]) -> None:
    """run(start, stop) over `total` equal items, in at most `threads` neighbouring shares."""
    shares = max(min(threads, total), 1)
    share_out(lambda _, start, stop: run(start, stop), [total * i // shares for i in range(shares + 1)])


def share_out(work: Callable[[int, int, int], object], cuts: Sequence[int]) -> None:
    """work(share, cuts[share], cuts[share + 1]) for every share, the first on the calling thread.

    Returns when all have ended; raises what the first of them raised.
    """
    helpers = len(cuts) - 2
    if helpers == 0:
        work(0, cuts[0], cuts[1])
        return
    key = (os.getpid(), helpers)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(helpers, thread_name_prefix="kvbench-kernel")
    others = [_pools[key].submit(work, i, cuts[i], cuts[i + 1]) for i in range(1, helpers + 1)]
    try:
        work(0, cuts[0], cuts[1])
    finally:
        for other in others:
            other.result()
