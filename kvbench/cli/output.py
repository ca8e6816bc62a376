"""What the commands that run something share: their options as changes, their files, and what they say on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.printable import printable

if TYPE_CHECKING:
    from ..bench.run import Result

STDOUT = "-"


def changes_of(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    """Options of this command that are keys, as changes of the configuration."""
    changes = cache_state(parameters)
    if parameters["answers"] is not None:
        option = "--answers" if parameters["answers"] else "--no-answers"
        changes.append((option, f"offline.answers={str(parameters['answers']).lower()}"))
    if parameters["warm_up"] is not None:
        changes.append(("--warm-up", f"offline.warm_up={parameters['warm_up']}"))
    return changes


def cache_state(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    """--cache-state as a change of the configuration."""
    state = parameters["cache_state"]
    return [] if state is None else [("--cache-state", f"cache.state={state}")]


def write_files(folder: Path, result: Result, parameters: dict[str, Any]) -> list[str]:
    """The files of one run, as --steps and --format ask for them."""
    from ..report.result_files import write_result

    steps, table_format = parameters["steps"], parameters["table_format"]
    return write_result(folder, result.record, result.document, result.journal, result.requests, steps, table_format)


def quiet_compiler(quiet: bool) -> None:
    from ..core.compile_watch import compile_watch

    compile_watch.quiet = quiet


def say(text: str) -> None:
    click.echo(f"kvbench: {printable(text)}", err=True)
