"""What a format of traces declares of itself, and all that there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from ..core.requests import Requests
from .keys import FORMATS
from .options import TraceOptions
from .source import Trace

Names = frozenset[str]


@dataclass(frozen=True)
class Format:
    """One format of traces.

    read      a trace and how it is to be read -> Requests in order of arrival. UsageError: a wrong row, unless skipped
    keys      sets of names: a JSON object that has all of one set is of this format
    header    likewise for the header of a CSV file
    files     names of files by which a folder is told
    timed     False: may come without arrivals, which are drawn then (trace.rate)
    windowed  True: the reader heeds trace.start_s and trace.duration_s itself
    """

    read: Callable[[Trace, TraceOptions], Requests]
    keys: tuple[Names, ...] = ()
    header: tuple[Names, ...] = ()
    files: re.Pattern[str] | None = None
    timed: bool = True
    windowed: bool = False


def names(*sets: str) -> tuple[Names, ...]:
    """Sets of names, each given as words: names("hash_ids", "input_length output_length")."""
    return tuple(frozenset(words.split()) for words in sets)


@cache
def all_formats() -> dict[str, Format]:
    """Name -> what the file of that name declares."""
    found: dict[str, Any] = {}
    for name in FORMATS:
        found[name] = import_module(f"{__package__}.formats.{name.replace('-', '_')}").FORMAT
    return found
