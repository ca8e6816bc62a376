"""The part of a run's report that only a fleet has: a row for each engine, and how evenly they were used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

import numpy as np

from ..core.printable import csv_text
from ..metrics.fleet import EngineFigures, FleetFigures, Regret
from .csv_files import csv_number
from .record import Section
from .table import grid, labelled

MOST_ROWS = 8
"""Of more engines the table shows least, median and most; engines.csv has them all."""

_COLUMNS = (
    ("requests", "requests", "{:,.0f}", 1.0),
    ("prompt_tokens", "prompt\ntokens", "{:,.0f}", 1.0),
    ("output_tokens", "output\ntokens", "{:,.0f}", 1.0),
    ("hit_rate", "hit\nrate %", "{:.2f}", 100.0),
    ("busy_share", "busy\n%", "{:.2f}", 100.0),
    ("queue_p99_ms", "queue\np99 ms", "{:,.2f}", 1.0),
    ("ttft_p99_ms", "TTFT\np99 ms", "{:,.2f}", 1.0),
)


def fleet_section(figures: FleetFigures, policy: str) -> Section:
    """policy: of the router, as its key names it."""
    return Section(
        "fleet",
        f"{_engines(figures)}\n\n{labelled(_lines(figures, policy))}",
        {"router": policy, **asdict(figures)},
        {"engines.csv": "".join(engines_csv(figures))},
    )


def regret_table(regrets: Sequence[Regret]) -> str:
    """What the run's router has, what the oracle has, and the difference."""
    rows = []
    for regret in regrets:
        scale = 100.0 if regret.figure == "hit_rate" else 1.0
        own, oracle = _scaled(regret.own, scale), _scaled(regret.oracle, scale)
        difference = None if own is None or oracle is None else own - oracle
        cells = [_cell(value, "{:,.2f}") for value in (own, oracle)]
        rows.append([_REGRETS.get(regret.figure, regret.figure), *cells, _cell(difference, "{:+,.2f}")])
    return grid(["regret", "this router", "oracle", "difference"], rows)


_REGRETS = {
    "ttft.p50": "TTFT p50 ms",
    "ttft.p99": "TTFT p99 ms",
    "e2el.p99": "E2EL p99 ms",
    "hit_rate": "hit rate %",
    "load_cv": "load, std/mean",
}


def fleet_scalars(figures: FleetFigures) -> dict[str, tuple[float | int | None, str]]:
    """What a fleet adds to summary.csv: name -> (value, unit)."""
    queues = [e.queue_p99_ms for e in figures.engines if e.queue_p99_ms is not None]
    rates = [e.hit_rate for e in figures.engines if e.hit_rate is not None]
    return {
        "engines": (len(figures.engines), "engines"),
        "load_cv": (figures.load_cv, "std/mean"),
        "engine_queue_p99_max": (max(queues, default=None), "ms"),
        "engine_hit_rate_min": (min(rates, default=None), "share of tokens"),
        "hot_prefix_replicas": (figures.hot_replicas, "engines"),
        "predicted_error": (figures.predicted_error, "tokens"),
        "against_belief": (figures.against_belief, "share of requests"),
    }


def engines_csv(figures: FleetFigures) -> Iterator[str]:
    """A row per engine."""
    names = [f.name for f in fields(EngineFigures)]
    yield ",".join(names) + "\n"
    for engine in figures.engines:
        cells = (getattr(engine, name) for name in names)
        yield ",".join(csv_text(c) if isinstance(c, str) else csv_number(c) for c in cells) + "\n"


def _engines(figures: FleetFigures) -> str:
    columns = {name: [_scaled(getattr(e, name), scale) for e in figures.engines] for name, _, _, scale in _COLUMNS}
    header = ["engine", *(title for _, title, _, _ in _COLUMNS)]
    if len(figures.engines) > MOST_ROWS:
        rows = [
            [title, *(_cell(_reduced(columns[name], rank), pattern) for name, _, pattern, _ in _COLUMNS)]
            for title, rank in (("least", 0.0), ("median", 0.5), ("most", 1.0))
        ]
        return grid([f"of {len(figures.engines)} engines", *header[1:]], rows)
    rows = [
        [_title(e), *(_cell(columns[name][i], pattern) for name, _, pattern, _ in _COLUMNS)]
        for i, e in enumerate(figures.engines)
    ]
    return grid(header, rows)


def _title(engine: EngineFigures) -> str:
    return f"{engine.engine} {engine.group}"[:16].rstrip()


def _lines(figures: FleetFigures, policy: str) -> list[tuple[str, str]]:
    rows = [("router", f"{policy}; a decision takes {figures.route_ms:.3f} ms")]
    if figures.load_cv is not None:
        rows.append(("load", f"{figures.load_cv:.3f} = standard deviation / mean of requests in flight, over time"))
    if figures.hot_replicas is not None:
        rows.append(("hot prefix", f"the hottest prefixes lie on {figures.hot_replicas:.1f} engines in the mean"))
    if figures.predicted_bias is not None:
        rows.append(
            (
                "belief",
                f"predicted minus found {figures.predicted_bias:+,.1f} tokens a request, "
                f"{figures.predicted_error:,.1f} without sign",
            )
        )
    if figures.against_belief is not None:
        share = f"{100 * figures.against_belief:.2f} % of requests went elsewhere than where most was believed cached"
        rows.append(("balance", share))
    return rows


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _reduced(values: list[float | None], rank: float) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.quantile(known, rank)) if known else None


def _cell(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)
