"""Caches of a thousand to ten million blocks: time for a request of 64 blocks, and memory of a block.

    python benchmarks/sizes.py [--blocks 1000,10000,100000,1000000,10000000]

A full cache serves requests one by one, under block hash and in the radix tree: it looks a prompt up, takes blocks
for what is missing, which evicts as much, makes them visible and lets go. Three prompts of four are new, the fourth is
that of three requests ago. Microseconds of CPU a request once the cache is full (building and filling aside), the best
of three rounds; bytes of all arrays that describe blocks. What grows is the time that a line of memory takes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from tabulate import tabulate

from kvbench.core.jit import entry
from kvbench.memory.pool import list_give, make_pool, ring_take
from kvbench.prefix import block_hash, radix
from kvbench.prefix.block_hash import make_map
from kvbench.prefix.keys import BlockKeys, fill_keys
from kvbench.prefix.radix import make_tree

LENGTH = 64
"""Blocks of a prompt."""
MEASURED = 10_000
ROUNDS = 3


@entry
def _serve_hash(hashes, pool, keys, start, stop, row, scratch):
    zero = np.int64(0)
    for sequence in range(start, stop):
        found, content, _ = block_hash.match(hashes, pool, keys, sequence, zero, row.size, scratch, row)
        block_hash.share(pool, row, found)
        block_hash.take(hashes, pool, row, found, row.size)
        block_hash.publish(hashes, pool, keys, sequence, content, row, found, row.size, scratch)
        list_give(pool, row, row.size)


@entry
def _serve_radix(tree, pool, keys, start, stop, row, scratch):
    zero = np.int64(0)
    for sequence in range(start, stop):
        known = radix.reach(tree, zero, keys, sequence, row.size, scratch)
        node, hits = radix.match(tree, zero, scratch, known, row)
        missing = row.size - hits
        if pool.num_free < missing:
            radix.evict(tree, pool, missing - pool.num_free)
        ring_take(pool, row, hits, row.size)
        fill_keys(keys, sequence, hits, row.size, scratch)
        radix.insert(tree, pool, node, scratch, row, hits, row.size, zero, zero)


def prompts(num: int) -> BlockKeys:
    """Every fourth repeats the one that came three before it."""
    number = np.arange(num)
    number[3::4] -= 3
    return BlockKeys(np.arange(num + 1), np.zeros(num, np.int32), number << 20)


def num_bytes(*parts: Any) -> int:
    """Of all arrays of these structs and of those in them."""
    total = 0
    for part in parts:
        for value in part.read().values():
            if isinstance(value, np.ndarray):
                total += value.nbytes
            elif hasattr(value, "read"):
                total += num_bytes(value)
    return total


def measure(kind: str, blocks: int) -> tuple[float, float]:
    """(microseconds of CPU a request, bytes a block)."""
    if kind == "hash":
        cache, pool, serve = make_map(blocks), make_pool(blocks, "unhashed-first"), _serve_hash
    else:
        cache, pool, serve = make_tree(blocks, "lru"), make_pool(blocks, "sorted-front"), _serve_radix
    filling = 2 * blocks // LENGTH + 8
    keys = prompts(filling + ROUNDS * MEASURED)
    row, scratch = np.zeros(LENGTH, np.int32), np.zeros(LENGTH, np.int64)
    serve(cache, pool, keys, 0, filling, row, scratch)
    seconds = []
    for number in range(ROUNDS):
        start = filling + number * MEASURED
        begin = time.process_time()
        serve(cache, pool, keys, start, start + MEASURED, row, scratch)
        seconds.append(time.process_time() - begin)
    return min(seconds) / MEASURED * 1e6, num_bytes(cache, pool) / blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="1000,10000,100000,1000000,10000000")
    options = parser.parse_args()
    rows = []
    for blocks in (int(text) for text in options.blocks.split(",")):
        cells = [f"{blocks:,}"]
        for kind in ("hash", "radix"):
            us, size = measure(kind, blocks)
            cells += [f"{us:.2f}", f"{size:.0f}"]
        rows.append(cells)
    header = ["blocks", "hash: us a request", "bytes a block", "radix: us a request", "bytes a block"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("right",) * 5))


if __name__ == "__main__":
    main()
