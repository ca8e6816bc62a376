"""Result folders and files: made with their parents, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import KvbenchError, UsageError


def make_folder(path: Path) -> Path:
    """The folder, made with its parents. UsageError: a file has the name, or the place cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {path}: a file with this name exists; give a folder") from None
    except NotADirectoryError:
        raise UsageError(f"-o {path}: a part of this path is a file; give a folder") from None
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"-o {path}: no permission to write there")
    return path


def check_file(option: str, path: Path) -> None:
    """UsageError: the file that an option names is a folder, has no folder, or cannot be written there."""
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no right to write there; choose another folder")


def write_whole(path: Path, pieces: Iterable[str | bytes]) -> None:
    """Write pieces of text or bytes to a file that appears under its name only when all of it is there.

    raises  KvbenchError: the disk is full, the folder has gone
    """
    try:
        _write_and_rename(path, pieces)
    except OSError as error:
        raise KvbenchError(f"cannot write {path}: {error.strerror or error}") from None


def _write_and_rename(path: Path, pieces: Iterable[str | bytes]) -> None:
    if path.is_symlink():
        path = Path(os.path.realpath(path))  # the link stays
    if path.exists() and not path.is_file():  # a device or a pipe is written to, never replaced
        with path.open("wb") as device:
            device.writelines(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.writelines(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """The process's mask; a temporary file is private, a result is as readable as any other file."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
