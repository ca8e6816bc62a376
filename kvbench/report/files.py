"""Result folders and files: made with their parents, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import KvbenchError, UsageError

OF_SOME = ("engines.csv", "ranks.csv", "experts.csv", "eplb.csv")
"""Tables that only some runs have."""

WRITTEN = (
    *(f"{table}.{kind}" for table in ("requests", "steps", "itl") for kind in ("csv", "parquet")),
    *("summary.csv", "run.json", "grid.csv", "sweep.csv", "comparison.csv", "fidelity.csv", "fidelity.json"),
    *OF_SOME,
    *("advice.csv", "advice.json", "best.toml"),
)
"""Files of result folders; and .attempts of points whose worker died."""

RECORDINGS = (".jsonl", ".jsonl.gz")
"""What `kvbench record` writes."""

_BEGINS = {
    "requests.csv": b"request_id,",
    "summary.csv": b"run,",
    "steps.csv": b"start_ms,",
    "itl.csv": b"percentile,",
    "run.json": b'{\n  "kind": "kvbench.',
}
"""Names that other programs give to their files too; what kvbench writes under them begins like this."""


def result_folder(path: Path, force: bool) -> Path:
    """A folder for results, made with its parents. force: also one that holds files which kvbench did not write.

    raises  UsageError: as make_folder; it holds other files
    """
    check_foreign(path, force)
    return make_folder(path)


def check_foreign(path: Path, force: bool, also: tuple[str, ...] = ()) -> None:
    """UsageError: it is a folder that holds files which kvbench did not write. Nothing is made.

    also   suffixes of files that may be there besides
    """
    if not force and path.is_dir() and (other := _foreign(path, (".attempts", *also))):
        raise UsageError(f"-o {path}: holds {other}, which kvbench did not write; give another folder, or add --force")


def _foreign(folder: Path, suffixes: tuple[str, ...]) -> str:
    """The first file below a folder that is no result; hidden ones do not count. Empty: there is none."""
    try:
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if inner := _foreign(entry, suffixes):
                    return f"{entry.name}/{inner}"
            elif not entry.name.endswith(suffixes) and not _is_result(entry):
                return entry.name
    except OSError:
        return ""  # make_folder says what is wrong with it
    return ""


def _is_result(file: Path) -> bool:
    """Whether it has the name, and the beginning, of a file that kvbench writes; a cut one has, too."""
    if file.name not in WRITTEN:
        return False
    begin = _BEGINS.get(file.name, b"")
    with file.open("rb") as content:
        return begin.startswith(content.read(len(begin)))


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
