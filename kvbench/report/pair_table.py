"""The part of a run's report that only prefill and decode engines have."""

from __future__ import annotations

from dataclasses import asdict

from ..metrics.pairs import TTFT_PARTS, PairFigures
from .record import Section
from .table import grid, labelled

_TITLES = {
    "before": "route, tokenise",
    "queue": "queue",
    "prefill": "prefill",
    "transfer": "transfer, exposed",
    "decode_queue": "wait on decode",
    "first_step": "first step there",
}


def pair_section(figures: PairFigures, protocol: str, transfer: str) -> Section:
    """protocol, transfer   as their keys name them"""
    return Section("pd", f"{_parts(figures)}\n\n{labelled(_lines(figures, protocol, transfer))}", asdict(figures))


def pair_scalars(figures: PairFigures) -> dict[str, tuple[float | int | None, str]]:
    """What pairs add to summary.csv: name -> (value, unit)."""
    moved, held = figures.transfer_ms, figures.held_ms
    scalars: dict[str, tuple[float | int | None, str]] = {
        f"{name}_idle": (side.idle_share, "share of duration") for name, side in figures.sides.items()
    }
    for name in TTFT_PARTS:
        part = figures.ttft_ms[name]
        scalars[f"ttft_{name}_mean"] = (part[0] if part else None, "ms")
    return scalars | {
        "transfers": (figures.transfers, "transfers"),
        "transferred": (figures.transferred_bytes, "bytes"),
        "transfer_p50": (moved[1] if moved else None, "ms"),
        "transfer_p99": (moved[2] if moved else None, "ms"),
        "transfers_retried": (figures.retried, "transfers"),
        "transfers_failed": (figures.failed, "transfers"),
        "held_mean": (held[0] if held else None, "ms"),
        "held_p99": (held[2] if held else None, "ms"),
        "stranded_mean": (figures.stranded_bytes_mean, "bytes"),
        "stranded_peak": (figures.stranded_bytes_peak, "bytes"),
        "output_tokens_per_device": (figures.output_tokens_per_s_device, "tokens/s"),
        "goodput_per_device": (figures.goodput_per_device, "sequences/s"),
    }


def _parts(figures: PairFigures) -> str:
    """What TTFT is the sum of; where the first token does not wait for the transfer, what comes after it, too."""
    rows = [_row(name, part) for name, part in figures.ttft_ms.items() if part and name not in figures.handoff_ms]
    if not rows:
        return "no request got its first token by both sides"
    if figures.handoff_ms:
        rows[-1][0] = "first token handed out"
    text = grid(["TTFT is the sum of", *_HEAD], rows)
    later = [_row(name, part) for name, part in figures.handoff_ms.items() if part]
    return f"{text}\n\n{grid(['then, to the first step there', *_HEAD], later)}" if later else text


_HEAD = ("mean ms", "p50", "p99")


def _row(name: str, part: tuple[float, float, float]) -> list[str]:
    return [_TITLES[name], *(f"{value:,.2f}" for value in part)]


def _lines(figures: PairFigures, protocol: str, transfer: str) -> list[tuple[str, str]]:
    sides = ", ".join(
        f"{side.engines} {name} ({side.idle_share * 100:.2f} % idle)" for name, side in figures.sides.items()
    )
    rows = [("engines", f"{sides}; {protocol}, transfer {transfer}")]
    moved = figures.transfer_ms
    text = f"{figures.transfers:,} of {figures.transferred_bytes / 1e9:,.3f} GB"
    if moved:
        text += f"; {moved[1]:,.3f} ms p50, {moved[2]:,.3f} ms p99"
    rows.append(("transfers", f"{text}; {figures.retried} again, {figures.failed} failed"))
    if figures.held_ms:
        mean, _, p99 = figures.held_ms
        stranded, most = figures.stranded_bytes_mean / 1e9, figures.stranded_bytes_peak / 1e9
        text = f"{mean:,.2f} ms mean, {p99:,.2f} ms p99 after the prefill; "
        rows.append(("held", f"{text}{stranded:,.3f} GB on average, {most:,.3f} GB at most"))
    if figures.expired_leases:
        rows.append(("leases", f"{figures.expired_leases} ended unread; {figures.heartbeats} heartbeats"))
    per = f"{figures.output_tokens_per_s_device:,.1f} output tokens/s"
    if figures.goodput_per_device is not None:
        per += f", goodput {figures.goodput_per_device:,.3f} sequences/s"
    rows.append(("per device", per))
    return rows
