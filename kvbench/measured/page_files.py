"""Storage as files: one file a page in a folder, with a checksum; a file that is not what was written is no page.

A page has the file of its slot, so a folder is never larger than storage. What is written goes to another name first:
whoever stops in the middle leaves the old page, or none.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<8sqqI4x")
_MAGIC = b"kvpage01"


class BrokenPage(Exception):
    """What is wrong with a file."""


class PageFiles:
    """Pages of one size."""

    def __init__(self, folder: Path, page_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._size = folder, page_bytes

    def path(self, slot: int) -> Path:
        return self.folder / f"page-{slot:08d}.kv"

    def write(self, slot: int, content: int, page: NDArray[np.uint8]) -> None:
        """content: the chain hash that the page is known by."""
        path = self.path(slot)
        new, data = path.with_suffix(".new"), page.tobytes()
        new.write_bytes(_HEAD.pack(_MAGIC, content, len(data), zlib.crc32(data)) + data)
        os.replace(new, path)

    def read(self, slot: int, content: int) -> NDArray[np.uint8]:
        """(page bytes,). BrokenPage: it is not there, cut short, of something else, or altered."""
        path = self.path(slot)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise BrokenPage(f"{path}: {error.strerror or 'cannot be read'}") from None
        if len(raw) != _HEAD.size + self._size:
            raise BrokenPage(f"{path}: {len(raw):,} bytes instead of {_HEAD.size + self._size:,}")
        magic, of, length, checksum = _HEAD.unpack(raw[: _HEAD.size])
        if magic != _MAGIC or of != content or length != self._size:
            raise BrokenPage(f"{path}: its head is that of another page")
        if zlib.crc32(raw[_HEAD.size :]) != checksum:
            raise BrokenPage(f"{path}: its bytes do not have its checksum")
        return np.frombuffer(raw, np.uint8, offset=_HEAD.size)
