"""The part of a run's table that shows its tiers."""

from __future__ import annotations

from ..metrics.latency import Summary
from ..metrics.tiers import SOURCES


def has_tiers(s: Summary) -> bool:
    """Whether the run had any."""
    return "host_blocks" in s.scalars


def tier_lines(s: Summary) -> list[tuple[str, str]]:
    """Label and text of each line."""
    if not has_tiers(s):
        return []
    return [
        (
            "hits by tier",
            f"device {_percent(s['hit_rate_device'])}, host {_percent(s['hit_rate_host'])}, storage "
            f"{_percent(s['hit_rate_storage'])} of prompt tokens; requests by the lowest: "
            f"{', '.join(f'{count(s, name)} {name}' for name in reversed(SOURCES))}",
        ),
        (
            "host tier",
            f"{s['host_blocks']:,} blocks: {s['host_written_blocks']:,} written, "
            f"{s['host_loaded_blocks']:,} loaded back, "
            f"{s['host_evicted_blocks']:,} evicted, {s['host_refused_blocks']:,} not taken; "
            f"{_decimal(s['write_amplification'], 2)} bytes written per byte of new KV",
        ),
        (
            "host link",
            f"down {_gigabytes(s['host_link_down_bytes'])}, busy {_percent(s['host_link_down_busy'])} of the time; "
            f"up {_gigabytes(s['host_link_up_bytes'])}, busy {_percent(s['host_link_up_busy'])}",
        ),
        *_storage(s),
        (
            "fetch wait",
            f"{_decimal(s['fetch_wait'], 3)} s over all sequences; steps were "
            f"{_decimal(s['fetch_exposed_in_steps'], 3)} s longer for loads, "
            f"{_decimal(s['slowed_by_copies'], 3)} s for copies beside them",
        ),
        *_break_even(s),
        ("TTFT by tier", "; ".join(_ttft(s, name) for name in SOURCES if s[f"requests_{name}"])),
    ]


def count(s: Summary, source: str) -> str:
    """Requests of a source."""
    return f"{s[f'requests_{source}']:,}"


def _storage(s: Summary) -> list[tuple[str, str]]:
    if not s["storage_blocks"]:
        return []
    return [
        (
            "storage",
            f"{s['storage_blocks']:,} blocks: {s['storage_written_blocks']:,} written; prefetch asked for "
            f"{s['prefetch_asked']:,}, {s['prefetch_arrived']:,} came "
            f"({s['prefetch_wasted']:,} too late or for nobody), {s['prefetch_truncated']:,} given up",
        ),
        (
            "storage link",
            f"down {_gigabytes(s['storage_link_down_bytes'])}, busy {_percent(s['storage_link_down_busy'])} of the "
            f"time; up {_gigabytes(s['storage_link_up_bytes'])}, busy {_percent(s['storage_link_up_busy'])}",
        ),
    ]


def _break_even(s: Summary) -> list[tuple[str, str]]:
    if s["break_even"] is None:
        return []
    return [
        (
            "break-even",
            f"fetching takes as long as computing at {_decimal(s['break_even'], 2)} GB/s for a prompt of "
            f"{_decimal(s['break_even_tokens'], 0)} tokens alone, the link has "
            f"{_decimal(s['host_link_up_bandwidth'], 2)}; {s['hits_lost']:,} of {s['hits_fetched']:,} "
            "sequences that fetched waited longer than computing takes",
        )
    ]


def _ttft(s: Summary, name: str) -> str:
    p50, p99 = (s[f"ttft_{name}_{part}"] for part in ("p50", "p99"))
    return f"{name} p50 {_decimal(p50, 2)}, p99 {_decimal(p99, 2)} ms"


def _decimal(value: float | int | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | int | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _gigabytes(value: float | int | None) -> str:
    return f"{_decimal((value or 0) / 1e9, 2)} GB"
