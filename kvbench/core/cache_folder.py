"""Where compiled code is kept: in a folder that nobody else can write.

Numba's indexes are pickles, and reading a pickle runs what it says. So a folder is used only if it is the user's own
and closed to others; else one is made for this process and its workers, and removed at its end.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

OF_PARENT = "KVBENCH_JIT_CACHE"
"""Environment: the private folder of the process that started this one."""

_KEEP_DIGESTS = 4
_PRUNE_AFTER_S = 3600.0


def cache_root() -> Path:
    """The folder that holds the digests: NUMBA_CACHE_DIR, else kvbench/jit in the user's cache folder."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kvbench" / "jit"


def reason_against(folder: Path) -> str:
    """Why compiled code must not be kept there; empty: it may. The folder is made if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    if hasattr(os, "geteuid"):
        if found.st_uid != os.geteuid():
            return "belongs to another user"
        if found.st_mode & 0o022:
            return "can be written by others (chmod go-w)"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


def choose_cache(digest: str) -> Path:
    """The folder of a digest, which is there afterwards. Says so where it is not the user's lasting one."""
    root = Path(os.environ.get(OF_PARENT) or cache_root())
    reason = reason_against(root) or reason_against(root / digest)
    if reason:
        refused, root = root, Path(tempfile.mkdtemp(prefix="kvbench-jit-"))  # readable by this user alone
        os.environ[OF_PARENT] = str(root)
        atexit.register(_remove, root, os.getpid())
        print(
            f"kvbench: {refused} {reason}: compiled code is not kept; set NUMBA_CACHE_DIR to a folder of your own",
            file=sys.stderr,
            flush=True,
        )
        (root / digest).mkdir(mode=0o700)
    prune(root, root / digest)
    return root / digest


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def prune(root: Path, keep: Path) -> None:
    """Remove old digests; a folder that another process has just used stays."""
    try:
        folders = [p for p in root.iterdir() if p.is_dir() and len(p.name) == 16 and p != keep]
        folders.sort(key=lambda p: p.stat().st_mtime, reverse=True)
        for old in folders[_KEEP_DIGESTS - 1 :]:
            if time.time() - old.stat().st_mtime > _PRUNE_AFTER_S:
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        pass  # pruning is a courtesy; a run never fails for it
