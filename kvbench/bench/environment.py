"""What a bug report needs: versions, machine, threads, cache folder, settings from the environment."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..core.jit import CACHE_DIR, PLAIN, source_digest
from .machine import available_bytes, git_commit, load_average, machine, numba_threads, processors, versions

OPTIONAL = ("scipy", "pandas", "joblib", "click", "tabulate", "matplotlib", "pyarrow", "distributed", "ray", "torch")
_PREFIXES = ("NUMBA_", "KVBENCH_", "OMP_", "MKL_", "OPENBLAS_")
_NAMES = ("NO_COLOR", "XDG_CACHE_HOME")


def environment() -> dict[str, Any]:
    """Nested tables of plain values."""
    return {
        "versions": versions() | {name: _version(name) for name in OPTIONAL},
        "git_commit": git_commit(),
        "python": sys.executable,
        "machine": machine()
        | {"usable_cpus": processors(), "load": round(load_average(), 2), "free_bytes": available_bytes()},
        "jit": {"compiled": not PLAIN, "digest": source_digest()} | numba_threads(),
        "cache": _cache(CACHE_DIR),
        "variables": {n: v for n, v in sorted(os.environ.items()) if n.startswith(_PREFIXES) or n in _NAMES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cache(folder: Path) -> dict[str, Any]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "folder": str(folder),
        "writable": os.access(folder, os.W_OK),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }
