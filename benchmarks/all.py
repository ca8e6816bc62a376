"""All that kvbench wants to be fast at, in one table: a figure, what stands beside it in the same run, their ratio.

    python benchmarks/all.py --trace conversation_trace.jsonl [--against REF] [--peer PYTHON] [--only start,runs]

Both sides of a row take turns and are measured in seconds of CPU, the best of the rounds, so that a ratio means the
same on another machine and beside another load. What stands beside is a peer where one can be installed by pip
(--peer: a Python that has libcachesim; else a temporary environment is made), else a limit or a yardstick of this
machine:

    start      a whole command, beside a script that calls one cached function of Numba (times as long)
    reading    a trace to requests, beside json.loads of its lines (times as long)
    names      token ids to keys of blocks, beside NumPy comparing as many ids (of its speed)
    blocks     a cache of blocks by policy, beside libCacheSim (of its speed; blocks.py: more capacities)
    replay     the trace through the engine, beside a probe of a table for each block (times as long; engine.py: more)
    runs       whole runs with a fleet, tiers, pairs and experts, beside the same requests without (requests/s of them)

--against takes any commit, mostly the last release: the same runs with the package as it was there, in turn with ours.
"""

from __future__ import annotations

import argparse
import json
import os
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

from kvbench.bench.configure import configure
from kvbench.bench.machine import cpu_name, git_commit
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.prefix.keys import block_keys
from kvbench.speed.prefixes import _requests, chat
from kvbench.workload.build import build_workload

ROUNDS = 3
CAPACITY = 10_000
ROOT = Path(__file__).resolve().parent.parent
Work = Callable[[], object]
Row = tuple[str, str, str, str]

LEAST_OF_NUMBA = """
import sys
sys.modules["scipy.linalg"] = None  # as kvbench does: Numba would import it for its BLAS
import numba, numpy
@numba.njit(cache=True)
def total(values):
    return values.sum()
total(numpy.zeros(3))
"""

_TRACE = ("preset=vllm", "block_tokens=16", "cache.blocks=50000", "max_model_len=131072")
_BELOW = ("tiers.host.ratio=2", "tiers.storage.blocks=400000", "links.host.up=50", "links.host.down=50")
_PAIRS = ("num_prompts=20000", "overlap=false", "lengths.prompt=1000", "lengths.output=200", "arrivals.rate=40")
_ROUTED = ("router.policy=least-loaded",)
_EXPERTS = ("model=olmoe-1b-7b", "lengths.output=60", "num_prompts=4000", "dp=4", "ep=4")

RUNS: dict[str, tuple[str | None, tuple[str, ...], str | None]] = {
    "trace": (None, _TRACE, None),
    "trace, radix": (None, ("preset=sglang", "cache.blocks=800000", "max_model_len=131072"), None),
    "trace, three tiers": (None, (*_TRACE, *_BELOW), "trace"),
    "one engine": ("fleet-prefixes", ("num_prompts=40000", "fleet.replicas=1", "arrivals.rate=12"), None),
    "8 engines, round-robin": (
        "fleet-prefixes",
        ("num_prompts=40000", "fleet.replicas=8", "arrivals.rate=96", "router.policy=round-robin"),
        "one engine",
    ),
    "8 engines, cache-aware": (
        "fleet-prefixes",
        ("num_prompts=40000", "fleet.replicas=8", "arrivals.rate=96", "router.policy=cache-aware"),
        "one engine",
    ),
    "vllm, 4 engines": ("summarise-long", ("preset=vllm", *_PAIRS, *_ROUTED, "fleet.replicas=4"), None),
    "vllm, 2 prefill and 2 decode": (
        "summarise-long",
        ("preset=vllm", *_PAIRS, *_ROUTED, "pd.prefill=2", "pd.decode=2"),
        "vllm, 4 engines",
    ),
    "sglang, 4 engines": ("summarise-long", ("preset=sglang", *_PAIRS, *_ROUTED, "fleet.replicas=4"), None),
    "sglang, 2 prefill and 2 decode": (
        "summarise-long",
        ("preset=sglang", *_PAIRS, *_ROUTED, "pd.prefill=2", "pd.decode=2"),
        "sglang, 4 engines",
    ),
    "4 ranks of experts": ("batch-offline", _EXPERTS, None),
    "4 ranks, balanced": (
        "batch-offline",
        (*_EXPERTS, "eplb.mode=dynamic-sync", "eplb.interval=100"),
        "4 ranks of experts",
    ),
}
"""Name of a run -> its scenario (None: the trace), what is changed in it, and the run that stands beside it."""


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
    """Of CPU, of a process of its own that may keep its bytecode, as an installation does."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_rows() -> list[Row]:
    commands = {
        "run chat, ten requests": ("-m", "kvbench", "run", "chat", "--num-prompts", "10", "-q"),
        "--help": ("-m", "kvbench", "--help"),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        least = Path(folder) / "least.py"
        least.write_text(LEAST_OF_NUMBA)
        command_seconds(str(least))
        for name, command in commands.items():
            command_seconds(*command)
            pairs = [(command_seconds(*command), command_seconds(str(least))) for _ in range(ROUNDS)]
            ours, beside = min(a for a, _ in pairs), min(b for _, b in pairs)
            rows.append((f"start: {name}", f"{ours:.2f} s", f"Numba alone {beside:.2f} s", f"{ours / beside:.2f}"))
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


def requests_a_second(name: str, trace: Path) -> float:
    """Of CPU, of a run in this process, from the workload to its record; the best of the rounds."""
    scenario, changes, _ = RUNS[name]
    source = (f"trace.path={trace}",) if scenario is None else ()
    configured = configure(scenario, changes=[("benchmark", change) for change in (*source, *changes)])
    workload = build_workload(build_system(configured.config).config.tree())
    (seconds,) = in_turn(lambda: run(configured, workload=workload))
    return len(workload[0]) / seconds


def run_rows(trace: Path, against: str | None) -> list[Row]:
    """Each run beside the one that it is compared with; then each as it was at another commit."""
    rates = {name: _elsewhere(name, trace, ROOT) for name in RUNS}
    rows: list[Row] = []
    for name, (_, _, beside) in RUNS.items():
        if beside is not None:
            other = f"{beside} {rates[beside]:,.0f}"
            rows.append(
                (f"runs: {name}", f"{rates[name]:,.0f} requests/s", other, f"{rates[name] / rates[beside]:.2f}")
            )
    if against is not None:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, against], check=True)
            try:
                rows += _against(rates, trace, tree, against)
            finally:
                subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)
    return rows


def _against(rates: dict[str, float], trace: Path, tree: Path, commit: str) -> list[Row]:
    rows = []
    for name, rate in rates.items():
        before = _elsewhere(name, trace, tree)
        ours = max(rate, _elsewhere(name, trace, ROOT))  # in turn: a machine changes within minutes
        rows.append((f"commits: {name}", f"{ours:,.0f} requests/s", f"{commit} {before:,.0f}", f"{ours / before:.2f}"))
    return rows


def _elsewhere(name: str, trace: Path, tree: Path) -> float:
    """`requests_a_second` in a process of its own, with the package in a tree."""
    command = [sys.executable, __file__, "--trace", str(trace.resolve()), "--one", name]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="Mooncake JSON Lines")
    parser.add_argument("--against", metavar="REF", help="a commit whose package runs beside today's")
    parser.add_argument("--peer", help="a Python that has libcachesim")
    parser.add_argument("--only", default="start,reading,names,blocks,replay,runs")
    parser.add_argument("--one", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(requests_a_second(options.one, options.trace))
        return
    parts: dict[str, Callable[[], list[Row]]] = {
        "start": start_rows,
        "reading": lambda: reading_rows(options.trace),
        "names": name_rows,
        "blocks": lambda: block_rows(options.trace, options.peer),
        "replay": lambda: replay_rows(options.trace),
        "runs": lambda: run_rows(options.trace, options.against),
    }
    rows = [row for part in options.only.split(",") for row in parts[part]()]
    print(f"{cpu_name()}; commit {git_commit() or 'unknown'}\n")
    print(tabulate(rows, ["", "kvbench", "beside", "ratio"], disable_numparse=True))


if __name__ == "__main__":
    main()
