"""A user's policy: FILE.py:NAME, a function of arrays that returns the number of an engine.

NAME(load, cached, accepts, prompt_tokens, session, now) -> engine

load      (engines, 9) columns as in router.py: in flight, pending tokens, held tokens (the router's own count), then
          requests, waiting, queued tokens, KV blocks used, KV blocks (as reported), and requests sent lately
cached    (engines,) leading tokens of the prompt that each engine is believed to have, see router.belief
accepts   (engines,) 1 = takes requests
session   its number, -1 = none. now: ns
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from ..core.errors import UsageError
from ..core.jit import PLAIN
from ..core.own_file import load_file, one_line
from .belief import knows_where, predict
from .router import BAD_CHOICE, CHOOSE_FUNCTION, LOAD_COLUMNS, NO_ENGINE


def route(router, seqs, seq, now):
    if not knows_where(router, seqs, seq, now):
        return NO_ENGINE
    choose, base, n = router.choose, router.base, router.accepts.size
    session = router.session[seqs.request[seq]]
    engine = choose(router.load[base : base + n], router.cached, router.accepts, seqs.prompt[seq], session, now)
    if engine < 0 or engine >= n or router.accepts[engine] == 0:
        if router.bad_choice < 0:
            router.bad_choice = seq
        return BAD_CHOICE
    predict(router, seqs, seq, engine)
    return engine


def _first(load, cached, accepts, prompt_tokens, session, now):
    return 0


@cache
def no_choice() -> Any:
    """What stands there where no user has a policy."""
    return _first if PLAIN else _compile(_first, True)


@cache
def find_choice(name: str) -> Callable[..., int]:
    """The function of FILE.py:NAME, compiled. UsageError says in one line what is wrong with it."""
    file, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier():
        raise UsageError(f"router.policy {name!r} is not known; `kvbench list` shows them, or my_file.py:my_policy")
    path = Path(file)
    module = load_file("router.policy", path)
    return _checked(path, function, getattr(module, function, None))


def _checked(path: Path, name: str, function: Any) -> Callable[..., int]:
    """Compiled, and called on two imaginary engines."""
    if not callable(function):
        raise UsageError(f"router.policy: {path} has no function {name}")
    plain = getattr(function, "py_func", function)
    two = np.ones(2, np.int64)
    try:
        made = plain if PLAIN else _compile(plain)
        value = plain(np.zeros((2, LOAD_COLUMNS), np.int64), np.zeros(2, np.int64), two, 1, -1, 0)
        if not isinstance(value, int | np.integer):
            raise TypeError(f"it gave {value!r}")
        return made
    except Exception as error:  # whatever numba or the function raises
        raise UsageError(
            f"router.policy: {path}: {name}(load, cached, accepts, prompt_tokens, session, now) returns the number "
            f"of an engine, and numba compiles it: {one_line(error)}"
        ) from None


def _compile(plain: Callable[..., Any], keep: bool = False) -> Any:
    """keep: on disk; Numba does not find the module of a user's file again."""
    return njit(CHOOSE_FUNCTION.signature, cache=keep, error_model="numpy")(plain)
