"""Freed arrays go back to the system: what building a large workload takes for a while is not kept by the process."""

from __future__ import annotations

import ctypes

LARGE = 1 << 20
"""Bytes. Beyond it an array is mapped by itself; glibc else raises this limit up to 32 MB with what it sees freed."""
_M_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """Of this process, from now on. Another C library than glibc is left as it is."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
    except (OSError, AttributeError, TypeError):
        return
