"""Leads an engine through scripts and writes what it did, in the form that `verify golden` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...core.errors import UsageError
from ...report.files import make_folder, write_whole
from ..golden import COMPONENTS
from ..recording import Row
from . import scripts, sglang_scripts
from .adapting import GaveUp
from .scripts import Fields, Script

MakeScript = Callable[[int, int, int, str], Script]

SCRIPTS: dict[str, tuple[MakeScript, ...]] = {
    "vllm": (scripts.manager_script, scripts.scheduler_script, scripts.cadence_script),
    "sglang": (sglang_scripts.radix_script, sglang_scripts.policy_script, sglang_scripts.scheduler_script),
}
"""Engine -> makers of scripts: (seed, number of the stream, operations, version of the engine)."""

REHEARSED = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""The versions that kvbench's own code stands in for."""


class Subject(Protocol):
    """An engine's component that is being recorded: what verify.stream.Stream is to a replay."""

    def step(self, row: Row) -> Fields: ...

    def last(self) -> Fields: ...


MakeSubject = Callable[[Script], Subject | None]
"""None: this version of the engine has not the rules that the script is about."""


def record(
    engine: str, folder: Path, seed: int, streams: int, operations: int, rehearse: bool = False
) -> tuple[list[Path], list[str]]:
    """Record so many streams of every component into a folder.

    returns    the files; and of each stream in which the engine gave up, which is not kept, its name and why
    rehearse   kvbench's own code takes the place of the engine; the files say so
    raises     UsageError: the engine cannot be imported, the folder cannot be made
    """
    make, found = (_rehearsal(engine), REHEARSED[engine]) if rehearse else _installed(engine)
    make_folder(folder)
    note = "recorded from kvbench's own code, not from the engine" if rehearse else ""
    written, lost = [], []
    for make_script in SCRIPTS[engine]:
        for number in range(streams):
            script = make_script(seed, number, operations, found)
            path = folder / f"{script.name}.jsonl"
            try:
                with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
                    subject = make(script)
                    if subject is not None:
                        write_whole(path, lines(script, engine, found, subject, note))
                        written.append(path)
            except GaveUp as error:
                lost.append(f"{script.name}: {' '.join(str(error).split())}")
    return written, lost


def lines(script: Script, engine: str, found: str, subject: Subject, note: str = "") -> Iterator[str]:
    """The lines of one recording, as they happen."""
    header = {"engine": engine, "version": found, "component": script.component, **script.header}
    header["notes"] = "; ".join(part for part in (header["notes"], note) if part)
    yield _line(header)
    rows = script.operations()
    row = next(rows, None)
    number = 2
    while row is not None:
        wanted = row.pop("out", {})
        out = subject.step(Row({**row, "out": wanted}, Path(script.name), number))
        idle = {"idle": True} if out.get("idle") else {}
        seen = {name: value for name, value in out.items() if name != "idle"}
        yield _line(row | idle | ({"out": seen} if seen else {}))
        number += 1
        try:
            row = rows.send(out)
        except StopIteration:
            row = None
    yield _line(subject.last())


def _line(value: Fields) -> str:
    return json.dumps(value, separators=(",", ":"), default=lambda number: number.item()) + "\n"


def _rehearsal(engine: str) -> MakeSubject:
    def make(script: Script) -> Subject:
        header = {"engine": engine, "version": REHEARSED[engine], "component": script.component, **script.header}
        rows = [_row(fields, script) for fields in script.planned]
        return COMPONENTS[script.component](_row(header, script), rows)

    return make


def _row(fields: Fields, script: Script) -> Row:
    """Nested objects become rows too, as they do when a file is read."""
    return Row(
        {
            k: _row(v, script)
            if isinstance(v, dict)
            else [_row(x, script) if isinstance(x, dict) else x for x in v]
            if isinstance(v, list)
            else v
            for k, v in fields.items()
        },
        Path(script.name),
        1,
    )


def _installed(engine: str) -> tuple[MakeSubject, str]:
    try:
        adapter: Any = import_module(f".{engine}", __package__)
        return adapter.load(), version(engine)
    except (ImportError, PackageNotFoundError) as error:
        why = " ".join(str(error).split())
        raise UsageError(
            f"--engine {engine}: {engine} cannot be imported here ({why}); run this in the environment where it is "
            "installed, or add --rehearse to record kvbench's own code"
        ) from None
