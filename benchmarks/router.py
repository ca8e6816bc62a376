"""What a decision of a router costs, beside one look-up of the same prompt in an engine's cache.

    python benchmarks/router.py [--engines 16] [--blocks 1000] [--prompts 200] [--rounds 5] [--only kv-aware]

Prompts of that many blocks, a third of each shared, all of them known to every second engine. A look-up is
block_hash.match or radix.match of the whole prompt. us a prompt, best of the rounds, in turn in one process; the
ratio is to the look-up of the same kind: a table of blocks (events) beside block hash, a tree (own decisions) beside
the radix tree.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tabulate import tabulate

from kvbench.core.jit import entry
from kvbench.engine.build import share
from kvbench.engine.settings import EngineSettings
from kvbench.memory.pool import make_pool
from kvbench.prefix import block_hash, radix
from kvbench.prefix.chain_hash import chain, root_hash
from kvbench.prefix.keys import block_keys, fill_keys
from kvbench.routing.build import make_router
from kvbench.routing.late import catch_up, tell_block
from kvbench.routing.policies import verbs_of
from kvbench.routing.router import ENDED, SENT
from kvbench.routing.settings import RouterSettings
from kvbench.scheduler.rules import CacheRules, SchedulerRules
from kvbench.workload.build import build_workload

CASES = (
    ("round-robin", "own", ""),
    ("least-loaded", "own", ""),
    ("prefix-hash", "own", ""),
    ("cache-aware", "own", "radix"),
    ("kv-aware", "own", "radix"),
    ("kv-aware", "events", "hash"),
    ("scorers", "events", "hash"),
    ("predicted-ttft", "events", "hash"),
)
BT = 16


@entry
def _decide(route, router, seqs, num, now):
    """Every sequence once. A function pointer, as in a run."""
    last = np.int64(0)
    for seq in range(num):
        last += route(router, seqs, np.int64(seq), now)
    return last


@entry
def _tell_all(router, keys, num, blocks, scratch):
    """Every second engine has every prompt."""
    for seq in range(num):
        fill_keys(keys, seq, 0, blocks, scratch)
        content = root_hash(np.int64(0))
        for i in range(blocks):
            content = chain(content, scratch[i])
            for engine in range(0, router.accepts.size, 2):
                tell_block(router, engine, content, np.int64(0))
        catch_up(router, np.int64(1))


@entry
def _fill_hash(hashes, pool, keys, num, blocks, scratch, row):
    for seq in range(num):
        found, content, _ = block_hash.match(hashes, pool, keys, seq, np.int64(0), blocks, scratch, row)
        block_hash.take(hashes, pool, row, found, blocks)
        block_hash.publish(hashes, pool, keys, seq, content, row, found, blocks, scratch)


@entry
def _match_hash(hashes, pool, keys, num, blocks, scratch, row):
    total = np.int64(0)
    for seq in range(num):
        total += block_hash.match(hashes, pool, keys, seq, np.int64(0), blocks, scratch, row)[0]
    return total


@entry
def _fill_tree(tree, pool, keys, num, blocks, scratch, row):
    for seq in range(num):
        fill_keys(keys, seq, 0, blocks, scratch)
        radix.insert(tree, pool, np.int64(-1), scratch, row, np.int64(0), blocks, np.int64(0), np.int64(0))


@entry
def _match_tree(tree, keys, num, blocks, scratch, row):
    total = np.int64(0)
    for seq in range(num):
        fill_keys(keys, seq, 0, blocks, scratch)
        total += radix.match(tree, np.int64(0), scratch, blocks, row)[1]
    return total


def best_us(rounds: int, num: int, action: Callable[[], object]) -> float:
    """us a prompt."""
    action()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times) / num * 1e6


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="policies, with commas between")
    return parser.parse_args(words)


def decisions(given: argparse.Namespace) -> None:
    """Measure and print."""
    num, blocks = given.prompts, np.int64(given.blocks)
    requests, _ = build_workload(_workload(num, given.blocks))
    keys = block_keys(requests, BT)
    engine = EngineSettings(SchedulerRules(), CacheRules(num_blocks=1), BT, max_model_len=1 << 24)
    seqs = share(requests, engine, keys).seqs
    capacity = num * given.blocks + 1
    scratch, row = np.zeros(given.blocks + 64, np.int64), np.zeros(given.blocks + 64, np.int32)

    hashes, pool = block_hash.make_map(capacity), make_pool(capacity, "tail")
    _fill_hash(hashes, pool, keys, num, blocks, scratch, row)
    tree, ring = radix.make_tree(capacity, "lru"), make_pool(capacity, "append")
    row[:] = np.arange(row.size)
    _fill_tree(tree, ring, keys, num, blocks, scratch, row)
    looked = {
        "hash": best_us(given.rounds, num, lambda: _match_hash(hashes, pool, keys, num, blocks, scratch, row)),
        "radix": best_us(given.rounds, num, lambda: _match_tree(tree, keys, num, blocks, scratch, row)),
    }
    rows = [[f"look-up, {kind}", "", f"{us:.2f}", ""] for kind, us in looked.items()]
    for policy, belief, kind in CASES:
        if given.only and policy not in given.only.split(","):
            continue
        settings = RouterSettings(policy=policy, belief=belief)
        prefill = np.tile(np.arange(given.blocks * BT // 512 + 2) * 10**7, (given.engines, 1))
        router = make_router(settings, requests, given.engines, keys, BT, prefill)
        verbs = verbs_of(settings)
        if belief == "events":
            _tell_all(router, keys, num, blocks, scratch)
        elif kind:
            for seq in range(num):
                for to in range(0, given.engines, 2):
                    verbs.hear(router, seqs, int(SENT), seq, to, 0)
                    verbs.hear(router, seqs, int(ENDED), seq, to, 0) if to + 2 < given.engines else None
        us = best_us(given.rounds, num, partial(_decide, verbs.route, router, seqs, num, 1))
        ratio = f"{us / looked[kind]:.2f}" if kind else ""
        rows.append([policy, belief if kind else "", f"{us:.2f}", ratio])
    print(f"{given.engines} engines, {num} prompts of {given.blocks} blocks")
    print(tabulate(rows, ["decision", "belief", "us", "x look-up"], disable_numparse=True))


def _workload(num: int, blocks: int) -> dict[str, object]:
    """Open loop; a third of every prompt is one of ten documents."""
    from kvbench.bench.configure import configure

    third = blocks * BT // 3 // BT * BT
    changes = {
        "num_prompts": num,
        "lengths.prompt": blocks * BT - third,
        "lengths.output": 1,
        "sharing.groups": 10,
        "sharing.prefix": third,
    }
    return configure(None, None, [("benchmark", f"{k}={v}") for k, v in changes.items()]).config.tree()


if __name__ == "__main__":
    decisions(parse())
