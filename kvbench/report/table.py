"""The table of one run, as text of at most 100 columns: head, counts, latencies, cache, memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.printable import printable
from ..metrics.latency import Summary
from ..metrics.percentiles import SMALLEST_FOR_P99, Distribution
from .record import RunRecord
from .tiers_table import tier_lines

WIDTH = 100
LABEL_WIDTH = 12

REPLAY_BOUNDS = (
    "optimum: the most hits of any cache of that capacity that may keep or drop any block after each request, with the "
    "future known; exact for such a cache, a bound for every policy. infinite: nothing is ever evicted. Both under the "
    "rules of the rate that they stand beside."
)
RUN_BOUNDS = (
    "optimum: more hits no cache of that capacity can have in the order in which the run admitted its requests, with "
    "the future known; a bound, exact only where requests do not overlap."
)
"""What the bounds beside a hit rate are (offline.bounds)."""

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "queue": "queue"}
"""Metric -> row title, in the order of the table."""


def run_table(record: RunRecord) -> str:
    """The whole report of a run. Numbers are formatted here, so nothing parses them again."""
    blocks = [
        labelled(_head(record)),
        labelled(_totals(record.summary, record.slo)),
        _latencies(record.summary),
        *(section.text for section in record.sections),
        labelled(_cache(record)),
        labelled(list(record.measured)),
        labelled(_memory(record)),
    ]
    return "\n\n".join(block for block in blocks if block)


def run_head(record: RunRecord, cache_states: str) -> str:
    """The head of a table that shows several cache states."""
    import dataclasses

    return labelled([row for row in _head(dataclasses.replace(record, cache_state=cache_states)) if row[0] != "note"])


def _head(r: RunRecord) -> list[tuple[str, str]]:
    engine_overlap = "the engine's default is on" if r.overlap_default else "as the engine's default"
    overlap = "overlap on" if r.overlap else f"overlap off ({engine_overlap})"
    rows = [
        ("run", r.run if r.complete else f"{r.run}: interrupted, a PARTIAL result"),
        ("clock", f"{r.clock} ({r.path} path)"),
        ("cache", f"{r.cache_state}; {r.cache_kind}, blocks of {r.block_tokens} tokens"),
        ("preset", f"{r.preset} ({r.engine}); {r.batching} batching; {overlap}"),
        ("device", r.device),
        ("step times", r.step_times),
        *([("their error", r.step_error)] if r.step_error else []),
        ("model", f"{r.model}; {r.dtype}, KV {r.kv_dtype}; {r.parallelism}"),
        ("workload", f"seed {r.seed}; fingerprint {r.fingerprint[:16]}"),
    ]
    return rows + [("note", note) for note in r.notes]


def _totals(summary: Summary, slo: str = "") -> list[tuple[str, str]]:
    outcome = ", ".join(f"{count:,} {name}" for name, count in summary.statuses.items())
    sequences = "" if summary["sequences"] == summary["requests"] else f" ({summary['sequences']:,} sequences)"
    return [
        ("requests", f"{summary['requests']:,}{sequences}: {outcome}"),
        (
            "throughput",
            f"{_decimal(summary['request_throughput'], 3)} requests/s, "
            f"{_decimal(summary['output_throughput'], 1)} output tokens/s, "
            f"{_decimal(summary['total_token_throughput'], 1)} total tokens/s "
            f"over {_decimal(summary['duration'], 3)} s",
        ),
        *_goodput(summary, slo),
        *_busy(summary),
    ]


def _goodput(s: Summary, slo: str) -> list[tuple[str, str]]:
    """How much of it kept what was promised, where something was."""
    if not slo:
        return []
    return [
        ("goodput", f"{_decimal(s['goodput'], 3)} sequences/s; {_percent(s['slo_share'])} of sequences kept {slo}"),
    ]


def _busy(s: Summary) -> list[tuple[str, str]]:
    """Where the host's time went, and what the device waited for."""
    host, exposed, idle, duration = (s[n] for n in ("host_time", "host_time_exposed", "device_idle", "duration"))
    if idle is None or not duration:
        return []
    behind = min((exposed or 0.0) / duration, idle)
    return [
        (
            "host time",
            f"{_decimal(host, 3)} s: {_decimal((host or 0.0) - (exposed or 0.0), 3)} s hidden behind the device, "
            f"{_decimal(exposed, 3)} s exposed",
        ),
        (
            "device idle",
            f"{_percent(idle)} of the time: {_percent(behind)} waiting for the host, "
            f"{_percent(idle - behind)} without work",
        ),
    ]


def _latencies(summary: Summary) -> str:
    rows = [[title, *_cells(summary.latencies[name])] for name, title in TITLES.items()]
    return grid(["ms", "mean", "p50", "p90", "p99", "p99 95 % (iid)", "n"], rows)


def _cells(d: Distribution) -> list[str]:
    return [*(_decimal(x, 2) for x in (d.mean, d.p50, d.p90, d.p99)), _interval(d), f"{d.n:,}"]


def _interval(d: Distribution) -> str:
    """Both bounds, the one that exists, or how many samples it needs."""
    if d.p99_low is None or d.n == 0:
        return f"n too small (needs {SMALLEST_FOR_P99})"
    if d.p99_high is None:
        return f">= {_decimal(d.p99_low, 2)}"
    return f"{_decimal(d.p99_low, 2)} .. {_decimal(d.p99_high, 2)}"


def _cache(record: RunRecord) -> list[tuple[str, str]]:
    s = record.summary
    blocks = max(int(s["blocks"] or 0), 1)
    return [
        (
            "hit rate",
            f"{_percent(s['hit_rate'])} of prompt tokens ({_decimal(s['cached_tokens'], 0)} of "
            f"{_decimal(s['prompt_tokens'], 0)})",
        ),
        *_bounds(s),
        (
            "blocks used",
            f"mean {_decimal(s['used_blocks_mean'], 0)} ({_percent((s['used_blocks_mean'] or 0) / blocks)}), "
            f"peak {_decimal(s['used_blocks_peak'], 0)} ({_percent((s['used_blocks_peak'] or 0) / blocks)}) "
            f"of {_decimal(s['blocks'], 0)}",
        ),
        (
            "tail waste",
            f"mean {_decimal(s['tail_waste_mean'], 0)} tokens ({_percent(s['tail_waste_share'])} of used slots)",
        ),
        *_sharing(record),
        *_reservation(record),
        ("records", f"{size(int(s['metadata'] or 0))} of host memory that say what lies in which block"),
        ("evictions", f"{_decimal(s['evicted_blocks'], 0)} blocks"),
        (
            "preemptions",
            f"{_decimal(s['preemptions'], 0)}, {_decimal(s['recomputed_tokens'], 0)} tokens computed again",
        ),
        *_backup(s),
        *tier_lines(s),
    ]


def _backup(s: Summary) -> list[tuple[str, str]]:
    """Copies to host memory, where there are any."""
    if not s["backup_blocks"]:
        return []
    return [
        (
            "backup",
            f"{_decimal(s['backup_blocks'], 0)} blocks copied to host memory; their link was busy for "
            f"{_decimal(s['backup_busy'], 3)} s",
        )
    ]


def _bounds(s: Summary) -> list[tuple[str, str]]:
    """The most that any cache of this size, and of any, could have found: bounds, not reachable for sure."""
    if s["hit_rate_infinite"] is None:
        return []
    return [
        (
            "at most",
            f"{_percent(s['hit_rate_optimum'])} in {_bounded(s)} with the future known (a bound), "
            f"{_percent(s['hit_rate_infinite'])} in an infinite cache",
        ),
        *_routed(s),
    ]


def _routed(s: Summary) -> list[tuple[str, str]]:
    """What requests that go to different engines can find at all."""
    if "hit_rate_routed" not in s.scalars:
        return []
    return [("", f"{_percent(s['hit_rate_routed'])} in infinite caches of the engines apart, as requests were routed")]


def _bounded(s: Summary) -> str:
    """The memory that the bound is of."""
    blocks = f"{_decimal(s['blocks'], 0)} blocks"
    return f"{blocks} and the tiers behind them" if "host_blocks" in s.scalars else blocks


def _sharing(record: RunRecord) -> list[tuple[str, str]]:
    """What copy on write saves and costs, where it is on."""
    s = record.summary
    if not record.copy_on_write:
        return []
    return [
        (
            "sharing",
            f"{_percent(s['saved_blocks_share'])} of the blocks without sharing saved (mean "
            f"{_decimal(s['saved_blocks_mean'], 0)}); {_decimal(s['copied_blocks'], 0)} blocks copied on write "
            f"({size(int(s['copied_bytes'] or 0))})",
        )
    ]


def _reservation(record: RunRecord) -> list[tuple[str, str]]:
    """What reserved memory holds, where it is not paged."""
    s = record.summary
    if record.allocation == "paged":
        return []
    return [
        (
            "KV slots",
            f"{_percent(s['kv_tokens_share'])} hold a token, {_percent(s['kv_reserved_share'])} reserved, "
            f"{_percent(s['kv_internal_share'])} internal, {_percent(s['kv_external_share'])} external "
            f"(cache.allocation = {record.allocation})",
        )
    ]


def _memory(record: RunRecord) -> list[tuple[str, str]]:
    return [(line.name, f"{size(line.num_bytes)}{'  ' + line.note if line.note else ''}") for line in record.memory]


def size(num_bytes: int) -> str:
    """Bytes in the decimal unit that reads best."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[str] = ()) -> str:
    """A plain table: the first column to the left, numbers to the right, where `align` does not say otherwise."""
    from tabulate import tabulate

    align = align or ("left", *("right",) * (len(header) - 1))
    rows = [[printable(str(cell), keep="\n") for cell in row] for row in rows]
    return str(tabulate(rows, header, tablefmt="simple", disable_numparse=True, colalign=align))


def note(text: str) -> str:
    """Running text in the width of a table."""
    import textwrap

    return textwrap.fill(printable(text, keep="\n\t"), WIDTH)


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Label and text; a text too long for the width goes on below itself."""
    import textwrap

    lines = []
    for label, text in rows:
        wrapped = textwrap.wrap(printable(text, keep="\n\t"), WIDTH - LABEL_WIDTH - 1) or [""]
        lines += [f"{label if i == 0 else '':<{LABEL_WIDTH}} {part}" for i, part in enumerate(wrapped)]
    return "\n".join(line.rstrip() for line in lines)


def _decimal(value: float | int | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"
