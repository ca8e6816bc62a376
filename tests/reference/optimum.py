"""The best that any prefix cache can do, by trying everything. For a handful of blocks and requests.

After each request the cache may hold any set of whole prefixes, closed under taking away the last block, of what it
held before and what the request went through, as long as it fits.
"""

from itertools import combinations


def most_hits(paths, capacity):
    """Most blocks found by requests one after another. paths: tuples of keys; a block is a tuple of keys up to it."""
    best = {frozenset(): 0}
    for path in paths:
        blocks = [path[: i + 1] for i in range(len(path))]
        following = {}
        for held, hits in best.items():
            found = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
            for kept in _closed_sets(held.union(blocks), capacity):
                following[kept] = max(following.get(kept, 0), hits + found)
        best = following
    return max(best.values())


def _closed_sets(blocks, capacity):
    for size in range(min(capacity, len(blocks)) + 1):
        for chosen in combinations(blocks, size):
            kept = frozenset(chosen)
            if all(len(block) == 1 or block[:-1] in kept for block in kept):
                yield kept
