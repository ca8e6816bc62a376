"""A cache of blocks alone, policy by policy, beside libCacheSim on the same accesses: misses and speed.

    python benchmarks/blocks.py [--trace conversation_trace.jsonl] [--capacities 1000,10000] [--peer PYTHON]

Accesses are the hash_ids of a Mooncake trace, or 300,000 drawn ones. kvbench's block hash serves each as a sequence of
one block would be: looked up, taken and made visible where it is missing, let go. The peer runs in a process of its
own, from a file in its own format, and is timed there. Both sides take turns; seconds of CPU, the best of the rounds.
Without --peer an environment with `libcachesim` is made in a temporary folder (pip).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np
from tabulate import tabulate

from kvbench.core.jit import entry
from kvbench.memory.pool import list_give, make_pool
from kvbench.prefix import block_hash, ranked
from kvbench.prefix.block_hash import make_map
from kvbench.prefix.keys import BlockKeys

PEERS = {"lru": "LRU", "fifo": "FIFO", "lfu": "LFU", "sieve": "Sieve", "lru-k": "LRUK", "gdsf": "GDSF"}
"""kvbench's name -> the peer's class. (slru, s3fifo: other algorithms of the same names.)"""

ROUNDS = 3

PEER_PROGRAM = """
import json, sys, time
import libcachesim as lcs
path, name, capacity = sys.argv[1], sys.argv[2], int(sys.argv[3])
reader = lcs.TraceReader(trace=path, trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)
cache = getattr(lcs, name)(cache_size=capacity)
begin = time.process_time()
ratio, _ = cache.process_trace(reader)
print(json.dumps([time.process_time() - begin, ratio]))
"""


@entry
def _serve(hashes, pool, keys, numbers, row, scratch):
    """All accesses, one after the other; returns how many missed."""
    missed, one, zero = 0, np.int64(1), np.int64(0)
    for number in numbers:
        found, content, _ = block_hash.match(hashes, pool, keys, number, zero, one, scratch, row)
        if found == 1:
            block_hash.share(pool, row, one)
            block_hash.note(hashes, pool, ranked.SHARED_AGAIN, row, zero, one, zero)
        else:
            missed += 1
            block_hash.take(hashes, pool, row, zero, one)
            block_hash.publish(hashes, pool, keys, number, content, row, zero, one, scratch)
            block_hash.note(hashes, pool, ranked.REGISTERED, row, zero, one, zero)
        list_give(pool, row, one)
        block_hash.note(hashes, pool, ranked.RELEASED, row, zero, one, zero)
    return missed


def serve(numbers: np.ndarray, policy: str, capacity: int) -> tuple[float, int]:
    """(seconds, misses) of accesses to blocks numbered from 0."""
    distinct = int(numbers.max()) + 1
    keys = BlockKeys(np.arange(distinct + 1), np.zeros(distinct, np.int32), np.arange(1, distinct + 1))
    hashes, pool = make_map(capacity, 0, policy), make_pool(capacity, "unhashed-first")
    row, scratch = np.zeros(1, np.int32), np.zeros(1, np.int64)
    begin = time.process_time()
    missed = int(_serve(hashes, pool, keys, numbers, row, scratch))
    return time.process_time() - begin, missed


def accesses(trace: Path | None) -> np.ndarray:
    """(accesses,) blocks, numbered in order of appearance."""
    if trace is None:
        drawn = np.random.default_rng(0).zipf(1.2, 300_000) % 100_000
    else:
        drawn = np.concatenate([json.loads(line)["hash_ids"] for line in trace.read_text().splitlines()])
    _, first, number = np.unique(drawn, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[number]


def peer_file(numbers: np.ndarray, folder: Path) -> Path:
    """oracleGeneral: (time, id, size, next access) for each access."""
    row = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    table = np.zeros(numbers.size, row)
    table["time"], table["id"], table["size"], table["next"] = np.arange(numbers.size), numbers + 1, 1, -1
    path = folder / "accesses.oracleGeneral.bin"
    table.tofile(path)
    return path


def peer_python(folder: Path) -> str:
    venv.create(folder / "peer", with_pip=True)
    python = str(folder / "peer" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "libcachesim"], check=True)
    return python


def peer(python: str, path: Path, name: str, capacity: int, num: int) -> tuple[float, int]:
    """(seconds, misses) of the peer."""
    command = [python, "-c", PEER_PROGRAM, str(path), name, str(capacity)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, ratio = json.loads(done.stdout.splitlines()[-1])
    return seconds, round(ratio * num)


def compare(numbers: np.ndarray, capacities: list[int], python: str, path: Path) -> list[list[str]]:
    rows = []
    for policy, name in PEERS.items():
        serve(numbers[:1000], policy, 100)  # compiles
        for capacity in capacities:
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(serve(numbers, policy, capacity))
                theirs.append(peer(python, path, name, capacity, numbers.size))
            (a, misses), (b, others) = min(ours), min(theirs)
            rates = f"{numbers.size / a / 1e6:.2f}", f"{numbers.size / b / 1e6:.2f}", f"{b / a:.2f}"
            rows.append([policy, f"{capacity:,}", f"{misses:,}", f"{others:,}", *rates])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="Mooncake JSON Lines")
    parser.add_argument("--capacities", default="1000,10000,50000", help="in blocks")
    parser.add_argument("--peer", help="a Python that has libcachesim")
    options = parser.parse_args()
    numbers = accesses(options.trace)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = options.peer or peer_python(folder)
        rows = compare(numbers, [int(c) for c in options.capacities.split(",")], python, peer_file(numbers, folder))
    header = ["policy", "blocks", "misses", "of libCacheSim", "M accesses/s", "libCacheSim", "ratio"]
    print(f"{numbers.size:,} accesses to {int(numbers.max()) + 1:,} blocks\n")
    print(tabulate(rows, header, disable_numparse=True, colalign=("left", *("right",) * 6)))


if __name__ == "__main__":
    sys.exit(main())
