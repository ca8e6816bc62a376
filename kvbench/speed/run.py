"""`kvbench kernels`: the groups that are asked for, measured one after the other, with what makes them doubtful."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..bench.machine import machine, versions
from ..core.errors import UsageError
from ..core.jit import PLAIN, compile_watch
from ..kernels.simd import LANES
from ..kernels.threads import check_threads
from ..report.kernels_table import KernelReport, KernelRow
from .attention import decode_entries
from .copies import copy_entries, limit_entries, write_entries
from .entries import Entry
from .memory import Memory
from .prefixes import prefix_entries
from .probes import Progress, Timing, time_rounds
from .sizes import Sizes, last_cache_bytes

GROUPS: dict[str, Callable[[Memory, Sequence[int]], list[Entry]]] = {
    "decode": decode_entries,
    "copy": copy_entries,
    "write": write_entries,
    "radix": lambda memory, threads: prefix_entries(memory.sizes),
}
"""Name for --only -> its lines."""

BUSY_LOAD = 0.5
"""Processes that run or wait per processor, over the last minute, from which times are doubtful."""
WIDE_SPREAD = 0.1
"""Half the distance of the quartiles over the median: a quiet machine stays below a few per cent."""
CACHES = 4
"""KV should be this many times the last cache."""


def chosen_groups(only: str | None) -> list[str]:
    """Groups named in "copy,write"; all for None. UsageError names the wrong one."""
    if only is None:
        return list(GROUPS)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in GROUPS:
            raise UsageError(f"--only {only}: {name!r} is not a group; take {', '.join(GROUPS)}")
    return [name for name in GROUPS if name in names]


def measure_kernels(groups: Sequence[str], threads: int, sizes: Sizes, progress: Progress) -> KernelReport:
    """Measure the groups with one and with `threads` threads, after the machine's own limits. UsageError: threads."""
    counts = sorted({1, check_threads(threads)})
    load = load_average()
    compiled_before = compile_watch.seconds
    memory = Memory(sizes)
    parts: list[Callable[[Memory, Sequence[int]], list[Entry]]] = [limit_entries, *(GROUPS[name] for name in groups)]
    rows: list[KernelRow] = []
    for i, make in enumerate(parts):
        entries = make(memory, counts)
        probes = list(dict.fromkeys(probe for entry in entries for probe in entry.probes))
        timings = time_rounds(probes, sizes.seconds, lambda done, of, i=i: progress(1000 * i + 1000 * done // of, 1000 * len(parts)))  # type: ignore[misc]
        rows += [_row(entry, timings[entry.probe], entry.limit and timings[entry.limit], entry.peer and timings[entry.peer]) for entry in entries]
    return KernelReport(
        rows=rows,
        machine={**machine(), **versions(), "vector_lanes": LANES, "threads": threads},
        load_before=load,
        compiled_s=compile_watch.seconds - compiled_before,
        warnings=_doubts(rows, load, sizes),
    )


def load_average() -> float:
    """Processes that ran or waited in the last minute, per processor; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def _row(entry: Entry, timing: Timing, limit: Timing | None, peer: Timing | None) -> KernelRow:
    return KernelRow(
        group=entry.group,
        shape=entry.probe.name,
        threads=entry.threads,
        milliseconds=timing.seconds * 1e3,
        spread=timing.spread,
        rounds=timing.rounds,
        rate=timing.rate,
        unit=entry.unit,
        limit=entry.limit.name if entry.limit else "",
        limit_rate=limit.rate if limit else None,
        target=entry.target,
        peer=entry.peer.name if entry.peer else "",
        peer_milliseconds=peer.seconds * 1e3 if peer else None,
        first_s=timing.first_s,
    )


def _doubts(rows: Sequence[KernelRow], load: float, sizes: Sizes) -> list[str]:
    """What a reader has to know before believing a figure."""
    found = []
    if PLAIN:
        found.append("NUMBA_DISABLE_JIT is set: these are times of plain Python")
    if load > BUSY_LOAD:
        found.append(f"the machine was busy before the start (load {load:.2f} per processor): times are too long")
    wide = [row for row in rows if row.spread > WIDE_SPREAD]
    if wide:
        worst = max(wide, key=lambda row: row.spread)
        found.append(
            f"{len(wide)} of {len(rows)} times vary by more than {100 * WIDE_SPREAD:.0f} % between rounds "
            f"(worst: {worst.group}, {worst.shape}, {100 * worst.spread:.0f} %): something else is running"
        )
    if sizes.memory_bytes < CACHES * last_cache_bytes():
        found.append(
            f"{sizes.memory_bytes >> 20} MB of KV are less than {CACHES} times the last cache "
            f"({last_cache_bytes() >> 20} MB), which then serves a part of it: give more with --memory"
        )
    return found
