"""Compile before the first run: small commands of each kind, in processes of their own.

What a command compiles is what it calls, so nothing here lists functions that could go out of date.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..core.ahead import PROCESSES, num_cores
from ..core.errors import KvbenchError

Command = tuple[str, ...]

_SERIAL = ("--set", "overlap=false")

ENGINE: tuple[Command, ...] = (
    ("run", "chat", "--num-prompts", "3", "--preset", "vllm", "-q"),
    ("run", "chat", "--num-prompts", "3", "--preset", "sglang", "-q"),
    ("run", "chat", "--num-prompts", "3", "--preset", "vllm", *_SERIAL, "-q"),
    ("run", "chat", "--num-prompts", "3", "--preset", "sglang", *_SERIAL, "-q"),
    ("run", "chat", "--num-prompts", "3", "--preset", "vllm", "--cache-only", "-q"),
    ("run", "chat", "--num-prompts", "3", "--preset", "sglang", "--cache-only", "-q"),
)
MEASURED: tuple[Command, ...] = (
    ("run", "measured", "--num-prompts", "2", "-q"),
    ("run", "measured", "--num-prompts", "2", "--preset", "sglang", "-q"),
    ("run", "measured", "--num-prompts", "2", "--set", "measured.numerics=exact", "-q"),
)
OTHERS: tuple[Command, ...] = (
    ("run", "paper-paged-attention", "--num-prompts", "3", "-q"),
    ("run", "chat", "--num-prompts", "3", "--set", "check=true", "--set", "cache.blocks=2000", "-q"),
    ("verify", "faults", "-q"),
    ("kernels", "--check", "-q"),
)
KINDS = {"engine": ENGINE, "measured": MEASURED, "all": (*ENGINE, *MEASURED, *OTHERS)}

_PROGRAM = "import json, sys; sys.path[:], line = json.loads(sys.argv[1]); from kvbench.cli import call; "
_PROGRAM += "sys.exit(call(line))"


def warm(commands: Sequence[Command], progress: Callable[[int, int], None]) -> None:
    """Run commands, as many at once as there are cores; progress(done, all) after each.

    raises  KvbenchError: one of them failed
    """
    with ThreadPoolExecutor(num_cores()) as pool:
        progress(0, len(commands))
        for number, failure in enumerate(pool.map(_run, commands), 1):
            if failure:
                pool.shutdown(cancel_futures=True)
                raise KvbenchError(failure)
            progress(number, len(commands))


def _run(command: Command) -> str:
    """What went wrong; empty: nothing."""
    line = [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, command])]
    environment = os.environ | {PROCESSES: "1"}
    done = subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"`kvbench {' '.join(command)}` ended with exit code {done.returncode}: {last}"
