"""One point of a sweep, in whichever process it runs: run it, and write its files before anyone is told.

A worker writes to the folder itself, so a sweep that is interrupted, or whose workers die, keeps every point that
ended; run.json comes last and holds the digest and the figures. On a cluster the folder has to be a shared one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..bench.configure import Configured
from ..bench.run import run
from ..bench.system import build_system
from ..core.compile_watch import compile_watch
from ..core.config import Config
from ..core.errors import KvbenchError
from ..report.files import make_folder
from ..report.grid import run_figures
from ..report.result_files import cut_files, write_result
from ..workload.build import Workload, build_workload, workload_part
from .digest import contents

MOST_ATTEMPTS = 3
"""Workers that may die at one point. dask gives a task up at the fourth, and its answer never comes."""

POINT = "point"
"""The entry of run.json that makes it a point of a sweep."""


@dataclass(frozen=True)
class Task:
    """What one worker gets. folder: of this point alone."""

    index: int
    configured: Configured
    folder: Path
    digest: str
    steps: bool = False


@dataclass(frozen=True)
class Outcome:
    """What is left of it in memory. error: why there are no figures; expected: False where that is kvbench's fault."""

    index: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    expected: bool = True
    warnings: tuple[str, ...] = ()


def run_task(task: Task) -> Outcome:
    """Run and write one point; a point that cannot run says why.

    raises  KeyboardInterrupt: the run was cut short, and nothing was written
    """
    compile_watch.quiet = True  # the notice of several workers at once would help nobody
    if (there := finished(task.folder, task.digest, task.steps)) is not None:
        return Outcome(task.index, there)  # a cluster runs a task again when its answer was lost with a worker
    with _attempt(task.folder) as number:
        if number > MOST_ATTEMPTS:
            error = f"{MOST_ATTEMPTS} workers died while they ran it (out of memory?)"
            return Outcome(task.index, error=error, expected=False)
        return _run(task)


def _run(task: Task) -> Outcome:
    try:
        config = build_system(task.configured.config).config
        result = run(task.configured, None, task.steps, shared_workload(config))
        if not result.record.complete:
            raise KeyboardInterrupt
        figures = run_figures(result.record)
        document = {**result.document, POINT: {"digest": task.digest, "figures": figures}}
        make_folder(task.folder)
        write_result(task.folder, result.record, document, result.journal, result.requests, task.steps)
    except KvbenchError as error:
        return Outcome(task.index, error=str(error))
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome(task.index, error=f"unexpected {type(error).__name__}: {text}", expected=False)
    return Outcome(task.index, figures, warnings=result.warnings)


@contextmanager
def _attempt(folder: Path) -> Iterator[int]:
    """Which attempt at this point it is. A byte in a file for each: it goes, unless the process is killed."""
    marks = attempts_file(folder)
    make_folder(marks.parent)
    with open(marks, "ab") as file:
        file.write(b".")
        number = file.tell()
    try:
        yield number
    finally:
        marks.unlink(missing_ok=True)


def attempts_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.attempts")


def shared_workload(config: Config) -> Workload:
    """The workload of a configuration: that of the run before, in this process, where it is the same."""
    part = workload_part(config.tree())
    return _workload(json.dumps(part, sort_keys=True), json.dumps(contents(part)))


@lru_cache(maxsize=1)
def _workload(part: str, _contents: str) -> Workload:
    """Neighbouring points mostly share their workload; a worker may outlive the files it was read from."""
    return build_workload(json.loads(part))


def finished(folder: Path, digest: str, steps: bool) -> dict[str, Any] | None:
    """The figures of a point that is there already; None where it has to be run."""
    try:
        document = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        point = document[POINT]
        whole = document["complete"] and point["digest"] == digest and not cut_files(folder, document)
        whole = whole and (folder / "summary.csv").exists()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not whole or (steps and not (folder / "steps.csv").exists()):
        return None
    return dict(point["figures"])
