"""What a user sees while functions compile: one line, or on a terminal a bar that says what, and how long it takes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from numba.core import event

from .cache_folder import OF_PARENT

_NOTICE = "compiling for this machine"
_KEPT = " (first run after an install or an update; kept for the next one)"

_SMALL_S = 14.0
"""Of the many small functions of a run together, where large ones compile too (same machine as those of the units)."""

_TICK_S = 0.2
_WIDTH = 16


class Expected(Protocol):
    """A large function that will be compiled, here or by another process."""

    @property
    def name(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    def is_kept(self) -> bool: ...


class CompileWatch(event.Listener):
    """Counts functions that are really compiled (not loaded), and shows it on stderr.

    seconds     spent here; functions: how many, inner ones too
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.functions = 0
        self.quiet = False
        self._depth = 0
        self._start = 0.0
        self._begin = 0.0
        self._now = ""
        self._units: Sequence[Expected] = ()
        self._lanes = 1
        self._ticker: _Ticker | None = None

    def expect(self, units: Sequence[Expected], processes: int) -> None:
        """These will be compiled, by so many processes."""
        self._units, self._lanes = units, processes
        self._begin = time.perf_counter()

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._start = time.perf_counter()
            if self.functions == 0:
                self._announce()
            self.show(_name_of(event))
        self._depth += 1
        self.functions += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._start
            self.hide()

    def _announce(self) -> None:
        self._begin = time.perf_counter()
        if not self.quiet and not sys.stderr.isatty():
            kept = "" if os.environ.get(OF_PARENT) else _KEPT  # a private folder goes with its process
            print(f"kvbench: {_NOTICE}{kept}", file=sys.stderr, flush=True)

    def show(self, what: str) -> None:
        """Something compiles from now on, or is waited for, until `hide`."""
        self._now = what
        if self._ticker is None and not self.quiet and sys.stderr.isatty():
            self._ticker = _Ticker(self._line)
            self._ticker.start()

    def hide(self) -> None:
        """The line goes; what is written next begins on an empty one."""
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def _line(self) -> str:
        elapsed = time.perf_counter() - self._begin
        if not self._units:
            return f"kvbench: compiling for this machine, once: {elapsed:.0f} s ({self._now})"
        left = self._left(elapsed)
        filled = min(round(_WIDTH * elapsed / (elapsed + left)), _WIDTH)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        running = ", ".join(u.name.rpartition(".")[2] for u in self._units if not u.is_kept()) or self._now
        return f"kvbench: compiling [{bar}] about {max(left, 1):.0f} s left: {running}"

    def _left(self, elapsed: float) -> float:
        """Seconds; the speed of this machine shows once a good part is done."""
        total = _SMALL_S + sum(u.seconds for u in self._units)
        done = min(self.seconds, _SMALL_S) + sum(u.seconds for u in self._units if u.is_kept())
        if done > total / 3:
            return (total - done) * elapsed / done
        return max(total / self._lanes - elapsed, elapsed / 4)


class _Ticker(threading.Thread):
    """Draws a line again and again: LLVM holds a function for seconds and tells nobody."""

    def __init__(self, line: Any) -> None:
        super().__init__(daemon=True)
        self._line = line
        self._over = threading.Event()
        self._drawn = False

    def run(self) -> None:
        while not self._over.wait(_TICK_S):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{self._line()[:width]}\x1b[K")
            sys.stderr.flush()
            self._drawn = True

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _name_of(event: Any) -> str:
    function = event.data["dispatcher"].py_func
    return f"{str(function.__module__).removeprefix('kvbench.')}.{function.__name__}"


compile_watch = CompileWatch()
event.register("numba:compile", compile_watch)  # type: ignore[no-untyped-call]
