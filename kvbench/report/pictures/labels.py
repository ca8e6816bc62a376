"""What runs are called in a picture, which of many are drawn, and what must be said of those that are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from .chart import GREY
from .folders import RunFolder

MOST_LINES = 6
"""Colours that can be told apart; more runs are a curve or a table."""

LONGEST, LONGEST_WITH_CLOCK = 22, 13
"""Characters of a label, with its clock behind it or without: what a narrow picture has room for."""

MOST_SETTINGS = 2
"""That a label tells; runs that differ in more are called by their folders."""

LOADS = ("arrivals.rate", "arrivals.concurrency", "trace.rate")
"""Keys that make a run heavier: points of one curve differ in them."""

_IDENTITY = ("run", "preset", "model", "device", "clock")
_NEVER_NAMES = ("seeds.", "faults.", "slo.", "clock", "trace.path")


def named(runs: Sequence[RunFolder], baseline: Path | None) -> list[RunFolder]:
    """The runs with labels, the baseline first. UsageError: the baseline is not among them."""
    if baseline is not None and not any(_same(run.path, baseline) for run in runs):
        raise UsageError(f"--baseline {baseline}: is not one of the runs; give the folder of one of them")
    several = len({run.head["clock"] for run in runs}) > 1
    longest = LONGEST_WITH_CLOCK if several else LONGEST
    names = _names(runs, longest)
    found = [
        replace(
            run,
            label=_cut(name, longest) + (f" ({run.head['clock']})" if several else ""),
            baseline=baseline is not None and _same(run.path, baseline),
        )
        for run, name in zip(runs, names, strict=True)
    ]
    return sorted(found, key=lambda run: not run.baseline)


def drawn(runs: Sequence[RunFolder], most: int = MOST_LINES) -> list[tuple[RunFolder, int]]:
    """At most so many of them, evenly from first to last, with their colours; the baseline besides, in grey."""
    base = [run for run in runs if run.baseline]
    others = [run for run in runs if not run.baseline]
    if len(others) > most:
        others = [others[i * (len(others) - 1) // max(most - 1, 1)] for i in range(most)]
    return [(run, GREY) for run in base] + [(run, i) for i, run in enumerate(others)]


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
    settings = [dict(_flat(run.document["config"])) for run in runs]
    heads = [{name: run.head[name] for name in _IDENTITY} for run in runs]
    keys = [key for key in _differing(settings) if key not in (*LOADS, "seed")]
    of_head = [name for name in _IDENTITY if len({head[name] for head in heads}) > 1]
    whole = [(*(str(s.get(key)) for key in keys), *head.values()) for s, head in zip(settings, heads, strict=True)]
    said = [", ".join(head[name] for name in of_head) for head in heads]
    if len(keys) <= MOST_SETTINGS:
        more = [", ".join(_setting(key, s.get(key)) for key in keys if key not in _IDENTITY) for s in settings]
        said = [", ".join(filter(None, pair)) for pair in zip(said, more, strict=True)]
    said = [_cut(text or run.head["run"], LONGEST) for text, run in zip(said, runs, strict=True)]
    if len(set(said)) == len(set(whole)):
        return said
    numbers = {values: i + 1 for i, values in enumerate(dict.fromkeys(whole))}
    return [_cut(f"{numbers[values]}: {text}", LONGEST) for values, text in zip(whole, said, strict=True)]


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    keys = [key for key in dict.fromkeys(key for s in settings for key in s) if not key.startswith(_NEVER_NAMES)]
    return [key for key in keys if len({str(s.get(key)) for s in settings}) > 1]


def _names(runs: Sequence[RunFolder], longest: int) -> list[str]:
    """The shortest of: the run, what differs in its settings (with it), the folder."""
    plain = [run.head["run"] for run in runs]
    settings = [dict(_flat(run.document["config"])) for run in runs]
    differing = _differing(settings)
    told = [", ".join(_setting(key, s.get(key)) for key in differing) for s in settings]
    if len(set(plain)) > 1:
        told = [f"{name} {text}".strip() for name, text in zip(plain, told, strict=True)]
    choices = [plain, *([told] if len(differing) <= MOST_SETTINGS else []), [run.path.resolve().name for run in runs]]
    for names in choices:
        if len({_cut(name, longest) for name in names}) == len(runs):
            return names
    return [f"{i + 1} {name}" for i, name in enumerate(choices[-1])]


def _setting(key: str, value: Any) -> str:
    """A name says by itself what it is; a number stands with its key."""
    if isinstance(value, str) and value not in ("", "inf"):
        return value
    return f"{key.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]} {value}"


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
