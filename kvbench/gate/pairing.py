"""Which run of one side belongs to which of the other, and whether the two may be compared at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.errors import EXIT_NOT_COMPARABLE, KvbenchError, UsageError
from .metrics import direction
from .runs import Run
from .verdict import MODELLED, Comparison, Pair, compare

MUST_AGREE = ("schema", "clock", "fingerprint", "model", "device", "cache_state")
"""Columns in which the two runs of a pair must not differ, and `machine` where time is measured."""

MEANINGS = {"fingerprint": "workload (fingerprint)", "cache_state": "state of the cache at the start"}


class NotComparable(KvbenchError):
    """The two sides are not runs of the same thing. The message says in what they differ."""

    exit_code = EXIT_NOT_COMPARABLE


@dataclass(frozen=True)
class Group:
    """The pairs of one scenario (under one preset, where a side has several): (first, second) for each seed."""

    name: str
    pairs: tuple[tuple[Run, Run], ...]

    @property
    def clock(self) -> str:
        return self.pairs[0][0]["clock"]


Key = tuple[str, str]


def pair_up(first: Sequence[Run], second: Sequence[Run], by_preset: bool, across: Collection[str] = ()) -> list[Group]:
    """Groups in the order of the first side. by_preset: the preset tells runs apart, and is not what is compared.

    across   columns of MUST_AGREE that may differ all the same
    raises   NotComparable: a run without a partner, or one that differs where it must not; UsageError: no run at all,
             two runs that would be the same partner

    The first side is the baseline, the second the candidate.
    """
    by_preset = by_preset or _needs_preset(first) or _needs_preset(second)
    names = [{run["run"] for run in side} for side in (first, second)]
    one_name = names[0] if all(len(own) == 1 for own in names) else set()  # the fingerprint says whether it is the same
    ours, theirs = (_index(side, by_preset, next(iter(one_name), "")) for side in (first, second))
    for name, a, b in (("candidate", ours, theirs), ("baseline", theirs, ours)):
        alone = next((key for key in a if key not in b), None)
        if alone is not None:
            raise NotComparable(f"not comparable: the {name} has no run of {_named(alone)}")
    groups: dict[str, list[tuple[Run, Run]]] = {}
    for key, run in ours.items():
        check_pair(run, theirs[key], across)
        groups.setdefault(_group_name(key[0]), []).append((run, theirs[key]))
    return [Group(name, tuple(pairs)) for name, pairs in groups.items()]


def check_pair(first: Run, second: Run, across: Collection[str] = ()) -> None:
    """NotComparable unless the two are runs of the same thing."""
    measured = MODELLED not in (first["clock"], second["clock"])
    for column in (*MUST_AGREE, *(("machine",) if measured else ())):
        if column not in across and first[column] != second[column]:
            a, b = (run[column][:16] or "none" for run in (first, second))
            what = MEANINGS.get(column, column)
            raise NotComparable(f"not comparable: {first['run']} seed {first['seed']}: another {what}: {a} and {b}")
    for metric in first.units.keys() & second.units.keys():
        a, b = first.units[metric], second.units[metric]
        if a != b:
            where = f"{first['run']} seed {first['seed']}: {metric}"
            raise NotComparable(f"not comparable: {where} in {a or 'no unit'} and in {b or 'no unit'}")


def compare_group(group: Group, metrics: Sequence[str] | None = None) -> list[Comparison]:
    """A comparison of each metric of a run, in the order of the file, or of these metrics, also where none has it."""
    runs = [run for pair in group.pairs for run in pair]
    names = list(dict.fromkeys(name for run in runs for name in run.values)) if metrics is None else metrics
    found = []
    for name in names:
        pairs: list[Pair] = [(a.values.get(name), b.values.get(name)) for a, b in group.pairs]
        unit = next((run.units[name] for run in runs if name in run.units), "")
        found.append(compare(name, unit, direction(name), pairs, group.clock))
    return found


def _needs_preset(runs: Sequence[Run]) -> bool:
    """One side holds a scenario and seed under several presets."""
    return len({(run["run"], run["seed"]) for run in runs}) < len({(r["run"], r["seed"], r["preset"]) for r in runs})


def _index(runs: Sequence[Run], by_preset: bool, name: str) -> dict[tuple[Key, str], Run]:
    if not runs:
        raise UsageError("no run to compare: the file holds its header only")
    found: dict[tuple[Key, str], Run] = {}
    for run in runs:
        key = ((name or run["run"], run["preset"] if by_preset else ""), run["seed"])
        if key in found:
            raise UsageError(f"two runs of {_named(key)} on one side; give one of them (a grid: one of its folders)")
        found[key] = run
    return found


def _group_name(key: Key) -> str:
    return " / ".join(part for part in key if part)


def _named(key: tuple[Key, str]) -> str:
    return f"{_group_name(key[0])}, seed {key[1]}"
