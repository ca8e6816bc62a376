"""What a reader has to know before believing a time."""

from __future__ import annotations

from collections.abc import Mapping

from ..bench.machine import BUSY_LOAD
from ..core.jit import PLAIN
from .sizes import CACHES, Sizes, last_cache_bytes

WIDE_SPREAD = 0.1
"""Half the distance of the quartiles over the median: a quiet machine stays below a few per cent."""


def doubts(spreads: Mapping[str, float], load: float, sizes: Sizes) -> list[str]:
    """One line each. spreads: of every time, by its name."""
    found = []
    if PLAIN:
        found.append("NUMBA_DISABLE_JIT is set: these are times of plain Python")
    if load > BUSY_LOAD:
        found.append(f"the machine was busy before the start (load {load:.2f} per processor): times are too long")
    wide = {name: spread for name, spread in spreads.items() if spread > WIDE_SPREAD}
    if wide:
        worst = max(wide, key=lambda name: wide[name])
        found.append(
            f"{len(wide)} of {len(spreads)} times vary by more than {100 * WIDE_SPREAD:.0f} % between rounds "
            f"(worst: {worst}, {100 * wide[worst]:.0f} %): something else is running"
        )
    if sizes.memory_bytes < CACHES * last_cache_bytes():
        found.append(
            f"{sizes.memory_bytes >> 20} MB of KV are less than {CACHES} times the last cache "
            f"({last_cache_bytes() >> 20} MB), which then serves a part of it: give more with --memory"
        )
    return found
