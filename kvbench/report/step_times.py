"""Step times as tables and charts: what a step of decodes and a prompt alone take, beside the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pictures.chart import GREY, Chart, Series, axis
from .table import grid

F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]

_BEYOND = "*"
_FOOT = "ms on the device, without the host; (x): times the roofline of the datasheet"


@dataclass(frozen=True)
class StepCurves:
    """Device time in ms.

    decode_*    (contexts, decodes) of a step of so many decodes, each of so much context
    prefill_*   (tokens,) of a prompt alone
    *_beyond    True where that is beyond what was measured
    captured    decodes of the largest captured graph; 0: none
    """

    contexts: tuple[int, ...]
    decodes: tuple[int, ...]
    tokens: tuple[int, ...]
    decode_ms: F64
    decode_beyond: Flags
    decode_roofline_ms: F64
    prefill_ms: F64
    prefill_beyond: Flags
    prefill_roofline_ms: F64
    captured: int = 0


def curves_tables(c: StepCurves) -> str:
    """Two tables, and a line on what their marks mean."""
    decode = grid(
        ["decodes", *(f"context {context:,}" for context in c.contexts)],
        [[f"{n:,}", *(_decode_cell(c, i, j) for i in range(len(c.contexts)))] for j, n in enumerate(c.decodes)],
    )
    prefill = grid(
        ["prompt tokens", "alone"],
        [
            [f"{n:,}", _cell(c.prefill_ms[j], c.prefill_roofline_ms[j], bool(c.prefill_beyond[j]))]
            for j, n in enumerate(c.tokens)
        ],
    )
    foot = [_FOOT]
    if c.decode_beyond.any() or c.prefill_beyond.any():
        foot.append(f"{_BEYOND} beyond what was measured: it goes on as it grew before")
    if c.captured:
        foot.append(f"graphs are captured up to {c.captured:,} tokens")
    return "\n\n".join([decode, prefill, "\n".join(foot)])


def curves_document(c: StepCurves) -> dict[str, Any]:
    """The same for JSON."""
    decode = [
        {"decodes": n, "context": k, **_entry(c.decode_ms[i, j], c.decode_roofline_ms[i, j], c.decode_beyond[i, j])}
        for i, k in enumerate(c.contexts)
        for j, n in enumerate(c.decodes)
    ]
    prefill = [
        {"prompt_tokens": n, **_entry(c.prefill_ms[j], c.prefill_roofline_ms[j], c.prefill_beyond[j])}
        for j, n in enumerate(c.tokens)
    ]
    return {"decode": decode, "prefill": prefill}


def curves_charts(c: StepCurves) -> tuple[Chart, Chart]:
    """Step time over the batch, a line for each context, and over the tokens of a prompt; the roofline in grey."""
    decodes, tokens = np.array(c.decodes, np.float64), np.array(c.tokens, np.float64)
    lines = [
        Series(f"context {context:,}", decodes, c.decode_ms[i], i, "joined") for i, context in enumerate(c.contexts)
    ]
    roof = [Series("roofline", decodes, c.decode_roofline_ms[i], GREY, "dash") for i in range(len(c.contexts))]
    decode = _chart("decode", "Steps of decodes", "decodes in the step", (*roof, *lines))
    alone = Series("prompt alone", tokens, c.prefill_ms, 0, "joined")
    sheet = Series("roofline", tokens, c.prefill_roofline_ms, GREY, "dash")
    return decode, _chart("prefill", "A prompt alone", "prompt tokens", (sheet, alone))


def _chart(key: str, title: str, label: str, series: tuple[Series, ...]) -> Chart:
    table = tuple((line.name, f"{x:g}", f"{y:.3f}") for line in series for x, y in zip(line.x, line.y, strict=True))
    return Chart(
        key=key,
        title=title,
        x=axis(label, [x for line in series for x in line.x], log=True),
        y=axis("device time", [y for line in series for y in line.y], unit="ms"),
        series=series,
        header=("line", label, "ms"),
        table=table,
    )


def _decode_cell(c: StepCurves, i: int, j: int) -> str:
    return _cell(c.decode_ms[i, j], c.decode_roofline_ms[i, j], bool(c.decode_beyond[i, j]))


def _cell(ms: float, roofline_ms: float, beyond: bool) -> str:
    return f"{ms:,.2f} ({ms / roofline_ms:.2f}){_BEYOND if beyond else ''}"


def _entry(ms: float, roofline_ms: float, beyond: bool) -> dict[str, Any]:
    return {"ms": float(ms), "roofline_ms": float(roofline_ms), "beyond": bool(beyond)}
