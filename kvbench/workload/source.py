"""The bytes of a trace: a file, a folder of files, or standard input (`-`); gzip is unpacked."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .rows import I64

STDIN = "-"

_GZIP = b"\x1f\x8b"
_COMPRESSED = (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
_IN_FOLDERS = (".json", ".jsonl", ".csv", ".json.gz", ".jsonl.gz", ".csv.gz")


@dataclass(frozen=True)
class Source:
    """One file: its name as errors show it, and its bytes, unpacked."""

    name: str
    data: bytes

    def text(self) -> str:
        """UsageError: binary, or not UTF-8 (with its line)."""
        if b"\0" in self.data:
            raise UsageError(f"{self.name}: is a binary file, not a trace; wanted is JSON, JSON Lines or CSV")
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{self.name}:{line}: is not UTF-8 text; wanted is JSON, JSON Lines or CSV") from None

    def lines(self) -> tuple[list[str], I64]:
        """Non-empty lines, and their numbers from 1. UsageError: there are none."""
        # not splitlines(): a JSON string may hold U+2028 and its like
        stripped = [line.strip() for line in self.text().split("\n")]
        numbers = np.array([number for number, line in enumerate(stripped, 1) if line], np.int64)
        lines = [line for line in stripped if line]
        if not lines:
            raise UsageError(f"{self.name}: the trace is empty")
        return lines, numbers

    def document(self) -> Any:
        """The whole file as one JSON value. UsageError names the line at which it ceases to be JSON."""
        try:
            return json.loads(self.text())
        except json.JSONDecodeError as error:
            raise UsageError(f"{self.name}:{error.lineno}: is not JSON: {error.msg}; is the file cut off?") from None
        except (ValueError, RecursionError):
            raise UsageError(f"{self.name}: is not JSON: nested too deeply, or a number too long") from None


@dataclass(frozen=True)
class Trace:
    """A trace as the user named it: one file, or the files of a folder in order of name.

    notes   what there is to say of the folder
    found   written by the reader: what it had to decide ("time unit", "turns"), for those who look at the trace
    """

    name: str
    files: tuple[Source, ...]
    is_folder: bool = False
    notes: tuple[str, ...] = ()
    found: dict[str, str] = field(default_factory=dict)

    def single(self) -> Source:
        """The one file of a format that knows no folders."""
        if len(self.files) != 1:
            raise UsageError(
                f"{self.name}: is a folder of {len(self.files)} files, and this format is one file; name a trace file "
                f"in it, such as {self.files[0].name}"
            )
        return self.files[0]

    def sha256(self) -> str:
        """Of the bytes; of a folder: of each file's name and sum."""
        sums = [hashlib.sha256(file.data) for file in self.files]
        if not self.is_folder:
            return sums[0].hexdigest()
        told = "".join(f"{Path(f.name).name} {s.hexdigest()}\n" for f, s in zip(self.files, sums, strict=True))
        return hashlib.sha256(told.encode()).hexdigest()


def open_trace(name: str) -> Trace:
    """UsageError: missing, unreadable, a folder without traces, compressed by something other than gzip."""
    if name == STDIN:
        return Trace("<stdin>", (Source("<stdin>", _unpacked("<stdin>", sys.stdin.buffer.read())),))
    try:
        path = Path(name)
        if not path.is_dir():
            return Trace(name, (_read(name, path),))
        found, notes = _in_folder(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise UsageError(
            f"{name}: is a folder without sessions, here and below (no .json, .jsonl or .csv file); name a trace"
        )
    return Trace(name, tuple(_read(str(p), p) for p in found), is_folder=True, notes=notes)


def _in_folder(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The traces in a folder, or where there are none those below it; a note on what lies below and is not read."""
    here = sorted(p for p in path.iterdir() if p.name.endswith(_IN_FOLDERS) and p.is_file())
    below = sorted(p for p in path.rglob("*") if p.parent != path and p.name.endswith(_IN_FOLDERS) and p.is_file())
    if not here or not below:
        return here or below, ()
    first = below[0].relative_to(path).parts[0]
    return here, (f"{len(below)} files in sub-folders ({first}, ...) are not read; name one of them to read it",)


def _read(name: str, path: Path) -> Source:
    try:
        return Source(name, _unpacked(name, path.read_bytes()))
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file; check trace.path") from None
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from None


def _unpacked(name: str, data: bytes) -> bytes:
    if data.startswith(_COMPRESSED):
        raise UsageError(f"{name}: is compressed; unpack it first, or use gzip")
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        raise UsageError(f"{name}: is a damaged gzip file; is it cut off?") from None
