"""Orders of small lists: a stable sort by an integer key, and a seeded shuffle. Both in place, over int64 arrays."""

from __future__ import annotations

import numpy as np

from ..core.jit import jit


@jit
def sort_by_key(key, value, n):
    """Sort key[0:n] ascending and value[0:n] along with it; equal keys keep their order.

    cost     O(n log r) for r ascending runs in the keys: linear for a sorted list with a few entries added
    source   natural merge sort
    """
    from_key, from_value = key, value
    to_key, to_value = np.empty(n, np.int64), np.empty(n, np.int64)
    runs = 2
    while runs > 1:
        runs, out = 0, 0
        while out < n:
            middle = _run_end(from_key, out, n)
            stop = _run_end(from_key, middle, n)
            left, right = out, middle
            while out < stop:
                if right == stop or (left < middle and from_key[left] <= from_key[right]):
                    taken = left
                    left += 1
                else:
                    taken = right
                    right += 1
                to_key[out], to_value[out] = from_key[taken], from_value[taken]
                out += 1
            runs += 1
        from_key, to_key = to_key, from_key
        from_value, to_value = to_value, from_value
    for i in range(n):
        key[i], value[i] = from_key[i], from_value[i]


@jit
def _run_end(key, start, n):
    """End of the run that begins at start and never falls; n when there is nothing left."""
    end = min(start + 1, n)
    while end < n and key[end] >= key[end - 1]:
        end += 1
    return end


@jit
def shuffle(value, n, state):
    """Put value[0:n] into a random order, each as likely; returns the generator's next state (uint64).

    One draw a place, from the last down. The bias of scaling 32 bits to a place is below n / 2^32.
    source   Fisher and Yates; the generator is splitmix64 (Steele, Lea, Flood 2014)
    """
    for i in range(n - 1, 0, -1):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        bits = state
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
        at = np.int64(((bits >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        value[i], value[at] = value[at], value[i]
    return state
