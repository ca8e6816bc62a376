"""Distributions of lengths and times, as quantile functions, and the rule for max_tokens.

A scalar is a fixed value. A table names a distribution and its parameters:

    fixed        value
    uniform      min, max (both ends included)
    normal       mean, sigma (standard deviation)
    lognormal    mean (of the values) or median, sigma (standard deviation of the natural logarithm)
    exponential  mean
    empirical    values, weights (optional, even without)

All but fixed and empirical take `min` and `max`: a draw beyond is set to the bound, which moves the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.config import nearest
from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS
from ..core.units import NS_PER_S, NS_PER_US
from .draws import F64

I64 = NDArray[np.int64]
Table = Mapping[str, Any]

MAX_SECONDS = 1e9
"""Longest time a distribution may draw: 31 years, far below the int64 clock's end."""


@dataclass(frozen=True)
class _Shape:
    """One distribution: its parameters (beside min and max) and its quantile function.

    quantile(table, u, step) -> (n,) float64. step is 1 where whole numbers are wanted, 0 for times.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    quantile: Callable[[Table, F64, float], F64]


def whole_numbers(spec: Any, u: F64, name: str, low: int = 1) -> I64:
    """(n,) int64 >= low, drawn by the uniforms u. UsageError names the key: wrong table, or too large."""
    table = _table(spec, name)
    values = np.rint(_draw(table, u, step=1.0))
    largest = float(values.max(initial=0.0))
    if largest >= MAX_STREAM_TOKENS:
        raise UsageError(f"{name} draws {largest:.3g}, the limit is {MAX_STREAM_TOKENS - 1}; set its max")
    return np.maximum(values, low).astype(np.int64)


def durations_ns(spec: Any, u: F64, name: str) -> I64:
    """(n,) int64 nanoseconds >= 0, whole microseconds, from a distribution of seconds."""
    table = _table(spec, name)
    seconds = np.clip(_draw(table, u, step=0.0), 0.0, MAX_SECONDS)
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


def produced_tokens(output: I64, told: I64) -> tuple[I64, tuple[str, ...]]:
    """(n,) what is generated when no output outlives its max_tokens, and a note when that ends some early."""
    cut = int(np.count_nonzero(told < output))
    notes = (f"lengths.max_tokens ends {cut} of {output.size} outputs early",) if cut else ()
    return np.minimum(output, told), notes


def _positive(text: str) -> float:
    """The number that a text holds if it is finite and above 0, else 0."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value <= MAX_STREAM_TOKENS else 0.0


def _draw(table: Table, u: F64, step: float) -> F64:
    values = _SHAPES[table["distribution"]].quantile(table, u, step)
    return np.clip(values, table.get("min", -math.inf), table.get("max", math.inf))


def _table(spec: Any, name: str) -> dict[str, Any]:
    """The specification as a checked table. UsageError: what is wrong with it."""
    if isinstance(spec, int | float) and not isinstance(spec, bool):
        spec = {"distribution": "fixed", "value": spec}
    if not isinstance(spec, Mapping):
        raise UsageError(f"{name} is a number or a table with a distribution, got {spec!r}")
    table = dict(spec)
    kind = table.get("distribution")
    if kind not in _SHAPES:
        known = ", ".join(_SHAPES)
        raise UsageError(f"{name} needs distribution = one of {known}; got {kind!r}")
    shape = _SHAPES[kind]
    bounds = () if kind in ("fixed", "empirical", "uniform") else ("min", "max")
    allowed = ("distribution", *shape.required, *shape.optional, *bounds)
    for parameter in table:
        if parameter not in allowed:
            close = nearest(parameter, allowed)
            raise UsageError(f"{name}: a {kind} distribution has no {parameter!r}; the nearest is {close}")
    _check_parameters(table, shape, name)
    return table


def _check_parameters(table: dict[str, Any], shape: _Shape, name: str) -> None:
    kind = table["distribution"]
    for parameter in shape.required:
        if parameter not in table:
            raise UsageError(f"{name}: a {kind} distribution needs {parameter}")
    for parameter, value in table.items():
        if parameter in ("values", "weights"):
            table[parameter] = _numbers(value, f"{name}.{parameter}")
        elif parameter != "distribution" and not _is_number(value):
            raise UsageError(f"{name}.{parameter} must be a number >= 0, got {value!r}")
    if kind == "lognormal" and ("mean" in table) == ("median" in table):
        raise UsageError(f"{name}: a lognormal distribution needs either mean or median")
    if kind in ("lognormal", "exponential") and not table.get("mean", table.get("median")):
        raise UsageError(f"{name}: the mean of a {kind} distribution must be above 0")
    if table.get("min", 0) > table.get("max", math.inf):
        raise UsageError(f"{name}: min {table['min']} is above max {table['max']}")
    if kind == "empirical" and "weights" in table:
        weights = table["weights"]
        if weights.size != table["values"].size or weights.sum() <= 0:
            raise UsageError(f"{name}.weights needs one weight for each value, not all 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _numbers(value: Any, name: str) -> F64:
    if not isinstance(value, list | tuple) or not value or not all(map(_is_number, value)):
        raise UsageError(f"{name} must be a list of numbers >= 0")
    return np.array(value, np.float64)


def _fixed(t: Table, u: F64, step: float) -> F64:
    return np.full(u.shape, float(t["value"]))


def _uniform(t: Table, u: F64, step: float) -> F64:
    """Whole numbers are rounded afterwards: half a step more at both ends gives the ends their full share."""
    return t["min"] - step / 2 + u * (t["max"] - t["min"] + step)


def _normal(t: Table, u: F64, step: float) -> F64:
    return t["mean"] + t["sigma"] * _normal_scores(u)


def _lognormal(t: Table, u: F64, step: float) -> F64:
    sigma = t["sigma"]
    center = math.log(t["median"]) if "median" in t else math.log(t["mean"]) - sigma * sigma / 2
    return np.exp(np.minimum(center + sigma * _normal_scores(u), 700.0))  # exp(710) overflows


def _exponential(t: Table, u: F64, step: float) -> F64:
    return -t["mean"] * np.log1p(-u)


def _empirical(t: Table, u: F64, step: float) -> F64:
    values = t["values"]
    weights = t.get("weights", np.ones(values.size))
    edges = np.cumsum(weights)
    return values[np.searchsorted(edges[:-1], u * edges[-1], side="right")]


def _normal_scores(u: F64) -> F64:
    """Standard normal quantiles by the standard library: scipy.special takes 0.3 s to import."""
    from statistics import NormalDist

    return np.array(list(map(NormalDist().inv_cdf, u.tolist())), np.float64)


_SHAPES: dict[str, _Shape] = {
    "fixed": _Shape(("value",), (), _fixed),
    "uniform": _Shape(("min", "max"), (), _uniform),
    "normal": _Shape(("mean", "sigma"), (), _normal),
    "lognormal": _Shape(("sigma",), ("mean", "median"), _lognormal),
    "exponential": _Shape(("mean",), (), _exponential),
    "empirical": _Shape(("values",), ("weights",), _empirical),
}
