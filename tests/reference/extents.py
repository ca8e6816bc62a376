"""Contiguous allocators that keep their own lists, in plain Python: holes that merge, and a buddy system.

Units are blocks at 0 .. capacity - 1. None is what cannot be had.
"""


class FirstFit:
    """Holes as (start, length) by address; neighbours are merged when one is given back."""

    def __init__(self, capacity):
        self.holes = [(0, capacity)]

    def take(self, n):
        for i, (start, length) in enumerate(self.holes):
            if length >= n:
                self.holes[i : i + 1] = [(start + n, length - n)] if length > n else []
                return start
        return None

    def give(self, start, n):
        merged = []
        for hole in sorted([*self.holes, (start, n)]):
            if merged and merged[-1][0] + merged[-1][1] == hole[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + hole[1])
            else:
                merged.append(hole)
        self.holes = merged


class Buddy:
    """Free blocks by size, a power of two; a larger one is split, two halves are merged as soon as both are free."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.free = {}
        at = 0
        for order in range(capacity.bit_length(), -1, -1):
            if capacity >> order & 1:
                self.free.setdefault(1 << order, set()).add(at)
                at += 1 << order

    def take(self, n):
        sizes = [size for size, starts in self.free.items() if size >= n and starts]
        if not sizes:
            return None
        size = min(sizes)
        start = min(self.free[size])
        self.free[size].remove(start)
        while size > n:
            size //= 2
            self.free.setdefault(size, set()).add(start + size)
        return start

    def give(self, start, n):
        while (buddy := start ^ n) in self.free.get(n, ()):
            self.free[n].remove(buddy)
            start, n = min(start, buddy), 2 * n
        self.free.setdefault(n, set()).add(start)

    def lists(self):
        return {size: sorted(starts) for size, starts in self.free.items() if starts}
