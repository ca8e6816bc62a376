"""What became of recordings that were replayed: a line per stream, and first differences side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.printable import printable
from .table import WIDTH, grid

NAME_WIDTH = 52
ENGINE_WIDTH = 28
DETAILED = 5
"""Differing streams that are shown side by side; the others are counted."""
ELLIPSIS = "…"


@dataclass(frozen=True)
class StreamLine:
    """One stream. steps: all of them; agreed: those before the first that differs.

    differences   (field, recorded, kvbench) of that step
    where         its line and name
    unknown       why the stream was not replayed; "" when it was
    """

    name: str
    engine: str
    steps: int
    agreed: int
    where: str
    differences: Sequence[tuple[str, Any, Any]]
    unknown: str


def golden_report(streams: Sequence[StreamLine], left_out: Sequence[str] = ()) -> str:
    """The whole report, at most 100 columns wide. left_out: files that are no recordings."""
    rows = [[_cut(s.name, NAME_WIDTH), _cut(s.engine, ENGINE_WIDTH), _steps(s), _mismatches(s)] for s in streams]
    parts = [grid(["stream", "engine", "steps", "mismatches"], rows), _totals(streams)]
    differing = [s for s in streams if s.differences]
    parts += [side_by_side(f"{s.name}, {s.where}", s.differences) for s in differing[:DETAILED]]
    if len(differing) > DETAILED:
        parts.append(f"{len(differing) - DETAILED} more streams differ")
    parts += [_wrapped(f"{s.name} was not replayed: {s.unknown}") for s in streams if s.unknown]
    if left_out:
        parts.append(_cut(f"left out, no recordings: {len(left_out):,} ({', '.join(left_out)})", WIDTH))
    return "\n\n".join(parts) + "\n"


def _steps(stream: StreamLine) -> str:
    if stream.unknown:
        return f"0 of {stream.steps:,}"
    return f"{stream.steps:,}" if stream.agreed == stream.steps else f"{stream.agreed:,} of {stream.steps:,}"


def _mismatches(stream: StreamLine) -> str:
    return "unknown" if stream.unknown else str(len(stream.differences))


def _totals(streams: Sequence[StreamLine]) -> str:
    differing = sum(bool(s.differences) for s in streams)
    unknown = sum(bool(s.unknown) for s in streams)
    agreed = sum(s.agreed for s in streams)
    return (
        f"{len(streams):,} streams: {len(streams) - differing - unknown:,} agree, {differing:,} differ, "
        f"{unknown:,} unknown; {agreed:,} steps agree\n"
        "mismatches are fields of the first step that differs; a stream is replayed up to there"
    )


def side_by_side(title: str, differences: Sequence[tuple[str, Any, Any]]) -> str:
    """A title, then field, recorded and own value; a long value is cut to where the two part."""
    names = max(len("field"), *(len(name) for name, _, _ in differences))
    width = (WIDTH - names - 4) // 2
    lines = [_cut(title, WIDTH), f"{'field':<{names}}  {'recorded':<{width}}  kvbench"]
    for name, recorded, own in differences:
        left, right = _text(recorded), _text(own)
        at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
        lines.append(f"{name:<{names}}  {_window(left, at, width):<{width}}  {_window(right, at, width)}")
    return "\n".join(line.rstrip() for line in lines)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=lambda number: number.item())
    return printable(text)


def _window(text: str, at: int, width: int) -> str:
    """The part of a text around a position, marked where it is cut."""
    if len(text) <= width:
        return text
    start = min(max(at - width // 3, 0), len(text) - width)
    piece = text[start : start + width]
    if start > 0:
        piece = ELLIPSIS + piece[1:]
    return piece if start + width == len(text) else piece[:-1] + ELLIPSIS


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(printable(text), WIDTH, subsequent_indent="  ")


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS
