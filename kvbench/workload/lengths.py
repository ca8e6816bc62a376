"""Lengths and times from a specification (a number, or a table that `quantiles` explains), and max_tokens.

A scalar is a fixed value. `min` and `max` cut what is drawn: a draw beyond is set to the bound, which moves the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.config import nearest
from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS
from ..core.units import NS_PER_S, NS_PER_US
from .columns import read_columns
from .draws import F64
from .quantiles import LARGEST_ZIPF, SHAPES, Table, quantiles

I64 = NDArray[np.int64]

MAX_SECONDS = 1e9
"""Longest time a distribution may draw: 31 years, far below the int64 clock's end."""

_LISTS = ("values", "weights", "edges")
_MEASURED = ("file", "column")


def whole_numbers(spec: Any, u: F64, name: str, low: int = 1) -> I64:
    """(n,) int64 >= low, drawn by the uniforms u. UsageError names the key: wrong table, or too large."""
    values = np.rint(quantiles(checked_table(spec, name), u, 1.0))
    largest = float(values.max(initial=0.0))
    if largest >= MAX_STREAM_TOKENS:
        raise UsageError(f"{name} draws {largest:.3g}, the limit is {MAX_STREAM_TOKENS - 1}; set its max")
    return np.maximum(values, low).astype(np.int64)


def durations_ns(spec: Any, u: F64, name: str) -> I64:
    """(n,) int64 nanoseconds >= 0, whole microseconds, from a distribution of seconds."""
    seconds = np.clip(quantiles(checked_table(spec, name), u, 0.0), 0.0, MAX_SECONDS)
    return np.rint(seconds * (NS_PER_S / NS_PER_US)).astype(np.int64) * NS_PER_US


def max_tokens(rule: Any, output: I64, name: str = "lengths.max_tokens") -> I64:
    """(n,) what the scheduler is told: "output", a number, or a factor of the output such as "1.5x"."""
    if isinstance(rule, str):
        text = rule.strip()
        if text == "output":
            return np.maximum(output, 1)
        if text.endswith("x") and (factor := _positive(text[:-1])):
            return np.maximum(np.ceil(output * factor), 1).astype(np.int64)
        rule = _positive(text)
    if isinstance(rule, int | float) and 1 <= rule < MAX_STREAM_TOKENS:
        return np.full(output.shape, int(rule), np.int64)
    raise UsageError(f'{name} is "output", a number of tokens, or a factor of the output such as "1.5x"')


def produced_tokens(output: I64, told: I64, ignore_eos: bool = False) -> tuple[I64, tuple[str, ...]]:
    """(n,) what is generated when no output outlives its max_tokens, and a note when that ends some early.

    ignore_eos   every output goes on to its max_tokens
    """
    if ignore_eos:
        return told.copy(), ()
    cut = int(np.count_nonzero(told < output))
    notes = (f"lengths.max_tokens ends {cut} of {output.size} outputs early",) if cut else ()
    return np.minimum(output, told), notes


def check_joint(prompt: Any, output: Any) -> None:
    """UsageError unless one number draws a row of both: they are lists, or columns, of one length and equal weights."""
    first, second = checked_table(prompt, "lengths.prompt"), checked_table(output, "lengths.output")
    if first["distribution"] != "empirical" or second["distribution"] != "empirical":
        raise UsageError("lengths.joint draws rows; lengths.prompt and lengths.output must both be empirical")
    rows, others = first["values"].size, second["values"].size
    if rows != others:
        raise UsageError(f"lengths.joint draws rows; lengths.prompt has {rows} values, lengths.output has {others}")
    even = np.ones(rows)
    if not np.array_equal(first.get("weights", even), second.get("weights", even)):
        raise UsageError("lengths.joint draws rows; lengths.prompt and lengths.output must have the same weights")


def checked_table(spec: Any, name: str) -> dict[str, Any]:
    """The specification as a table for `quantiles`: lists are arrays, files are read. UsageError: what is wrong."""
    if isinstance(spec, int | float) and not isinstance(spec, bool):
        spec = {"distribution": "fixed", "value": spec}
    if not isinstance(spec, Mapping):
        raise UsageError(f"{name} is a number or a table with a distribution, got {spec!r}")
    table = dict(spec)
    kind = table.get("distribution")
    if kind not in SHAPES:
        known = ", ".join(SHAPES)
        got = f"got {kind!r}" if kind is not None else f"it has {', '.join(map(str, table)) or 'nothing'}"
        raise UsageError(f"{name} needs distribution = one of {known}; {got}")
    _check_names(table, name)
    if kind == "empirical" and any(parameter in table for parameter in _MEASURED):
        table = _measured(table, name)
    _check_parameters(table, name)
    _CHECKS.get(kind, _check_nothing)(table, name)
    if table.get("min", 0) > table.get("max", math.inf):
        raise UsageError(f"{name}: min {table['min']} is above max {table['max']}")
    return table


def _check_names(table: Table, name: str) -> None:
    kind = table["distribution"]
    shape = SHAPES[kind]
    measured = _MEASURED if kind == "empirical" else ()
    bounds = ("min", "max") if shape.bounded else ()
    allowed = ("distribution", *shape.required, *shape.optional, *measured, *bounds)
    for parameter in table:
        if parameter not in allowed:
            close = nearest(parameter, allowed)
            raise UsageError(f"{name}: a {kind} distribution has no {parameter!r}; the nearest is {close}")


def _measured(table: Table, name: str) -> dict[str, Any]:
    """An empirical table with the columns of its file for values and weights."""
    path, column, weights = table.get("file"), table.get("column"), table.get("weights")
    if not isinstance(path, str) or not isinstance(column, str) or "values" in table:
        raise UsageError(f"{name}: empirical takes file and column (two strings), or values")
    if weights is not None and not isinstance(weights, str):
        raise UsageError(f"{name}.weights is the name of a column when values come from a file, got {weights!r}")
    names = [column] if weights is None else [column, weights]
    read = read_columns(path, names, name)
    kept = {parameter: table[parameter] for parameter in ("distribution", "min", "max") if parameter in table}
    found = {**kept, "values": read[column].tolist()}
    return found if weights is None else {**found, "weights": read[weights].tolist()}


def _check_parameters(table: dict[str, Any], name: str) -> None:
    kind = table["distribution"]
    for parameter in SHAPES[kind].required:
        if parameter not in table:
            raise UsageError(f"{name}: a {kind} distribution needs {parameter}")
    for parameter, value in table.items():
        if parameter in _LISTS:
            table[parameter] = _numbers(value, f"{name}.{parameter}")
        elif parameter not in ("distribution", "parts") and not _is_number(value):
            raise UsageError(f"{name}.{parameter} must be a number >= 0, got {value!r}")


def _check_nothing(table: dict[str, Any], name: str) -> None:
    pass


def _check_lognormal(t: dict[str, Any], name: str) -> None:
    if "p50" in t or "p99" in t:
        if not {"p50", "p99"} <= t.keys() or {"mean", "median", "sigma"} & t.keys():
            raise UsageError(f"{name}: a lognormal distribution takes p50 and p99, or sigma and a mean or median")
        if not 0 < t["p50"] <= t["p99"]:
            raise UsageError(f"{name}: p50 {t['p50']} must be above 0 and p99 {t['p99']} not below it")
        return
    if "sigma" not in t:
        raise UsageError(f"{name}: a lognormal distribution needs sigma")
    if ("mean" in t) == ("median" in t):
        raise UsageError(f"{name}: a lognormal distribution needs either mean or median")
    _check_mean(t, name)


def _check_mean(t: dict[str, Any], name: str) -> None:
    if not t.get("mean", t.get("median")):
        raise UsageError(f"{name}: the mean of a {t['distribution']} distribution must be above 0")


def _check_zipf(t: dict[str, Any], name: str) -> None:
    low, high = t.get("min", 1), t["max"]
    if low < 1 or low != int(low) or high != int(high):
        raise UsageError(f"{name}: min and max of a zipf distribution are whole numbers from 1, got {low} and {high}")
    if high - low >= LARGEST_ZIPF:
        raise UsageError(f"{name}: a zipf distribution has at most {LARGEST_ZIPF:,} values; lower its max")


def _check_weights(t: dict[str, Any], name: str) -> None:
    values = t["parts"] if t["distribution"] == "mixture" else t["values"]
    if "weights" in t and (len(t["weights"]) != len(values) or t["weights"].sum() <= 0):
        raise UsageError(f"{name}.weights needs one weight for each value, not all 0")


def _check_histogram(t: dict[str, Any], name: str) -> None:
    if t["edges"].size != t["weights"].size + 1 or t["weights"].sum() <= 0:
        raise UsageError(f"{name}: a histogram has one edge more than weights, and they are not all 0")
    if np.any(np.diff(t["edges"]) <= 0):
        raise UsageError(f"{name}.edges must rise from each to the next")


def _check_mixture(t: dict[str, Any], name: str) -> None:
    parts = t["parts"]
    if not isinstance(parts, list | tuple) or not parts:
        raise UsageError(f"{name}.parts is a list of tables with a distribution each, got {parts!r}")
    t["parts"] = [checked_table(part, f"{name}.parts[{i}]") for i, part in enumerate(parts)]
    _check_weights(t, name)


_CHECKS = {
    "lognormal": _check_lognormal,
    "exponential": _check_mean,
    "zipf": _check_zipf,
    "empirical": _check_weights,
    "histogram": _check_histogram,
    "mixture": _check_mixture,
}
"""What a distribution asks beyond numbers >= 0."""


def _positive(text: str) -> float:
    """The number that a text holds if it is finite and above 0, else 0."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value <= MAX_STREAM_TOKENS else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _numbers(value: Any, name: str) -> F64:
    if not isinstance(value, list | tuple) or not value or not all(map(_is_number, value)):
        raise UsageError(f"{name} must be a list of numbers >= 0")
    return np.array(value, np.float64)
