"""Stand-ins for functions that take long to compile: each call leaves a line in a file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def compile_one(name: str, log: str) -> None:
    time.sleep(0.3)
    with Path(log).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


def compile_here_only(name: str, log: str, owner: str) -> None:
    """Whoever else tries dies of it, and holds the lock then."""
    if os.getpid() != int(owner):
        os._exit(1)
    compile_one(name, log)


if __name__ == "__main__":  # one of several runs that start at once
    from kvbench.core import ahead

    ahead.PLAIN = False
    ahead.begin([ahead.Unit(n, "tests.core.slow_units", "compile_one", (n, sys.argv[1]), 1.0) for n in "abc"]).finish()
