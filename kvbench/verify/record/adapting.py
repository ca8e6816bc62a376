"""What both adapters need: calls that fit several versions of an engine, and forms of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those of the arguments that this version of the function knows."""
    known = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in known})


class GaveUp(Exception):
    """The engine could not go on by itself; what it did until then is no whole recording."""


class Open:
    """An object whose fields are those given, and None for every other name that an engine may look at."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def merged(slots: Iterable[int]) -> list[list[int]]:
    """Single slots in order as merged [first, length]."""
    ranges: list[list[int]] = []
    for slot in slots:
        if ranges and sum(ranges[-1]) == slot:
            ranges[-1][1] += 1
        else:
            ranges.append([int(slot), 1])
    return ranges
