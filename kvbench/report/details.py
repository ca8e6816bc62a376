"""Tables beside that of a run, on request: intervals of every percentile, where the time went, the steady part."""

from __future__ import annotations

from typing import Any

from ..core.journal import FINISHED, Journal
from ..core.units import NS_PER_MS, NS_PER_S
from ..metrics.attribution import breakdown
from ..metrics.bootstrap import block_interval
from ..metrics.latency import Summary, sequence_times
from ..metrics.percentiles import Distribution, fewest_samples
from ..metrics.steady import stages
from .table import TITLES, grid, note

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

IID_NOTE = (
    "95 % intervals. iid: order statistics of independent samples. blocks: of whole stretches in order of arrival "
    "(block bootstrap), which heeds that neighbours share a queue; - where a run is too short for it, or a token's "
    "gaps have no order of arrival. For a decision compare several seeds (--seeds, kvbench compare)."
)
PARTS_NOTE = (
    "Parts of the time from arrival to end, of finished sequences; their means add up to the mean E2EL. slowest 1 %: "
    "the mean of a part among the sequences with the greatest E2EL."
)
STEADY_NOTE = (
    "fill: until the sequences in the system first reach their median; drain: after the last arrival. TTFT of those "
    "that arrived in a stage, sequences/s of those that ended in it."
)


def intervals(summary: Summary, journal: Journal) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Latency -> percentile -> value, bounds of both kinds, needs: fewest samples for the iid interval. In ms."""
    times, done = sequence_times(journal), journal.status == FINISHED
    found: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for name in TITLES:
        d, own = summary.latencies[name], getattr(times, f"{name}_ns", None)
        values = None if own is None else own[done & (own >= 0)]
        found[name] = {}
        for title, p in PERCENTILES.items():
            blocks = None if values is None else block_interval(values, p)
            found[name][title] = {
                "value": getattr(d, title),
                "low": getattr(d, f"{title}_low"),
                "high": getattr(d, f"{title}_high"),
                "block_low": None if blocks is None else blocks[0] / NS_PER_MS,
                "block_high": None if blocks is None else blocks[1] / NS_PER_MS,
                "needs": fewest_samples(p),
            }
    return found


def intervals_table(summary: Summary, journal: Journal) -> str:
    """Every percentile with both intervals."""
    rows = []
    for name, by_percentile in intervals(summary, journal).items():
        for title, x in by_percentile.items():
            iid = interval(x["low"], x["high"], int(x["needs"] or 0))
            blocks = "-" if x["block_low"] is None else f"{x['block_low']:,.2f} .. {x['block_high']:,.2f}"
            rows.append([f"{TITLES[name]} {title}", _ms(x["value"]), iid, blocks])
    return f"{grid(['ms', 'value', '95 % (iid)', '95 % (blocks)'], rows)}\n\n{note(IID_NOTE)}"


def interval(low: float | None, high: float | None, needs: int) -> str:
    """Both bounds, the one that exists, or how many samples it needs."""
    if low is None and high is None:
        return f"n too small (needs {needs})"
    if high is None:
        return f">= {low:,.2f}"
    return f"<= {high:,.2f}" if low is None else f"{low:,.2f} .. {high:,.2f}"


def attribution(journal: Journal) -> dict[str, dict[str, float]]:
    """Part -> mean_ms, share, p99_ms, slow_ms. Empty where the engine does not tell."""
    return {
        name: {"mean_ms": part.mean, "share": part.share, "p99_ms": part.p99, "slow_ms": part.slow}
        for name, part in breakdown(journal).items()
    }


def attribution_table(journal: Journal) -> str:
    """Where the time went."""
    found = attribution(journal)
    if not found:
        return note("nothing finished, or this engine does not tell where the time of a sequence went")
    rows = [
        [name, _ms(x["mean_ms"]), f"{100 * x['share']:.2f}", _ms(x["p99_ms"]), _ms(x["slow_ms"])]
        for name, x in found.items()
    ]
    mean, slow = (sum(x[key] for x in found.values()) for key in ("mean_ms", "slow_ms"))
    rows.append(["E2EL", _ms(mean), "100.00", "", _ms(slow)])
    table = grid(["where the time went, ms", "mean", "% of E2EL", "p99", "slowest 1 %"], rows)
    return f"{table}\n\n{note(PARTS_NOTE)}"


def steady(journal: Journal) -> dict[str, dict[str, Any]]:
    """fill, steady, drain -> seconds, arrived, finished, rates, TTFT."""
    found = {}
    for name, stage in stages(journal).items():
        found[name] = {
            "seconds": (stage.end_ns - stage.start_ns) / NS_PER_S,
            "arrived": stage.arrived,
            "finished": stage.finished,
            "finished_per_s": stage.per_second,
            "output_tokens_of_finished": stage.output_tokens,
            **{f"{p}_ttft_ms": _in_ms(stage.ttft, p) for p in PERCENTILES},
        }
    return found


def steady_table(journal: Journal) -> str:
    """Filling, steady part and draining apart."""
    rows = [
        [
            name,
            f"{x['seconds']:,.3f}",
            f"{x['arrived']:,}",
            f"{x['finished']:,}",
            "-" if x["finished_per_s"] is None else f"{x['finished_per_s']:,.3f}",
            *(_ms(x[f"{p}_ttft_ms"]) for p in PERCENTILES),
        ]
        for name, x in steady(journal).items()
    ]
    header = ["stage", "s", "arrived", "finished", "sequences/s", *(f"TTFT {p} ms" for p in PERCENTILES)]
    return f"{grid(header, rows)}\n\n{note(STEADY_NOTE)}"


def _in_ms(d: Distribution, name: str) -> float | None:
    value = getattr(d, name)
    return None if value is None else value / NS_PER_MS


def _ms(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
