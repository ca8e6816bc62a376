"""What a grid left behind, as a table of at most 100 columns, grid.csv and a document.

A miss-ratio curve is the table of a cache-only grid over cache.blocks, and perhaps cache.eviction: capacities as rows,
policies as columns. Any other grid has a row for each point.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.printable import csv_text
from .choice import Candidate, choose
from .record import SCHEMA, RunRecord
from .replay_table import replay_notes, rules
from .run_json import summary_document
from .table import RUN_BOUNDS, WIDTH, grid, labelled, note

CAPACITY, POLICY = "cache.blocks", "cache.eviction"
MISS, HIT = "miss", "hit"
"""What a curve shows."""

RUN_COLUMNS = {
    "hit %": "hit_rate",
    "TTFT p99 ms": "p99_ttft_ms",
    "TPOT p99 ms": "p99_tpot_ms",
    "goodput/s": "goodput",
    "tokens/s": "output_throughput",
    "optimum %": "hit_rate_optimum",
    "E2EL p99 ms": "p99_e2el_ms",
    "preempted": "preemptions",
}
CACHE_COLUMNS = {
    "hit %": "hit_rate_tokens",
    "device %": "hit_rate_device",
    "host %": "hit_rate_host",
    "storage %": "hit_rate_storage",
    "optimum %": "hit_rate_tokens_optimum",
    "infinite %": "hit_rate_tokens_infinite",
    "hit blocks": "hit_blocks",
    "evicted": "evicted_blocks",
}
"""Title -> figure; the last ones are left out where the keys need the width."""

OPTIONAL = ("goodput", "hit_rate_device", "hit_rate_host", "hit_rate_storage")
"""Left out where no point has them."""

LONGEST_VALUE = 24


@dataclass(frozen=True)
class GridRow:
    """One point. values: of the axes, in their order. error: why it has no figures."""

    values: tuple[str, ...]
    figures: Mapping[str, Any]
    error: str = ""


@dataclass(frozen=True)
class Grid:
    """keys: of the axes, units: of those that have one. policy, block_tokens: of the first point.

    head       label and text of what all points share
    complete   False after Ctrl-C
    """

    run: str
    keys: tuple[str, ...]
    units: Mapping[str, str]
    rows: tuple[GridRow, ...]
    cache_only: bool
    policy: str
    block_tokens: int
    complete: bool = True
    head: tuple[tuple[str, str], ...] = ()

    @property
    def is_curve(self) -> bool:
        return self.cache_only and CAPACITY in self.keys and set(self.keys) <= {CAPACITY, POLICY}


def run_figures(record: RunRecord) -> dict[str, Any]:
    """The figures of one run under the names of `--json`."""
    document = summary_document(record)
    identity = ("schema", "complete", "seed", "overlap")
    return {
        name: value
        for name, value in document.items()
        if name == "fingerprint" or (name not in identity and isinstance(value, int | float | None))
    }


def grid_csv(result: Grid) -> Iterator[str]:
    """A row per point: the axes under their full keys, then every figure, then why there is none."""
    names = list(dict.fromkeys(name for row in result.rows for name in row.figures))
    yield csv_line(["run", *result.keys, *names, "error"])
    for row in result.rows:
        cells = [csv_cell(row.figures.get(name)) for name in names]
        yield csv_line([result.run, *row.values, *cells, row.error])


def grid_document(result: Grid) -> dict[str, Any]:
    """What `--json` prints."""
    points = [
        {
            "grid": dict(zip(result.keys, row.values, strict=True)),
            **row.figures,
            **({"error": row.error} if row.error else {}),
        }
        for row in result.rows
    ]
    return {
        "schema": SCHEMA,
        "run": result.run,
        "complete": result.complete,
        "cache_only": result.cache_only,
        **({"rules": rules(_strictest(result))} if result.cache_only else {}),
        "keys": list(result.keys),
        "points": points,
    }


def grid_table(result: Grid, curve: str = MISS) -> str:
    """The head, rates in per cent and times in ms, and what the points come to as sentences. curve: miss or hit."""
    head = f"{labelled(result.head)}\n\n" if result.head else ""
    return head + (_curve(result, curve) if result.is_curve else _points(result))


def _curve(result: Grid, curve: str) -> str:
    """Miss (or hit) ratios: what no cache of that size passes, and what no cache does, beside the policies."""
    policies = list(dict.fromkeys(_policy(result, row) for row in result.rows))
    lines: dict[str, dict[str, GridRow]] = {}
    for row in result.rows:
        lines.setdefault(row.values[result.keys.index(CAPACITY)], {})[_policy(result, row)] = row

    def share(figures: Mapping[str, Any], name: str) -> float | None:
        found = miss(figures, name)
        return found if curve == MISS or found is None else 1 - found

    rows, wins = [], dict.fromkeys(policies, 0)
    for capacity, by_policy in lines.items():
        bounds = next(iter(by_policy.values())).figures
        cells = [share(by_policy[p].figures, "hit_rate_tokens") if p in by_policy else None for p in policies]
        best = [p for p, cell in zip(policies, map(_percent, cells), strict=True) if cell == _best(cells, curve)]
        wins |= {p: wins[p] + (len(best) < len(policies)) for p in best}
        cells += [share(bounds, f"hit_rate_tokens_{bound}") for bound in ("optimum", "infinite")]
        rows.append([_grouped(capacity), *_gigabytes(capacity, bounds), *map(_percent, cells)])
    sized = ["GB"] if _gigabytes("1", result.rows[0].figures) else []
    table = grid(["blocks", *sized, *policies, "optimum", "infinite"], rows)
    said = [*_winner(wins, len(lines)), *_fits(result), *choose(result.keys, _candidates(result), True).idle]
    return "\n\n".join([f"{curve} ratio, % of prompt tokens", table, *map(note, said), _notes(result)])


def _best(cells: Sequence[float | None], curve: str) -> str:
    known = [cell for cell in cells if cell is not None]
    return _percent((min if curve == MISS else max)(known, default=None))


def _winner(wins: Mapping[str, int], sizes: int) -> list[str]:
    if len(wins) < 2:
        return []
    most = max(wins.values())
    if most == 0:
        return ["No difference between the policies at any of these sizes."]
    return [f"Best policy: {', '.join(p for p, n in wins.items() if n == most)}, at {most} of {sizes} sizes."]


def _gigabytes(capacity: str, figures: Mapping[str, Any]) -> list[str]:
    size = figures.get("block_bytes")
    return [f"{float(capacity) * size / 1e9:,.4g}"] if size else []


def _fits(result: Grid) -> list[str]:
    """What the device itself would hold."""
    found = {(row.figures.get("device_blocks", 0), row.figures.get("block_bytes", 0)) for row in result.rows}
    blocks, size = found.pop()
    if found or not blocks:
        return []
    return [f"The device holds {blocks:,} blocks, {blocks * size / 1e9:,.1f} GB of KV."]


def _candidates(result: Grid) -> list[Candidate]:
    return [Candidate(row.values, (row.figures,)) for row in result.rows if row.figures]


def _policy(result: Grid, row: GridRow) -> str:
    return row.values[result.keys.index(POLICY)] if POLICY in result.keys else result.policy


def _points(result: Grid) -> str:
    columns = dict(CACHE_COLUMNS if result.cache_only else RUN_COLUMNS)
    columns = {
        t: n for t, n in columns.items() if n not in OPTIONAL or any(r.figures.get(n) is not None for r in result.rows)
    }
    with_figures = [row for row in result.rows if row.figures]
    found = choose(result.keys, _candidates(result), result.cache_only)
    marks: dict[int, str] = {}
    if found.best >= 0 and len(found.same) + 1 < len(with_figures):
        marks = {id(with_figures[i]): "same" for i in found.same} | {id(with_figures[found.best]): "best"}
    while True:
        header = [*short_names(result.keys), *columns, *([""] if marks else [])]
        rows = [
            [
                *map(shown_value, row.values),
                *(_figure(t, row.figures.get(n)) for t, n in columns.items()),
                *([marks.get(id(row), "")] if marks else []),
            ]
            for row in result.rows
        ]
        text = grid(header, rows)
        if len(columns) == 1 or max(map(len, text.splitlines())) <= WIDTH:
            said = [*found.verdict, *found.idle]
            return "\n\n".join([text, *map(note, said), _notes(result)])
        columns.popitem()


def _notes(result: Grid) -> str:
    """What the bounds are, and under --cache-only the rules."""
    if not result.cache_only:
        return note(RUN_BOUNDS)
    return replay_notes(_strictest(result))


def _strictest(result: Grid) -> Mapping[str, Any]:
    """Figures of the point that refuses most."""
    return max((row.figures for row in result.rows if row.figures), key=lambda figures: int(figures["refused"]))


def short_names(keys: tuple[str, ...]) -> list[str]:
    """The last part of each key, where it says enough."""
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(short) > 1 else short for key, short in zip(keys, last, strict=True)]


def shown_value(value: str) -> str:
    """A value whole, a long one in several lines."""
    return "\n".join(textwrap.wrap(value, LONGEST_VALUE)) or value


def _figure(title: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if title.endswith("%"):
        return _percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def miss(figures: Mapping[str, Any], name: str) -> float | None:
    """1 - a hit rate."""
    rate = figures.get(name)
    return None if rate is None else 1 - float(rate)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _grouped(value: str) -> str:
    return f"{int(value):,}" if value.isdecimal() else value


def csv_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def csv_line(cells: list[str]) -> str:
    return ",".join(map(csv_text, cells)) + "\n"
