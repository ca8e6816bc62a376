"""`kvbench trace`: look at a trace, convert it, fit a declared workload to it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..core.errors import EXIT_OK, UsageError
from ..core.printable import printable
from .output import quiet_compiler, say

if TYPE_CHECKING:
    from ..workload.build import Workload

F = TypeVar("F", bound=Callable[..., Any])


@click.group(invoke_without_command=True)
@click.pass_context
def trace_command(context: click.Context) -> int:
    """Look at traces, convert them, fit declared workloads to them.

    A trace is a file, a folder of sessions, or - (standard input); gzip is unpacked. Its format is told by its content.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return EXIT_OK


def reading_options(command: F) -> F:
    """How a trace is read; `_loaded` heeds them."""
    options = (
        click.option("--format", "form", metavar="NAME", help="Of the trace, where its content does not tell it."),
        click.option("--num-prompts", metavar="N", help="Only the first N requests."),
        click.option("--seed", metavar="N", help="Of arrivals and lengths that the trace does not have."),
        click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any trace.* key (kvbench config)."),
        click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@trace_command.command("info")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one document for each trace, in a list.")
def info_command(files: tuple[str, ...], as_json: bool, **parameters: Any) -> int:
    """Rows, rates, lengths, bursts, reuse, hit rates.

    Wrong rows are left out and counted. Percentiles are linear between order statistics.
    """
    quiet_compiler(parameters["quiet"])
    from ..bench.trace_info import trace_info
    from ..report.run_json import to_text
    from ..report.trace_table import info_table

    found = [trace_info(*_loaded(file, parameters, skip=True)) for file in files]
    click.echo(to_text(found) if as_json else "\n".join(map(info_table, found)), nl=False)
    return EXIT_OK


@trace_command.command("convert")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="FILE", required=True, help="Written whole or not at all; .gz is packed.")
@click.option("--to", "target", type=click.Choice(["kvbench", "mooncake"]), default="kvbench", show_default=True,
              help="kvbench loses nothing.")  # fmt: skip
@click.option(
    "--block-tokens", metavar="N", type=click.IntRange(1), help="Of Mooncake's ids; else the trace's, or 512."
)
@click.option("--skip-bad-rows", is_flag=True, help="Leave wrong rows out, and count them.")
@reading_options
def convert_command(
    file: str, output: str, target: str, block_tokens: int | None, skip_bad_rows: bool, **parameters: Any
) -> int:
    """Write a trace in kvbench's own form, or as Mooncake JSON Lines.

    What the form cannot say is named, one line for each loss.
    """
    from ..workload import mooncake_out
    from ..workload.formats.kvbench import write

    path = _writable(output)
    if path.exists() and Path(file).exists() and path.samefile(file):
        raise UsageError(f"-o {output} is the trace itself; name another file")
    requests, _ = _loaded(file, parameters, skip_bad_rows)
    block = block_tokens or requests.block_hint or 512
    lost = [] if target == "kvbench" else mooncake_out.losses(requests, block)
    _write(path, write(requests) if target == "kvbench" else mooncake_out.write(requests, block))
    if not parameters["quiet"]:
        for note in requests.notes:
            _tell("note", note)
        for text in lost:
            _tell("lost", text)
        if target == "mooncake" and (keys := mooncake_out.keys_to_read(requests, block)):
            say(f"read it with {' and '.join(keys)}")
        say(f"wrote {len(requests):,} requests to {path}; fingerprint {requests.fingerprint()[:16]}")
    return EXIT_OK


def _tell(label: str, text: str) -> None:
    """One note, in lines that fit a terminal."""
    click.echo(textwrap.fill(f"kvbench: {label}: {printable(text)}", 100, subsequent_indent="    "), err=True)


@trace_command.command("fit")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="FILE.toml", required=True, help="The declared workload.")
@click.option("--skip-bad-rows", is_flag=True, help="Leave wrong rows out, and count them.")
@reading_options
def fit_command(file: str, output: str, skip_bad_rows: bool, **parameters: Any) -> int:
    """Fit a declared workload, and print how far the two are apart.

    Lengths, arrivals, and sessions or groups of shared prefixes; `kvbench run FILE.toml` runs it.
    """
    path = _writable(output)
    if path.exists() and Path(file).exists() and path.samefile(file):
        raise UsageError(f"-o {output} is the trace itself; name another file")
    quiet_compiler(parameters["quiet"])
    from ..bench.trace_fit import fit_trace
    from ..report.trace_table import fit_table, workload_toml

    requests, source = _loaded(file, parameters, skip_bad_rows)
    fit = fit_trace(requests)
    name = source.path if source else file
    apart = ", ".join(f"{what} {value[2]:.4f}" for what, value in fit.distances.items())
    comments = (f"Fitted to {Path(name).name} ({requests.fingerprint()[:16]}).", f"Apart: {apart}.")
    _write(path, iter([workload_toml(fit.tables, comments)]))
    click.echo(fit_table(fit.block_tokens, fit.distances), nl=False)
    if not parameters["quiet"]:
        say(f"wrote {path}")
    return EXIT_OK


def _loaded(file: str, parameters: dict[str, Any], skip: bool) -> Workload:
    """The requests of a trace, by the configuration that a run would have."""
    from ..bench.configure import configure
    from ..workload.build import build_workload

    changes = [("--set", text) for text in parameters["sets"]]
    for option, key in (("form", "trace.format"), ("num_prompts", "num_prompts"), ("seed", "seed")):
        if parameters[option] is not None:
            changes.append((f"--{option.replace('form', 'format').replace('_', '-')}", f"{key}={parameters[option]}"))
    if skip:
        changes.append(("--skip-bad-rows", "trace.skip_bad_rows=true"))
    return build_workload(configure(None, file, changes).config.tree())


def _writable(output: str) -> Path:
    """The path, before a long reading is done for nothing. UsageError: its folder is not there."""
    path = Path(output)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"-o {output}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; name a file")
    return path


def _write(path: Path, pieces: Iterator[str]) -> None:
    import gzip

    from ..report.files import write_whole

    if path.suffix != ".gz":
        write_whole(path, pieces)
        return
    write_whole(path, [gzip.compress("".join(pieces).encode(), mtime=0)])
