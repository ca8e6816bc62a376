"""All that kvbench wants to be fast at, in one table: a figure, what stands beside it in the same run, their ratio.

    python benchmarks/all.py --trace conversation_trace.jsonl [--peer PYTHON]

Both sides of a row take turns and are measured in seconds of CPU, the best of the rounds, so that a ratio means the
same on another machine and beside another load. What stands beside is a peer where one can be installed by pip
(--peer: a Python that has libcachesim; else a temporary environment is made), else a limit or a yardstick of this
machine:

    start      a whole command, beside `import numba` alone (times as long)
    reading    a trace to requests, beside json.loads of its lines (times as long)
    names      token ids to keys of blocks, beside NumPy comparing as many ids (of its speed)
    blocks     a cache of blocks by policy, beside libCacheSim (of its speed; blocks.py: more capacities)
    replay     the trace through the engine, beside a probe of a table for each block (times as long; engine.py: more)
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import blocks
import engine
import numpy as np
from tabulate import tabulate

from kvbench.bench.machine import cpu_name, git_commit
from kvbench.prefix.keys import block_keys
from kvbench.speed.prefixes import _requests, chat
from kvbench.workload.build import build_workload

ROUNDS = 3
CAPACITY = 10_000
Work = Callable[[], object]
Row = tuple[str, str, str, str]


def in_turn(*works: Work) -> list[float]:
    """Seconds of CPU of each, the best of the rounds; the first round, which may compile or load, is not counted."""
    best = [float("inf")] * len(works)
    for number in range(ROUNDS + 1):
        for i, work in enumerate(works):
            begin = time.process_time()
            work()
            if number:
                best[i] = min(best[i], time.process_time() - begin)
    return best


def command_seconds(*arguments: str) -> float:
    """Of CPU, of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_rows() -> list[Row]:
    commands = {
        "run chat, ten requests": ("-m", "kvbench", "run", "chat", "--num-prompts", "10", "-q"),
        "--help": ("-m", "kvbench", "--help"),
    }
    rows = []
    for name, command in commands.items():
        command_seconds(*command)
        pairs = [(command_seconds(*command), command_seconds("-c", "import numba")) for _ in range(ROUNDS)]
        ours, beside = min(a for a, _ in pairs), min(b for _, b in pairs)
        rows.append((f"start: {name}", f"{ours:.2f} s", f"import numba {beside:.2f} s", f"{ours / beside:.2f}"))
    return rows


def reading_rows(trace: Path) -> list[Row]:
    config = {"trace": {"path": str(trace)}}
    ours, beside = in_turn(
        lambda: build_workload(config), lambda: [json.loads(line) for line in trace.read_text().splitlines()]
    )
    return [("reading: a trace", f"{ours:.3f} s", f"json.loads {beside:.3f} s", f"{ours / beside:.2f}")]


def name_rows() -> list[Row]:
    lengths, tokens = chat(4000)
    requests, other = _requests(lengths, tokens), tokens.copy()
    rows = []
    for size in (1, 16):
        ours, beside = in_turn(lambda n=size: block_keys(requests, n), lambda: np.array_equal(tokens, other))  # type: ignore[misc]
        rates = [f"{tokens.size / seconds / 1e6:,.0f} M tokens/s" for seconds in (ours, beside)]
        rows.append((f"names: ids in blocks of {size}", rates[0], f"NumPy compares {rates[1]}", f"{beside / ours:.2f}"))
    return rows


def block_rows(trace: Path, peer: str | None) -> list[Row]:
    numbers = blocks.accesses(trace)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = peer or blocks.peer_python(folder)
        found = blocks.compare(numbers, [CAPACITY], python, blocks.peer_file(numbers, folder))
    return [
        (f"blocks: {policy}, {size} blocks", f"{ours} M/s", f"libCacheSim {theirs} M/s", ratio)
        for policy, size, _, _, ours, theirs, ratio in found
    ]


def replay_rows(trace: Path) -> list[Row]:
    requests, _ = build_workload({"trace": {"path": str(trace)}})
    asked = int((requests.prompt_tokens // 16).sum())
    rows = []
    for name, settings in (("radix", engine.RADIX), ("block hash", engine.HASH)):
        for size in (50_000, 200_000):
            (seconds,) = in_turn(lambda s=settings, n=size: engine.simulate(requests, s, n))  # type: ignore[misc]
            each, unit = seconds / max(asked, 1) * 1e9, engine.yardstick_ns()
            rate = f"{len(requests) / seconds:,.0f} requests/s"
            rows.append(
                (f"replay: {name}, {size:,} blocks", rate, f"a probe {unit:.1f} ns", f"{each / unit:.2f} a block")
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="Mooncake JSON Lines")
    parser.add_argument("--peer", help="a Python that has libcachesim")
    options = parser.parse_args()
    parts = (start_rows(), reading_rows(options.trace), name_rows(), block_rows(options.trace, options.peer))
    rows = [row for part in (*parts, replay_rows(options.trace)) for row in part]
    print(f"{cpu_name()}; commit {git_commit() or 'unknown'}\n")
    print(tabulate(rows, ["", "kvbench", "beside", "ratio"], disable_numparse=True))


if __name__ == "__main__":
    main()
