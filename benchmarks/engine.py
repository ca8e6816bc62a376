"""How fast the engine is, beside a yardstick measured in the same run.

    python benchmarks/engine.py [--trace conversation_trace.jsonl] [--quick]

Machines differ and are noisy, so each row has a ratio too: how many times the yardstick's unit (a jitted loop that
hashes a key and probes a table of 2^20 entries, the work that bounds a prefix cache) goes into one block or one
sequence-step. Medians of several runs, warm JIT cache, one thread, everything on: journal, end check, metrics.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tabulate import tabulate

from kvbench.bench.configure import configure
from kvbench.bench.fleet_engines import fleet_of
from kvbench.bench.system import build_system
from kvbench.cluster.fleet import Fleet, Member
from kvbench.cluster.simulation import Simulation
from kvbench.core.jit import entry
from kvbench.core.requests import Requests
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline
from kvbench.engine.settings import EngineSettings
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.tiers.copies import make_host
from kvbench.tiers.rules import HostLink, LinkRules, StoreRules, TierRules
from kvbench.workload.build import build_workload

RADIX = EngineSettings(
    SchedulerRules(discipline=PREFILL_FIRST), CacheRules("radix", free_order="auto"), max_model_len=200_000
)
HASH = EngineSettings(SchedulerRules(self_preemption_ends_step=False), CacheRules("hash"), max_model_len=200_000)


@entry
def _yardstick(table, rounds):
    x = np.uint64(88172645463325252)
    found = 0
    for _ in range(rounds):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        found += table[np.int64(x & np.uint64(table.size - 1))]
    return found


def yardstick_ns() -> float:
    """Nanoseconds of one hash and probe, now."""
    table = np.zeros(1 << 20, np.int64)
    _yardstick(table, 1000)
    begin = time.perf_counter()
    _yardstick(table, 3_000_000)
    return (time.perf_counter() - begin) / 3_000_000 * 1e9


def median_seconds(run: Callable[[], object], rounds: int) -> tuple[float, float]:
    """(median seconds, median yardstick ns around them); the first run, which may compile, is not counted."""
    run()
    seconds, unit = [], []
    for _ in range(rounds):
        unit.append(yardstick_ns())
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), statistics.median(unit)


def simulate(requests: Requests, settings: EngineSettings, blocks: int) -> Simulation:
    settings = dataclasses.replace(settings, cache=dataclasses.replace(settings.cache, num_blocks=blocks))
    simulation = Simulation(requests, settings, _tables())
    simulation.run()
    simulation.journal()
    return simulation


def _tables():  # type: ignore[no-untyped-def]
    return roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b"))).tables


def repeated(requests: Requests, times: int) -> Requests:
    """The trace again and again, each copy after the one before."""
    r, n = requests, len(requests)
    span = int(r.arrival_ns[-1]) + 10**9
    shift = np.repeat(np.arange(times), n) * span
    arrays = {
        f.name: np.tile(getattr(r, f.name), times)
        for f in dataclasses.fields(r)
        if isinstance(getattr(r, f.name), np.ndarray) and f.name not in ("token_ids", "segment_offset")
    }
    arrays["arrival_ns"] = arrays["arrival_ns"] + shift
    arrays["output_stream"] = arrays["output_stream"] + np.repeat(np.arange(times), n) * (1 << 25)
    segments = r.segment_offset[-1]
    offsets = [r.segment_offset[:-1] + k * segments for k in range(times)]
    arrays["segment_offset"] = np.concatenate([*offsets, [times * segments]])
    return dataclasses.replace(r, **arrays)


def trace_rows(requests: Requests, rounds: int) -> list[list[object]]:
    blocks_asked = int((requests.prompt_tokens // 16).sum())
    rows: list[list[object]] = []
    for name, settings, blocks in (
        ("trace, radix", RADIX, 50_000),
        ("trace, radix", RADIX, 200_000),
        ("trace, radix, step path", dataclasses.replace(RADIX, fast=False), 50_000),
        ("trace, block hash", HASH, 50_000),
        ("trace, block hash", HASH, 200_000),
        ("trace, block hash, step path", dataclasses.replace(HASH, fast=False), 50_000),
    ):
        seconds, unit = median_seconds(lambda s=settings, b=blocks: simulate(requests, s, b), rounds)  # type: ignore[misc]
        rows.append([name, f"{blocks:,}", *_figures(len(requests), blocks_asked, seconds, unit)])
    for kind, settings in (("radix", RADIX), ("hash", HASH)):
        sized = dataclasses.replace(settings, cache=dataclasses.replace(settings.cache, num_blocks=50_000))
        seconds, unit = median_seconds(lambda s=sized: replay_cache(Offline(requests, 16), s, _tables()), rounds)  # type: ignore[misc]
        rows.append([f"cache only, {kind}", "50,000", *_figures(len(requests), blocks_asked, seconds, unit)])
    ten = repeated(requests, 10)
    seconds, unit = median_seconds(lambda: simulate(ten, RADIX, 50_000), 1)
    rows.append(["trace x 10, radix", "50,000", *_figures(len(ten), 10 * blocks_asked, seconds, unit)])
    return rows


def synthetic_rows(num: int, rounds: int) -> list[list[object]]:
    config = {
        "num_prompts": num,
        "arrivals": {"process": "poisson", "rate": 40.0},
        "lengths": {"prompt": 1000, "output": {"distribution": "uniform", "min": 100, "max": 300}},
    }
    requests, _ = build_workload(config)
    rows: list[list[object]] = []
    for name, settings in (("radix", RADIX), ("block hash", HASH)):
        rules = dataclasses.replace(settings.scheduler, max_num_seqs=256, max_running_requests=256)
        sized = dataclasses.replace(settings, scheduler=rules)
        seconds, unit = median_seconds(lambda s=sized: simulate(requests, s, 50_000), rounds)  # type: ignore[misc]
        asked = int((requests.prompt_tokens // 16).sum())
        rows.append([f"{num:,} synthetic, {name}", "50,000", *_figures(num, asked, seconds, unit)])
    return rows


def pair_rows(num: int, rounds: int) -> list[list[object]]:
    """The same requests on four engines that do both, and on two that prefill and two that decode."""
    rows: list[list[object]] = []
    for preset in ("vllm", "sglang"):
        alone = 0.0
        for name, split in (
            ("4 engines", ("fleet.replicas=4",)),
            ("2 prefill, 2 decode", ("pd.prefill=2", "pd.decode=2")),
        ):
            given = (f"preset={preset}", f"num_prompts={num}", "overlap=false", "lengths.prompt=1000")
            more = ("lengths.output=200", "arrivals.rate=40", "router.policy=least-loaded")
            asked = configure("summarise-long", changes=[("benchmark", c) for c in (*given, *more, *split)])
            system = build_system(asked.config)
            requests, _ = build_workload(system.config.tree())
            fleet = fleet_of(system, requests)
            assert fleet is not None
            first = fleet.members[0]

            def run(fleet: Fleet = fleet, requests: Requests = requests, first: Member = first) -> None:
                Simulation(requests, first.settings, first.tables, fleet).run()

            seconds, _ = median_seconds(run, rounds)
            alone = alone or seconds
            rows.append([f"{preset}, {name}", f"{seconds:.3f}", f"{seconds / num * 1e6:.1f}", f"{seconds / alone:.2f}"])
    return rows


def tier_rows(requests: Requests, rounds: int) -> list[list[object]]:
    """The same requests through 50,000 blocks alone, and with host memory twice as large and storage behind it."""
    link = LinkRules(10_000.0, 0.0, 1 / 50)
    store = StoreRules(400_000, block_bytes=2 << 20, down=LinkRules(1e5, 1e5, 0.2), up=LinkRules(1e5, 1e5, 0.1))
    rules = TierRules(
        100_000, closed=False, layers=32, block_bytes=2 << 20, host_link=HostLink(link, link), store=store
    )
    rows: list[list[object]] = []
    for name, settings, load in (("radix", RADIX, "layerwise"), ("block hash", HASH, "whole")):
        for path, fast in (("", True), (", step path", False)):
            alone = 0.0
            for tiers in (TierRules(), dataclasses.replace(rules, load=load, closed=load == "layerwise")):
                own = dataclasses.replace(settings, tiers=tiers, fast=fast)
                seconds, _ = median_seconds(lambda s=own: simulate(requests, s, 50_000), rounds)  # type: ignore[misc]
                alone = alone or seconds
                kept = tiers.host_blocks + (tiers.store.blocks if tiers.on else 0)
                rate = f"{len(requests) / seconds:,.0f}"
                rows.append([f"trace, {name}{path}", f"{kept:,}", f"{seconds:.3f}", rate, f"{alone / seconds:.2f}"])
    return rows


def tier_bytes(policy: str) -> float:
    """Bytes of this process for each block of a host of a million, prefixes closed."""
    pool = make_host(1_000_000, policy, True, 100)
    found = 0
    for part in (
        pool,
        pool.order,
        pool.order.heap,
        pool.order.small,
        pool.order.ghosts,
        pool.arc,
        pool.arc.b1,
        pool.arc.b2,
    ):
        found += sum(value.nbytes for value in part.read().values() if isinstance(value, np.ndarray))
    return found / 1e6


def _figures(requests: int, blocks: int, seconds: float, unit: float) -> list[object]:
    per_block = seconds / blocks * 1e9
    return [f"{seconds:.3f}", f"{requests / seconds:,.0f}", f"{per_block:.1f}", f"{per_block / unit:.1f}"]


def command_rows(trace: Path | None, rounds: int) -> list[list[object]]:
    commands = {"--help": ["--help"], "run chat": ["run", "chat"]}
    if trace is not None:
        commands["run --trace, radix"] = ["run", "--trace", str(trace), "--preset", "sglang"]
    rows: list[list[object]] = []
    python = statistics.median(_wall([sys.executable, "-c", "import numba"]) for _ in range(rounds))
    for name, arguments in commands.items():
        command = [sys.executable, "-m", "kvbench", *arguments]
        _wall(command)
        seconds = statistics.median(_wall(command) for _ in range(rounds))
        rows.append([name, f"{seconds:.2f}", f"{seconds / python:.2f}"])
    return rows


def _wall(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a Mooncake JSONL, e.g. conversation_trace.jsonl")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 100,000 synthetic requests")
    parser.add_argument("--pairs", type=int, default=20_000, help="requests for prefill and decode engines")
    options = parser.parse_args()
    rounds = 2 if options.quick else 5
    rows = []
    if options.trace is not None:
        requests, _ = build_workload({"trace": {"path": str(options.trace)}})
        rows += trace_rows(requests, rounds)
    rows += synthetic_rows(100_000 if options.quick else 1_000_000, 1 if options.quick else 3)
    header = ["engine", "blocks", "seconds", "requests/s", "ns/block", "x yardstick"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("left", *("right",) * 5)))
    print(f"\nyardstick {yardstick_ns():.2f} ns; peak memory {_peak_mb()} MB\n")
    if options.trace is not None:
        header = ["tiers", "blocks below the device", "seconds", "requests/s", "x without"]
        print(tabulate(tier_rows(requests, rounds), header, disable_numparse=True, colalign=("left", *("right",) * 4)))
        held = ", ".join(f"{policy} {tier_bytes(policy):.0f}" for policy in ("lru", "arc", "lfu", "s3fifo"))
        print(f"\nbytes for a block of a tier: {held}\n")
    header = ["a fleet", "seconds", "us a request", "x 4 engines"]
    pairs = pair_rows(options.pairs, rounds)
    print(tabulate(pairs, header, disable_numparse=True, colalign=("left", *("right",) * 3)) + "\n")
    header = ["whole command, warm", "seconds", "x import numba"]
    print(
        tabulate(
            command_rows(options.trace, rounds), header, disable_numparse=True, colalign=("left", "right", "right")
        )
    )


def _peak_mb() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) >> (20 if sys.platform == "darwin" else 10)


if __name__ == "__main__":
    main()
