"""Large functions compiled by several processes at once, before they are needed.

    helpers = begin(units)      processes beside this one start to compile
    ...                         this one does something else, and compiles what that takes
    helpers.finish()            it takes part; afterwards all units are in the cache

Whoever compiles a unit holds a lock file in the cache meanwhile, so nobody compiles what another is at: not the helpers
of one run, nor two runs that start at once. A process that dies lets go of its lock. Where there is one core, or
no such locks, `finish` compiles everything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from .compile_watch import compile_watch
from .jit import CACHE_DIR, PLAIN

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

PROCESSES = "KVBENCH_COMPILE_PROCESSES"
"""Environment: how many processes of one run compile at once; else as many as there are cores."""

_PROGRAM = "import json, sys; sys.path[:], units = json.loads(sys.argv[1]); from kvbench.core.ahead import help_with; "
_PROGRAM += "help_with(units)"


@dataclass(frozen=True)
class Unit:
    """A call that compiles one large function: `function(*arguments)` of a module.

    seconds   that it takes on some machine: units are weighed with it against each other
    """

    name: str
    module: str
    function: str
    arguments: tuple[str, ...]
    seconds: float

    @property
    def _done(self) -> Path:
        return CACHE_DIR / f"{self.name}.done"

    def is_kept(self) -> bool:
        """Whether the cache has it."""
        return self._done.exists()

    def compile(self) -> None:
        getattr(import_module(self.module), self.function)(*self.arguments)
        self._done.touch()

    @contextmanager
    def lock(self, wait: bool) -> Iterator[bool]:
        """Hold its lock. Gives False where another process does, if that is not waited for."""
        if fcntl is None:
            yield True
            return
        with open(CACHE_DIR / f"{self.name}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass  # a file system without locks: at worst something is compiled twice
            yield True


class Helpers:
    """Processes that compile units; see begin."""

    def __init__(self, units: Sequence[Unit], processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._units = units
        self._processes = processes

    def finish(self) -> None:
        """Compile what nobody is at, the last ones first (helpers begin at the other end), and wait for the rest."""
        for unit in reversed(self._units):
            _take_part(unit, wait=False)
        if self._units:
            compile_watch.show("in other processes")
            for process in self._processes:
                process.wait()
            for unit in self._units:  # what another run is at, or a helper did not live to end
                _take_part(unit, wait=True)
            compile_watch.hide()


def begin(units: Sequence[Unit]) -> Helpers:
    """Start helpers for the units that the cache does not have: as many as there are cores beside this one's."""
    missing = [] if PLAIN else [unit for unit in units if not unit.is_kept()]
    most = int(os.environ.get(PROCESSES) or num_cores())
    num = 0 if fcntl is None or not sys.executable else max(min(most, len(missing)) - 1, 0)
    helpers = [helper for _ in range(num) if (helper := _helper(missing)) is not None]
    compile_watch.expect(missing, 1 + len(helpers))
    return Helpers(missing, helpers)


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _helper(units: Sequence[Unit]) -> subprocess.Popen[bytes] | None:
    """None: there may be no more processes, and this one compiles alone."""
    order = [[u.name, u.module, u.function, u.arguments, u.seconds] for u in units]
    command = [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, order])]
    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    except OSError:
        return None


def help_with(units: Sequence[Sequence[object]]) -> None:
    """What a helper does: it compiles what nobody is at, while the process that started it lives."""
    parent = os.getppid()
    compile_watch.quiet = True
    for name, module, function, arguments, seconds in units:
        if os.getppid() == parent:
            _take_part(Unit(name, module, function, tuple(arguments), seconds), wait=False)  # type: ignore


def _take_part(unit: Unit, wait: bool) -> None:
    if unit.is_kept():
        return
    with unit.lock(wait) as held:
        if held and not unit.is_kept():
            unit.compile()
