"""The points of a grid: `--grid KEY=V1,V2,...`, one axis each; every combination is a point, the last axis fastest.

    cache.blocks=1000,10000       values as --set takes them
    cache.blocks=1000..64000*4    1000, 4000, 16000, 64000
    arrivals.rate=1..3+0.5        1, 1.5, 2, 2.5, 3
    cache.blocks=auto             from what the longest request needs to what holds every block
    pd.prefill:pd.decode=1:3,2:2  several keys at once: each value has one for every key

All points are configured and checked before anything runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from ..bench.configure import Configured
from ..bench.system import System, build_system
from ..core.errors import UsageError

OPTION = "--grid"
JOINT = ":"
"""Between keys that change together, and between their values."""

MOST_POINTS = 10_000
LONGEST_NAME = 120
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\.\.({_NUMBER})([*+])({_NUMBER})\s*")
_ROUNDING = 1e-9
"""Relative: the end of a range is reached in spite of binary fractions."""


@dataclass(frozen=True)
class Axis:
    """A key and the values it takes, as text; or keys that change together, joined by ":" as are their values."""

    key: str
    values: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.key.split(JOINT))

    def of_keys(self, value: str) -> tuple[str, ...]:
        """One of the values, as one for each key."""
        return tuple(_split(value, JOINT)) if len(self.keys) > 1 else (value,)


def keys_of(axes: Sequence[Axis]) -> tuple[str, ...]:
    """Of all axes, in order."""
    return tuple(key for axis in axes for key in axis.keys)


def values_by_key(axes: Sequence[Axis]) -> dict[str, tuple[str, ...]]:
    """What each key is set to."""
    return {
        key: tuple(axis.of_keys(value)[at] for value in axis.values)
        for axis in axes
        for at, key in enumerate(axis.keys)
    }


@dataclass(frozen=True)
class Point:
    """One combination: a value for each key of the axes, and what it comes to."""

    values: tuple[str, ...]
    configured: Configured
    system: System


def parse_axis(text: str) -> Axis:
    """UsageError: not KEY=VALUES, an empty value, a range that does not end."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(JOINT)):
        raise UsageError(f"{OPTION} {text}: write it as key=value,value, for example cache.blocks=1000,10000")
    values = [value for part in _split(rest) for value in _expand(part.strip(), text)]
    axis = Axis(key, tuple(dict.fromkeys(values)))
    for value in values:
        of_keys = axis.of_keys(value)
        if not all(of_keys):
            raise UsageError(f"{OPTION} {text}: an empty value; write it as {key}=value,value")
        if len(of_keys) != len(axis.keys):
            raise UsageError(
                f"{OPTION} {text}: {value} has {len(of_keys)} of the {len(axis.keys)} values that these keys take "
                "together; write it as key:key=value:value,value:value"
            )
    return axis


def make_points(axes: Sequence[Axis], configure: Callable[[list[tuple[str, str]]], Configured]) -> list[Point]:
    """Every point, configured and checked. configure: from (where, "key=value") changes on top of the others.

    raises  UsageError: two axes of one key, too many points, a key or value that cannot be
    """
    keys = keys_of(axes)
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UsageError(f"{OPTION} {twice} is given twice; write all its values in one, separated by commas")
    if math.prod(len(axis.values) for axis in axes) > MOST_POINTS:
        raise UsageError(f"{OPTION}: more than {MOST_POINTS:,} points; take fewer values")
    points = []
    for combination in product(*(axis.values for axis in axes)):
        values = tuple(one for axis, value in zip(axes, combination, strict=True) for one in axis.of_keys(value))
        configured = configure([(OPTION, f"{key}={value}") for key, value in zip(keys, values, strict=True)])
        points.append(Point(values, configured, build_system(configured.config)))
    return points


def _split(text: str, at: str = ",") -> list[str]:
    """Where `at` stands in no brackets and no quotes: a value may be a TOML table."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if c == at and depth == 0 and not quote:
            parts.append("")
            continue
        parts[-1] += c
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        else:
            depth += (c in "{[") - (c in "}]")
    return parts


def _expand(part: str, text: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    start, stop, step = (float(found[i].replace("_", "")) for i in (1, 2, 4))
    times = found[3] == "*"
    if stop < start or (times and (step <= 1 or start <= 0)) or (not times and step <= 0):
        raise UsageError(f"{OPTION} {text}: {part} is no range; write it as 1000..64000*4 or 1..3+0.5")
    values: list[str] = []
    at = start
    while at <= stop * (1 + _ROUNDING) and len(values) <= MOST_POINTS:
        values.append(f"{at:.12g}")
        at = start * step ** len(values) if times else start + step * len(values)
    return values


def folder_name(index: int, keys: Sequence[str], values: Sequence[str]) -> str:
    """Of the files of one point: number and values, readable and safe on any file system."""
    text = ",".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    return f"{index + 1:03d}-{re.sub(r'[^A-Za-z0-9._=,+-]+', '_', text)}"[:LONGEST_NAME]
