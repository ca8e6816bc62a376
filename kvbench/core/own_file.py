"""A user's Python file that a key names as FILE.py:NAME: read in, with one line for whatever is wrong with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from .errors import UsageError


def load_file(key: str, path: Path) -> ModuleType:
    """The module in a file. key: the one that names it, for the error.

    raises  UsageError: there is no such file, it is not Python, or it raises something
    """
    if not path.is_file():
        raise UsageError(f"{key}: {path}: no such file; write it as my_file.py:my_policy")
    spec = importlib.util.spec_from_file_location(f"kvbench_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{key}: {path} is not a Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises
        raise UsageError(f"{key}: {path} cannot be run: {one_line(error)}") from None
    return module


def one_line(error: Exception) -> str:
    """What an error of Python or Numba says, without where in Numba it was said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Failed in", "- Resolution", "During:", "File ", "["))]
    return f"{type(error).__name__}: {(told or lines or ['no message'])[0][:200]}"
