"""Times of a trace -> ns: in which unit numbers are, and stamps of ISO 8601.

The unit is, in this order: trace.time_unit; what the name of the column says; what the size says (seconds, ms, us and
ns since 1970 are a factor of 1,000 apart); the format's own, if it gives a rate that servers have; for a format without
one, the only unit that gives such a rate. Where another unit is as good a reading, it is asked for.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from .options import TraceOptions
from .rows import I64, Faults, shown
from .source import Trace

F64 = NDArray[np.float64]

NS_OF_UNIT = {"s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1}

LARGEST_TIME = 2.2e18
"""Epoch nanoseconds of the year 2039."""

_MOST_NS = 3.2e18
"""A century; int64 holds three."""

_SINCE_1970_S = (9.4e8, 2.2e9)
"""The years 2000 to 2039."""

_RATES = (0.01, 100.0)
"""Requests/s that one server has: a unit that gives less or more is no reading of its own."""

_RATES_OF_FORMAT = (0.001, 200.0)
"""The same where a format says its unit: that is doubted only beyond."""

_FEW = 10
"""So many rows say too little to doubt a format's unit."""

_SUFFIX = re.compile(r"(?:_|\(|timestamp|unix)(s|sec|seconds|ms|us|ns|nano|unixnano)\)?$", re.IGNORECASE)
_SUFFIXES = {"sec": "s", "seconds": "s", "nano": "ns", "unixnano": "ns"}

_STAMP = re.compile(r"(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII)
_NO_TIME = np.datetime64("NaT", "ns")


def from_first_ns(times: F64, unit: str, place: str) -> I64:
    """(n,) ns from the earliest time; NaN is 0. UsageError: they are centuries apart. place: the trace's name."""
    passed = np.nan_to_num(times - np.nanmin(times)) if not np.isnan(times).all() else np.zeros(times.size)
    passed_ns = np.rint(passed * NS_OF_UNIT[unit])
    if (passed_ns >= _MOST_NS).any():
        row = f"from {shown(float(np.nanmin(times)))} to {shown(float(np.nanmax(times)))}"
        raise UsageError(f"{place}: as {unit} the times are more than a century apart ({row}); check trace.time_unit")
    return passed_ns.astype(np.int64)


def unit_of(times: F64, own: str, options: TraceOptions, trace: Trace, name: str = "") -> tuple[str, tuple[str, ...]]:
    """The unit of (n,) times, NaN where there is none, and a note if it is not the format's own.

    own    the format's; "" has none
    name   of the column, which may end in a unit
    Also written into trace.found. UsageError: two readings are plausible; it says which key decides.
    """
    known = times[~np.isnan(times)]
    if known.size == 0:
        return own or "ms", ()
    unit, how = _decided(known, own, options, trace.name, name)
    trace.found["time unit"] = f"{unit}, {how}"
    if how.startswith(("of the format", "trace.time_unit", "by the name")):
        return unit, ()
    return unit, (f"timestamps are read as {unit}: {how}; trace.time_unit says otherwise",)


def is_doubtful(times: F64, own: str) -> bool:
    """Whether (n,) times in a format's own unit would be asked about, or read otherwise, without a key."""
    try:
        return bool(times.size) and _decided(times, own, TraceOptions(), "", "")[0] != own
    except UsageError:
        return True


def _decided(times: F64, own: str, options: TraceOptions, place: str, name: str) -> tuple[str, str]:
    if options.time_unit != "auto":
        return options.time_unit, "trace.time_unit"
    if suffix := _SUFFIX.search(name):
        unit = suffix[1].lower()
        return _SUFFIXES.get(unit, unit), f"by the name {name}"
    if own and options.time_scale != 1.0 and _since_1970(times * options.time_scale) == own:
        return own, "of the format, since 1970 after trace.time_scale"
    if epoch := _since_1970(times):
        return epoch, "of the format, since 1970" if epoch == own else "by their size, since 1970"
    rates = {unit: _rate(times, ns * options.time_scale) for unit, ns in NS_OF_UNIT.items()}
    good = [unit for unit, rate in rates.items() if rate and _RATES[0] <= rate <= _RATES[1]]
    if own:
        rate = rates[own]
        sure = not rate or times.size < _FEW or _RATES_OF_FORMAT[0] <= rate <= _RATES_OF_FORMAT[1]
        if sure or options.rate or not good:
            return own, "of the format"
        good = [own, *good]
    elif options.rate or times.size == 1 or not rates["s"]:
        return "s", "which does not matter: the rate is given" if options.rate else "which does not matter"
    elif len(good) == 1:
        return good[0], f"by the rate that it makes, {rates[good[0]]:,.3g}/s"
    asked = good or ["s", "ms"]
    told = " or ".join(f"{rates[unit]:,.4g} requests/s as {unit}" for unit in asked)
    raise UsageError(
        f"{place}: in which unit are the timestamps? They make {told}; set trace.time_unit={asked[-1]} (or "
        f"{', '.join(unit for unit in NS_OF_UNIT if unit != asked[-1])})"
    )


def _since_1970(times: F64) -> str:
    """The unit in which all times lie between 2000 and 2039; "" is none."""
    for unit, ns in NS_OF_UNIT.items():
        low, high = (bound * NS_PER_S / ns for bound in _SINCE_1970_S)
        if low <= times.min() and times.max() <= high:
            return unit
    return ""


def _rate(times: F64, unit_ns: float) -> float:
    """Requests/s; 0 where all come at once."""
    span_s = float(np.ptp(times)) * unit_ns / NS_PER_S
    return (times.size - 1) / span_s if span_s > 0 else 0.0


def stamps(texts: list[str], faults: Faults, name: str) -> NDArray[np.datetime64]:
    """(n,) datetime64[ns] in UTC; a stamp that is none is marked and NaT."""
    matches = [_STAMP.fullmatch(stamp.strip()) for stamp in texts]
    try:
        times = np.array([m[1] if m else "NaT" for m in matches], "datetime64[ns]")
    except ValueError:  # looks like a stamp, but is no date (month 13): find out which
        times = np.array([_date(m[1]) if m else _NO_TIME for m in matches], "datetime64[ns]")
    if any(m and m[2] for m in matches):
        times = times - np.array([_offset(m) for m in matches], "timedelta64[m]")
    faults.mark(
        np.isnat(times),
        lambda i: f"{name} is {shown(texts[i])}; wanted is a stamp like 2023-11-16 18:17:03.9799600",
    )
    return times


def is_stamp(value: object) -> bool:
    """Whether a value is written as a stamp."""
    return isinstance(value, str) and _STAMP.fullmatch(value.strip()) is not None


def _date(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "ns")
    except ValueError:
        return _NO_TIME


def _offset(match: re.Match[str] | None) -> int:
    """Minutes that a stamp is ahead of UTC."""
    if match is None or match[2] is None:
        return 0
    minutes = int(match[3]) * 60 + int(match[4])
    return minutes if match[2] == "+" else -minutes
