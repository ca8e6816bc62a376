"""A search for the capacity: a table of at most 100 columns that ends in a sentence, and a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .record import SCHEMA, RunRecord
from .table import grid, note, run_head

ASSUMPTION = (
    "The search takes for granted that more load never keeps the promises better; a point above that says otherwise "
    "stands in the table."
)
SUSTAINED = 0.8
"""A smaller share of the rate served is no rate that was borne."""

UNITS = {"rate": "requests/s", "concurrency": "requests in flight"}


@dataclass(frozen=True)
class CapacityReport:
    """record: of the first run. promises: as --slo takes them. brackets: seed -> (largest load that met, smallest above
    it that did not). points: those of the first seed, as sweep.capacity.Point names their parts. poisson: the first
    failing load with arrivals drawn anew.
    """

    record: RunRecord
    over: str
    share: float
    promises: tuple[str, ...]
    brackets: Mapping[int, tuple[float | None, float | None]]
    points: Sequence[Mapping[str, Any]]
    poisson: Mapping[str, Any] | None = None

    @property
    def lows(self) -> list[float]:
        return sorted(low or 0.0 for low, _ in self.brackets.values())

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """Of the first seed."""
        return next(iter(self.brackets.values()))

    @property
    def first_broken(self) -> str:
        """What breaks at the load above the first seed's capacity."""
        return next((str(p["broke"]) for p in self.points if p["load"] == self.bracket[1]), "")


def sentence(found: CapacityReport) -> str:
    """The answer, in one sentence."""
    unit, record = UNITS[found.over], found.record
    low, high = found.bracket
    who = f"{record.model} on {record.device} ({record.preset})"
    broke = f"; the first to break is {found.first_broken}" if found.first_broken else ""
    if low is None:
        return f"{who} does not keep these promises even at {load(high or 0)} {unit}{broke}."
    if high is None and _is_short(found, low):
        served = f"{_served(found, low):.3g} {unit}"
        return f"{who} carries {served}, all that this workload asks for, under these promises; nothing broke."
    if _is_short(found, low):
        served = f"{load(low)} {unit} asked for, {_served(found, low):.3g} served"
        return f"{who} keeps these promises at {served}: a burst, and no rate that it bears for long{broke}."
    spread = f" ({load(found.lows[0])} .. {load(found.lows[-1])} over {len(found.lows)} seeds)" * (len(found.lows) > 1)
    if high is None:
        return f"{who} carries {load(low)} {unit} and more{spread} under these promises; nothing broke."
    return f"{who} carries {load(median(found.lows))} {unit}{spread} under these promises{broke}."


def bursts(found: CapacityReport) -> str:
    """What the recorded bursts cost: the load that broke the promises, with Poisson arrivals of the same mean."""
    if found.poisson is None:
        return ""
    rate = load(found.poisson["load"])
    if found.poisson["met"]:
        return (
            f"The bursts of the trace decide: at {rate} requests/s, where the promises break, the same requests "
            "keep them as Poisson arrivals. --arrivals poisson searches with those."
        )
    return f"Not the bursts decide: at {rate} requests/s the promises break as Poisson arrivals too."


def doubt(found: CapacityReport) -> str:
    """What must be said of a rate that was asked for and not served."""
    low, high = found.bracket
    if low is None or not _is_short(found, low):
        return ""
    served = f"{_served(found, low):.3g} of {load(low)} requests/s were served at that load"
    if high is None:
        return (
            f"NOT SUSTAINED: {served}, and twice the rate brings no more: sessions that think spread their turns. "
            "Try --over concurrency."
        )
    return f"{served}: of so few requests filling and draining weigh; raise --num-prompts."


def _is_short(found: CapacityReport, low: float) -> bool:
    return found.over == "rate" and _served(found, low) < SUSTAINED * low


def _served(found: CapacityReport, low: float) -> float:
    return next((float(p["served"]) for p in found.points if p["load"] == low), math.nan)


def capacity_table(found: CapacityReport) -> str:
    """Head, promises, the points of the first seed in order of load, and the answer as the last line."""
    record = found.record
    promised = [f"  {text.replace('.p', ' p').replace(':', ' <= ')} ms" for text in found.promises]
    if record.slo:
        bounds = (
            record.slo.replace(":", " <= ")
            .replace(" ttft", ", ttft")
            .replace(" tpot", ", tpot")
            .replace(" e2el", ", e2el")
        )
        promised.append(f"  together, for {100 * found.share:g} % of sequences: {bounds} ms")
    rows = sorted(found.points, key=lambda p: float(p["load"]))
    cells = [_row(found, point, load(point["load"])) for point in rows]
    if found.poisson is not None:
        cells.append(_row(found, found.poisson, f"{load(found.poisson['load'])} poisson"))
    header = [found.over, *(["kept %"] if record.slo else []), *map(_title, found.promises), "served/s"]
    header += [*_others(found), "broke"]
    seeds = ", ".join(f"seed {seed}: {load(low or 0)}" for seed, (low, _) in found.brackets.items())
    notes = [note(text) for text in (f"{seeds}. {ASSUMPTION}", doubt(found), bursts(found)) if text]
    parts = [
        run_head(record, record.cache_state),
        "promises\n" + "\n".join(promised),
        grid(header, cells) + "\n(times in ms)",
    ]
    return "\n\n".join([*parts, *notes, note(sentence(found))])


def _others(found: CapacityReport) -> dict[str, str]:
    """Title -> figure: the tails that no promise has a column of."""
    tails = {f"{name} p99": f"p99_{name.lower()}_ms" for name in ("TTFT", "TPOT", "E2EL")}
    return {title: figure for title, figure in tails.items() if title not in map(_title, found.promises)}


def _title(promise: str) -> str:
    name, _, rest = promise.partition(".")
    return f"{name.upper()} {rest.partition(':')[0]}"


def _row(found: CapacityReport, point: Mapping[str, Any], name: str) -> list[str]:
    figures = point["figures"]
    return [
        name,
        *([f"{100 * point['share']:.2f}"] if found.record.slo else []),
        *(_figure(point["promises"][text]) for text in found.promises),
        _figure(point["served"]),
        *(_figure(figures.get(name)) for name in _others(found).values()),
        point["broke"] or "-",
    ]


def capacity_document(found: CapacityReport) -> dict[str, Any]:
    """What `--json` prints."""
    low, high = found.bracket
    return {
        "schema": SCHEMA,
        "run": found.record.run,
        "clock": found.record.clock,
        "device": found.record.device,
        "model": found.record.model,
        "preset": found.record.preset,
        "over": found.over,
        "slo": found.record.slo,
        "promises": list(found.promises),
        "share": found.share,
        "low": low,
        "high": high,
        "median": median(found.lows),
        "interval": [found.lows[0], found.lows[-1]],
        "seeds": [{"seed": seed, "low": a, "high": b} for seed, (a, b) in found.brackets.items()],
        "first_broken": found.first_broken,
        "answer": sentence(found),
        "bursts": bursts(found),
        "points": [_point(point) for point in found.points],
        "poisson": None if found.poisson is None else _point(found.poisson),
    }


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in point.items() if name != "figures"}
    kept["share"] = None if point["share"] != point["share"] else point["share"]
    kept["promises"] = {name: value if math.isfinite(value) else None for name, value in point["promises"].items()}
    return {**kept, **point["figures"]}


def load(value: float) -> str:
    return "inf" if value == math.inf else f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _figure(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:,.2f}"
