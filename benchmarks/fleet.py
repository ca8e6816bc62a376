"""What a fleet costs beside one engine, what a decision costs, and whether a run grows with its size alone.

python benchmarks/fleet.py [--requests 40000] [--sizes 10000,1000000] [--engines 64] [--only spread,decision,size]

spread    as many requests on 8 engines at 8 times the rate as on one, so about as many steps of the same kind;
          requests/s of the loop, both in turn in one process, seconds of CPU, best of the rounds
decision  router.py: among 16 engines, for prompts of 1,000 blocks, beside one look-up in a cache
size      `kvbench run` with 64 engines (--engines), everything included: seconds of CPU for each request, most memory;
          the run of 1,000 requests, nearly all of it start, stands beside
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import router
from tabulate import tabulate

from kvbench.bench.configure import configure
from kvbench.bench.fleet_engines import fleet_of
from kvbench.bench.step_times import step_costs
from kvbench.bench.system import build_system
from kvbench.cluster.simulation import Simulation
from kvbench.workload.build import build_workload

ROUNDS = 4
"""The first one may compile, and does not count."""
RATE = 12
"""Requests/s for each engine: it is busy, and keeps up."""
SIZE_POLICIES = ("round-robin", "cache-aware", "kv-aware")


def changes(requests: int, engines: int, policy: str) -> list[str]:
    """Of fleet-prefixes."""
    return [
        f"num_prompts={requests}",
        f"arrivals.rate={RATE * engines}",
        f"fleet.replicas={engines}",
        f"router.policy={policy}",
    ]


def spread(requests: int) -> None:
    """One engine without a router, and eight behind one."""
    kinds = [("one engine", 1, "round-robin"), *((f"8, {policy}", 8, policy) for policy in SIZE_POLICIES)]
    best: dict[str, tuple[float, int]] = {}
    for turn in range(ROUNDS):
        for name, engines, policy in kinds:
            seconds, steps = _loop(requests, engines, policy)
            if turn > 0:
                best[name] = min(best.get(name, (seconds, steps)), (seconds, steps))
    first = requests / best["one engine"][0]
    rows = [
        [name, f"{steps:,}", f"{requests / seconds:,.0f}", f"{requests / seconds / first:.2f}"]
        for name, (seconds, steps) in best.items()
    ]
    print(f"{requests:,} requests, {RATE} a second for each engine")
    print(tabulate(rows, ["", "steps", "requests/s", "of one engine"], disable_numparse=True), end="\n\n")


def _loop(requests: int, engines: int, policy: str) -> tuple[float, int]:
    """(seconds of CPU, steps) of the loop alone, without the check of every engine at the end."""
    given = [("benchmark", text) for text in changes(requests, engines, policy)]
    system = build_system(configure("fleet-prefixes", changes=given).config)
    table, _ = build_workload(system.config.tree())
    simulation = Simulation(table, system.settings, step_costs(system).tables, fleet_of(system, table))
    begin = time.process_time()
    assert simulation.advance()
    return time.process_time() - begin, simulation.counters().num_steps


def size(sizes: list[int], engines: int) -> None:
    """Runs of the command, each a process of its own."""
    rows = []
    for policy in SIZE_POLICIES if engines > 1 else SIZE_POLICIES[:1]:
        _command(1000, engines, policy)
        for requests in (1000, *sizes):
            seconds, memory = _command(requests, engines, policy)
            rows.append([policy, f"{requests:,}", f"{seconds:.1f}", f"{seconds / requests * 1e6:.1f}", f"{memory:.2f}"])
            print(*rows[-1], file=sys.stderr)
    print(f"`kvbench run fleet-prefixes` with engines: {engines}; the start included")
    print(tabulate(rows, ["policy", "requests", "s of CPU", "us a request", "GB at most"], disable_numparse=True))


def _command(requests: int, engines: int, policy: str) -> tuple[float, float]:
    """(seconds of CPU, GB) of a run."""
    words = [word for text in changes(requests, engines, policy) for word in ("--set", text)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", "run", "fleet-prefixes", *words, "--json", "-q"], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--only", default="spread,decision,size")
    given = parser.parse_args()
    parts = given.only.split(",")
    if "spread" in parts:
        spread(given.requests)
    if "decision" in parts:
        router.decisions(router.parse([]))
        print()
    if "size" in parts:
        size([int(text) for text in given.sizes.split(",")], given.engines)


if __name__ == "__main__":
    main()
