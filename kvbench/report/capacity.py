"""A search for the capacity, as a table of at most 100 columns and as a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .record import SCHEMA
from .table import grid, note

ASSUMPTION = (
    "The search takes for granted that more load never keeps the promises better; a point above that says otherwise "
    "stands in the table. One seed: try others before you rely on the last digit."
)

_SUSTAINED = 0.9
"""A smaller share of the rate served is no rate that was borne."""

_COLUMNS = ("request_throughput", "goodput", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms")

UNITS = {"rate": "requests/s", "concurrency": "requests in flight"}


def answer(over: str, low: float | None, high: float | None, most: float) -> str:
    """The bracket in words."""
    unit = UNITS[over]
    if low is None:
        return f"no {over} meets the SLOs: {_load(high or 0)} {unit} does not"
    if high is None and low < most:
        return f"{_load(low)} {unit} still meet the SLOs, and twice the rate brings no more load: the search ends here"
    if high is None:
        return f"{_load(low)} {unit} still meet the SLOs; nothing above is tried (at most {_load(most)})"
    return f"largest {over}: {_load(low)} {unit} meet the SLOs, {_load(high)} do not"


def doubt(over: str, served: float, low: float | None) -> str:
    """What must be said of a rate that was asked for and not served."""
    if over != "rate" or low is None or served >= _SUSTAINED * low:
        return ""
    return (
        f". NOT SUSTAINED: {served:.3g} of {_load(low)} requests/s were served. So few requests are a burst, and "
        "sessions that think spread their turns: raise --num-prompts, or use --over concurrency"
    )


def capacity_table(run: str, clock: str, slo: str, share: float, said: str, rows: Sequence[dict[str, Any]]) -> str:
    """The points in order of their load. rows: load, share, met, figures."""
    cells = [
        [
            _load(row["load"]),
            f"{100 * row['share']:.2f}",
            "yes" if row["met"] else "no",
            *(_figure(row["figures"].get(name)) for name in _COLUMNS),
        ]
        for row in sorted(rows, key=lambda row: float(row["load"]))
    ]
    header = ["load", "kept %", "met", "served/s", "goodput/s", "TTFT p99 ms", "TPOT p99 ms", "E2EL p99 ms"]
    head = f"{run}; clock {clock}; at least {100 * share:g} % of sequences within {slo}"
    return f"{note(head)}\n\n{grid(header, cells)}\n\n{note(said)}\n{note(ASSUMPTION)}"


def capacity_document(
    run: str,
    clock: str,
    over: str,
    slo: str,
    share: float,
    low: float | None,
    high: float | None,
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": SCHEMA,
        "run": run,
        "clock": clock,
        "over": over,
        "slo": slo,
        "share": share,
        "low": low,
        "high": high,
        "points": [{**{k: v for k, v in row.items() if k != "figures"}, **row["figures"]} for row in rows],
    }


def _load(load: float) -> str:
    return "inf" if load == math.inf else f"{load:,.0f}" if load == int(load) else f"{load:g}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
