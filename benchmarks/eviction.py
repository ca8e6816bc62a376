"""What it costs to free a block under each eviction policy, from 10^3 to 10^6 candidates.

    python benchmarks/eviction.py [--most 1000000] [--rounds 3]

A full cache of that many leaves of one block (the tree) or unreferenced blocks (block hash), of which a third was hit
once; then half of it is evicted in one call. ns per freed block, median; finding the victim, its removal and the free
queue included. A heap makes it O(log n); what grows beyond that is memory that no longer fits the CPU's caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

from kvbench.core.jit import entry
from kvbench.memory.pool import list_give, make_pool
from kvbench.prefix import block_hash, radix
from kvbench.prefix.eviction.own_file import find_policy
from kvbench.prefix.eviction.policies import POLICIES
from kvbench.prefix.ranked import REGISTERED, RELEASED, SHARED_AGAIN

OWN_FILE = Path(__file__).resolve().parent.parent / "examples" / "seldom_hit.py"
NAMES = (*POLICIES, f"{OWN_FILE}:seldom_hit")
BLOCK_NS = np.full(4, 20_000)


@entry
def _fill_tree(tree, pool, order):
    """A leaf of one block for every number in `order`; then a third of them is hit."""
    key, row = np.zeros(1, np.int64), np.zeros(1, np.int32)
    root = np.int64(-1)
    for i in order:
        key[0] = i + 1
        row[0] = i + 1
        radix.insert(tree, pool, root, key, row, np.int64(0), np.int64(1), i % 5, np.int64(1))
    pool.num_free = 0
    for i in order[: order.size // 3]:
        key[0] = i + 1
        node, _ = radix.match(tree, np.int64(0), key, np.int64(1), row)
        radix.hit(tree, node)
        radix.lock(tree, node)
        radix.unlock(tree, node)


@entry
def _fill_hash(hashes, pool, contents, order):
    """Every block visible and free, released in `order`; a third of them hit."""
    n = order.size
    row = np.empty(n, np.int32)
    block_hash.take(hashes, pool, row, np.int64(0), n)
    block_hash.register_all(hashes, pool, contents, row, np.int64(0), n)
    block_hash.note(hashes, pool, REGISTERED, row, 0, n, 0)
    for i in range(n):
        row[i] = order[i] + 1
    list_give(pool, row, n)
    block_hash.note(hashes, pool, RELEASED, row, 0, n, 0)
    third = n // 3
    block_hash.share(pool, row, third)
    block_hash.note(hashes, pool, SHARED_AGAIN, row, 0, third, 0)
    list_give(pool, row, third)
    block_hash.note(hashes, pool, RELEASED, row, 0, third, 0)


def tree_ns(name: str, n: int) -> float:
    """ns per block of evicting half of a tree of n leaves."""
    tree = radix.make_tree(n, find_policy(name), 0, BLOCK_NS)
    pool = make_pool(n, "append")
    _fill_tree(tree, pool, np.random.default_rng(1).permutation(n))
    begin = time.perf_counter()
    freed = radix.evict(tree, pool, n // 2)
    return (time.perf_counter() - begin) / freed * 1e9


def hash_ns(name: str, n: int) -> float:
    """ns per block of handing out half of n cached blocks."""
    random = np.random.default_rng(1)
    hashes = block_hash.make_map(n, 0, find_policy(name), BLOCK_NS)
    pool = make_pool(n, "unhashed-first")
    _fill_hash(hashes, pool, random.integers(1, 1 << 62, n), random.permutation(n))
    row = np.empty(n, np.int32)
    begin = time.perf_counter()
    block_hash.take(hashes, pool, row, 0, n // 2)
    return (time.perf_counter() - begin) / (n // 2) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="candidates at most")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [10**k for k in range(3, 7) if 10**k <= options.most]
    for title, measure in (("radix", tree_ns), ("block hash", hash_ns)):
        rows = []
        for name in NAMES:
            measure(name, 1000)  # compiles
            ns = [statistics.median(measure(name, n) for _ in range(options.rounds)) for n in sizes]
            label = name if name in POLICIES else OWN_FILE.name
            rows.append([label, *(f"{value:.0f}" for value in ns), f"{ns[-1] / ns[0]:.1f}"])
        header = [f"{title}, ns per freed block", *(f"{n:,}" for n in sizes), "last / first"]
        print(tabulate(rows, header, disable_numparse=True, colalign=("left", *("right",) * (len(sizes) + 1))), "\n")


if __name__ == "__main__":
    main()
