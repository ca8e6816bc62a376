"""A user's policy: FILE.py:NAME. The function NAME is the key; NAME_on_insert, NAME_on_hit and NAME_on_evict beside
it are what the policy hears, where they are there. See policies.py for what they get and give.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.own_file import load_file, one_line
from ..node import LENGTH, NODE_COLUMNS
from .policies import EVENT_FUNCTION, KEY_FUNCTION, POLICIES, VERDICT_FUNCTION, Policy, compiled, leaves, nothing

_FORMS = {
    "": (KEY_FUNCTION, "returns an int"),
    "_on_insert": (EVENT_FUNCTION, "returns nothing"),
    "_on_hit": (EVENT_FUNCTION, "returns nothing"),
    "_on_evict": (VERDICT_FUNCTION, "returns True or False"),
}


def find_policy(name: str) -> Policy:
    """A policy by name, or a user's by FILE.py:NAME. UsageError says what is wrong with it, in one line."""
    if name in POLICIES:
        return POLICIES[name]
    file, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier():
        raise UsageError(
            f"cache.eviction {name!r} is not known; try one of {', '.join(POLICIES)}, or my_file.py:my_policy"
        )
    return _from_file(Path(file), function)


@cache
def _from_file(path: Path, name: str) -> Policy:
    module = load_file("cache.eviction", path)
    key = getattr(module, name, None)
    if not callable(key):
        known = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise UsageError(
            f"cache.eviction: {path} has no function {name}; it has {', '.join(known) or 'none'}, "
            "and a policy is a function of (nodes, node, now)"
        )
    given = {suffix: getattr(module, name + suffix, None) for suffix in _FORMS}
    functions = {suffix: _checked(path, name + suffix, f, suffix) for suffix, f in given.items() if f is not None}
    return Policy(
        key=functions[""],
        on_insert=functions.get("_on_insert", nothing),
        on_hit=functions.get("_on_hit", nothing),
        on_evict=functions.get("_on_evict", leaves),
        costs=True,
        built_in=False,
    )


def _checked(path: Path, name: str, function: Any, suffix: str) -> Callable[..., Any]:
    """The plain function, once it has been compiled and called on the record of an imaginary node."""
    plain: Callable[..., Any] = getattr(function, "py_func", function)
    kind, gives = _FORMS[suffix]
    nodes = np.zeros((2, NODE_COLUMNS), np.int64)
    nodes[1, LENGTH] = 1
    try:
        compiled(plain, kind, False)(nodes, 1, 1)
        value = plain(nodes, 1, 1)
        if suffix == "" and not isinstance(value, int | np.integer | np.bool_):  # compiled, a float would be cut
            raise TypeError(f"it gave {value!r}")
    except Exception as error:  # whatever numba or the function raises
        raise UsageError(
            f"cache.eviction: {path}: {name}(nodes, node, now) {gives}, and numba compiles it: {one_line(error)}"
        ) from None
    return plain
