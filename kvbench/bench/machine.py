"""What ran a run: versions, CPU, commit. For run.json; a result of the modelled clock needs none of it."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from .. import __version__
from .scenarios import PACKAGE


def versions() -> dict[str, str]:
    """Versions of what a result could depend on."""
    import llvmlite
    import numba
    import numpy

    return {
        "kvbench": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
    }


def machine() -> dict[str, Any]:
    """CPU and system."""
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
    }


BUSY_LOAD = 0.5
"""Processes that run or wait per processor, over the last minute, from which times are doubtful."""


def load_average() -> float:
    """Processes that ran or waited in the last minute, per processor; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def processors() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def numba_threads() -> dict[str, Any]:
    """Of Numba's own parallel loops, which no kernel here uses."""
    import numba

    config: Any = numba.config
    return {"threads": config.NUMBA_NUM_THREADS, "threading_layer": config.THREADING_LAYER}


def available_bytes() -> int:
    """Memory that could be had now: what the system calls available, else all that is installed."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def cpu_name() -> str:
    """The CPU's own name where the system tells it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit() -> str:
    """The commit of the checkout this runs from, with `-dirty` where files differ; "" elsewhere."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return ""
    import subprocess

    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
