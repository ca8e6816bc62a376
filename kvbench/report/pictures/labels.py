"""What runs are called in a picture, which of many are drawn, and what must be said of those that are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...core.errors import UsageError
from .chart import GREY
from .folders import RunFolder

T = TypeVar("T")

MOST_LINES = 6
"""Colours that can be told apart; more runs are a curve or a table."""

LONGEST = 34
"""Characters of a label."""

MOST_SETTINGS = 2
"""That a label tells where runs differ in no more; else as few as tell them apart, and the page's head has all."""

LOADS = ("arrivals.rate", "arrivals.concurrency", "trace.rate")
"""Keys that make a run heavier: points of one curve differ in them."""

IDENTITY = ("run", "preset", "model", "device")
_NEVER_NAMES = ("seeds.", "faults.", "slo.", "clock", "trace.path")


def named(runs: Sequence[RunFolder], baseline: Path | None) -> list[RunFolder]:
    """The runs with labels, the baseline first. UsageError: the baseline is not among them."""
    if baseline is not None and not any(_same(run.path, baseline) for run in runs):
        raise UsageError(f"--baseline {baseline}: is not one of the runs; give the folder of one of them")
    several = len({run.head["clock"] for run in runs}) > 1
    names = told_apart(runs)
    if several:
        names = [f"{name} ({run.head['clock']})" for name, run in zip(names, runs, strict=True)]
    found = [
        replace(run, label=label, baseline=baseline is not None and _same(run.path, baseline))
        for run, label in zip(runs, _numbered(names), strict=True)
    ]
    return sorted(found, key=lambda run: not run.baseline)


def _numbered(names: Sequence[str]) -> list[str]:
    """Equal runs get a number each."""
    seen = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if n == 1 else f"{name} #{n}" for name, n in zip(names, seen, strict=True)]


def drawn(runs: Sequence[RunFolder], most: int = MOST_LINES) -> list[tuple[RunFolder, int]]:
    """At most so many of them, evenly from first to last, the baseline besides, in grey.

    A run has the colour that it has where most are drawn, so it is the same in every picture.
    """
    base = [(run, GREY) for run in runs if run.baseline]
    others = _evenly([run for run in runs if not run.baseline], MOST_LINES)
    return base + _evenly([(run, i) for i, run in enumerate(others)], most)


def _evenly(of: list[T], most: int) -> list[T]:
    return of if len(of) <= most else [of[i * (len(of) - 1) // max(most - 1, 1)] for i in range(most)]


def caution(runs: Sequence[RunFolder]) -> str:
    """What stands under a picture of several runs: who is left out, and clocks that must not be confused."""
    shown = [run for run, _ in drawn(runs)]
    said = []
    if len(shown) < len(runs):
        said.append(f"{len(shown)} of {len(runs)} runs are drawn, evenly chosen; the curve and the tables have all.")
    return " ".join([*said, *clocks([run.head["clock"] for run in shown])])


def clocks(found: Sequence[str]) -> list[str]:
    """One warning where times of different kinds meet."""
    if "" in found:
        return ["The file does not say whether these times are modelled or measured."]
    if len(set(found)) > 1:
        return ["MODELLED AND MEASURED times in one picture: they are not comparable; each line names its clock."]
    return []


def systems(runs: Sequence[RunFolder]) -> list[str]:
    """For each run the name of what it shares with the runs that differ from it in load or seed alone."""
    told = told_apart(runs, (*LOADS, "seed"))
    clocks_of = [run.head["clock"] for run in runs]
    if len(set(clocks_of)) > 1:
        told = [f"{name} ({clock})" for name, clock in zip(told, clocks_of, strict=True)]
    return told


def told_apart(runs: Sequence[RunFolder], without: Sequence[str] = ()) -> list[str]:
    """What the runs differ in, as a name for each, keys `without` left out; their own name where that is nothing.

    Runs with one name are equal in all these keys. A folder's name is never told: it says where, not what.
    """
    settings = [features(run) for run in runs]
    differing = [key for key in differing_keys(settings) if key not in without]
    whole = [tuple(s.get(key, "") for key in differing) for s in settings]
    chosen = differing if len(differing) <= MOST_SETTINGS else _fewest(settings, differing)
    names = [_cut(", ".join(_setting(k, s[k]) for k in chosen if k in s), LONGEST) for s in settings]
    names = [name or run.head["run"] for name, run in zip(names, runs, strict=True)]
    if len(set(names)) == len(set(whole)):
        return names
    numbers = {values: i + 1 for i, values in enumerate(dict.fromkeys(whole))}
    return [_cut(f"{numbers[values]}: {name}", LONGEST) for values, name in zip(whole, names, strict=True)]


def features(run: RunFolder) -> dict[str, str]:
    """What a run is: names of its head, then its resolved settings, as text."""
    flat = {key: _text(v) for key, v in _flat(run.document["config"]) if not key.startswith(_NEVER_NAMES)}
    return {**{name: run.head[name] for name in IDENTITY}, **{k: v for k, v in flat.items() if k not in IDENTITY}}


def differing_keys(settings: Sequence[dict[str, str]]) -> list[str]:
    """Keys that have several values, in their order."""
    keys = dict.fromkeys(key for s in settings for key in s)
    return [key for key in keys if len({s.get(key, "") for s in settings}) > 1]


def _fewest(settings: Sequence[dict[str, str]], keys: Sequence[str]) -> list[str]:
    """Keys that tell apart what all of them do: always the one that splits most next."""
    chosen: list[str] = []

    def classes(names: Sequence[str]) -> int:
        return len({tuple(s.get(key, "") for key in names) for s in settings})

    while classes(chosen) < classes(keys):
        chosen.append(max(keys, key=lambda key: classes([*chosen, key])))
    return sorted(chosen, key=keys.index)


def _setting(key: str, text: str) -> str:
    """A name says by itself what it is; a number or a switch stands with its key."""
    if key in IDENTITY or not (text in ("on", "off", "inf", "") or text.lstrip("-")[:1].isdigit()):
        return text
    return f"{key.rpartition('.')[2]} {text}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()
