"""The digest of a point: equal digests are equal results, so what is there need not be run again.

It covers every key (nothing open), the content of every file that a key names, the code that decides results, and
NumPy, which draws workloads. The machine is part of it on the measured clock only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import __version__
from ..bench.machine import cpu_name
from ..bench.scenarios import PACKAGE
from ..bench.system import System
from ..report.record import SCHEMA

DECIDES_NOTHING = ("cli", "gate", "report", "speed", "sweep", "verify")
"""Rooms that show or compare results and make none."""

_CHUNK = 1 << 20


def point_digest(system: System) -> str:
    """16 hex digits."""
    config = system.config.tree()
    facts = {
        "config": config,
        "files": contents(config),
        "code": code_digest(),
        "versions": [__version__, SCHEMA, version("numpy")],
        "machine": cpu_name() if system.config["clock"] == "measured" else "",
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def contents(config: dict[str, Any]) -> dict[str, str]:
    """What lies in the files that nested tables name: path -> digest."""
    return {name: _content(Path(name)) for name in sorted(set(_files(config)))}


@cache
def code_digest() -> str:
    """Of the sources of all rooms that results depend on."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.parts[0] not in DECIDES_NOTHING:
            found.update(relative.as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _files(value: Any) -> Iterator[str]:
    """Absolute paths among the values; FILE.py:NAME names its file."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _files(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _files(inner)
    elif isinstance(value, str) and value.startswith("/"):
        file, colon, _ = value.rpartition(":")
        yield file if colon and file.endswith(".py") else value


def _content(path: Path) -> str:
    """Of a file; of a model's folder its config.json, and names and sizes of the rest."""
    if path.is_dir():
        listed = sorted((p.name, p.stat().st_size) for p in path.iterdir() if p.is_file())
        return f"{_content(path / 'config.json')} {listed}"
    if not path.is_file():
        return ""
    status = path.stat()
    return _sha256(str(path), status.st_mtime_ns, status.st_size)


@cache
def _sha256(path: str, _modified_ns: int, _size: int) -> str:
    """Once for all points that name the file as it is now."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
