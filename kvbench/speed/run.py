"""`kvbench kernels`: the groups that are asked for, measured one after the other, with what makes them doubtful."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..bench.machine import load_average, machine, versions
from ..core.compile_watch import compile_watch
from ..core.errors import UsageError
from ..kernels.simd import LANES
from ..kernels.threads import check_threads
from ..report.kernels_table import KernelReport, KernelRow
from .attention import decode_entries, prefill_entries
from .copies import copy_entries, limit_entries, write_entries
from .dense import dense_entries
from .doubts import doubts
from .entries import Entry
from .memory import Memory
from .prefixes import prefix_entries
from .probes import Probe, Progress, Timing, time_rounds
from .sizes import Sizes

GROUPS: dict[str, Callable[[Memory, Sequence[int]], list[Entry]]] = {
    "decode": decode_entries,
    "prefill": prefill_entries,
    "dense": dense_entries,
    "copy": copy_entries,
    "write": write_entries,
    "radix": lambda memory, threads: prefix_entries(memory.sizes),
}
"""Name for --only -> its lines."""

PART = 1000
"""Steps of progress in a group."""


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
        timings = time_rounds(probes, sizes.seconds, _part_of(progress, i, len(parts)))
        rows += [_row(entry, timings) for entry in entries]
    spreads = {f"{row.group}, {row.shape}, {row.threads} thr.": row.spread for row in rows}
    return KernelReport(
        rows=rows,
        machine={**machine(), **versions(), "vector_lanes": LANES, "threads": threads},
        load_before=load,
        compiled_s=compile_watch.seconds - compiled_before,
        warnings=doubts(spreads, load, sizes),
    )


def _part_of(progress: Progress, index: int, parts: int) -> Progress:
    """Progress within one of several parts that count alike."""
    return lambda done, total: progress(PART * index + PART * done // total, PART * parts)


def _row(entry: Entry, timings: Mapping[Probe, Timing]) -> KernelRow:
    timing = timings[entry.probe]
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
        limit_rate=timings[entry.limit].rate if entry.limit else None,
        target=entry.target,
        peer=entry.peer.name if entry.peer else "",
        peer_milliseconds=timings[entry.peer].seconds * 1e3 if entry.peer else None,
        first_s=timing.first_s,
    )
