"""`kvbench advise`: from a symptom to a lever."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, UsageError
from .options import RunCommand, as_typed, check_target, configuration_options, configured, force_option, promises
from .output import quiet_compiler, say
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..report.advice import Advice

SEEDS, BUDGET = 5, 24


@click.command(cls=RunCommand)
@configuration_options
@click.option("--slo", "slos", metavar="SLO", multiple=True, help="A percentile by itself: ttft.p99:500 (repeatable).")
@click.option("--budget", metavar="N", type=click.IntRange(min=1), default=BUDGET, help=f"Changes to try. [{BUDGET}]")
@click.option("--seeds", metavar="K", type=click.IntRange(min=1), default=SEEDS, help=f"From --seed on. [{SEEDS}]")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Workers at most; all cores without it.")
@click.option(
    "--from-server",
    "server_files",
    metavar="FILE",
    multiple=True,
    help="Tell from /metrics (once, or read twice) or a benchmark's result; nothing is run.",
)
@click.option("--plot", metavar="FILE", help="Draw what each change makes of the tail: .svg or .png.")
@click.option(
    "-o", "--output", metavar="DIR", help="Write advice.json, advice.csv and, where a lever helps, best.toml."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def advise_command(**parameters: Any) -> int:
    """Name what X suffers from, try what may help on the same requests, and say what each change is worth.

    kvbench advise chat --request-rate 40 --goodput ttft:500 tpot:50

    Symptoms have their evidence; levers are changes of keys, each run under the same seeds and judged as by `gate`.
    Without a promise the tails that the symptoms lengthen are to become better.
    """
    if parameters["server_files"]:
        return _from_server(parameters)
    check_target(parameters)
    from ..report.files import result_folder

    output = parameters["output"]
    folder = None if output is None else result_folder(Path(output), parameters["force"])
    if parameters["plot"] is not None:
        from ..report.plot import check_picture

        check_picture(Path(parameters["plot"]))
    quiet_compiler(parameters["quiet"])
    found = _advice(parameters)
    _draw(found, parameters)
    click.echo(_shown(found, parameters["as_json"]), nl=False)
    if folder is not None:
        names = _write(folder, found, parameters)
        if not parameters["quiet"]:
            say(f"wrote {', '.join(names)} to {folder}")
    return EXIT_OK


def _draw(found: Advice, parameters: dict[str, Any]) -> None:
    """The picture, where there is a change to draw."""
    if parameters["plot"] is None:
        return
    from ..report.advice import advice_document
    from ..report.files import write_whole
    from ..report.pictures.advice import advice_charts
    from ..report.plot import picture

    path, charts = Path(parameters["plot"]), advice_charts(advice_document(found))
    if charts:
        write_whole(path, [picture(charts, path.suffix)])
    if not parameters["quiet"]:
        say(f"wrote {path}" if charts else "--plot: no change was tried, so there is nothing to draw")


def _from_server(parameters: dict[str, Any]) -> int:
    """What a server's own figures show, without a run."""
    if parameters["target"] is not None or parameters["trace"] is not None or parameters["output"] is not None:
        raise UsageError(
            "--from-server runs nothing: leave X, --trace and -o out (--from may say what its command was)"
        )
    from ..advise.server_symptoms import findings
    from ..advise.server_view import read_view
    from ..report.run_json import to_text
    from ..report.server import server_document, server_table

    view = read_view([Path(path) for path in parameters["server_files"]])
    found = findings(view, _places(parameters))
    shown = to_text(server_document(view.source, found)) if parameters["as_json"] else server_table(view.source, found)
    click.echo(shown.rstrip("\n"))
    return EXIT_OK


def _places(parameters: dict[str, Any]) -> int | None:
    """How many may run at once, where the server's command was given."""
    if parameters["from_command"] is None:
        return None
    from ..bench.system import build_system, engine_limits

    return engine_limits(build_system(configured(parameters).config).config).max_num_seqs


def _advice(parameters: dict[str, Any]) -> Advice:
    from ..advise.advice import Question, advise
    from ..bench.replicates import seeds_from

    first = configured(parameters).config["seed"]
    question = Question(
        configure=lambda changes: configured(parameters, changes),
        command=lambda name, changes: _command(name, changes, parameters),
        promises=tuple(promises(parameters["slos"])),
        seeds=tuple(seeds_from(first, parameters["seeds"])),
        budget=parameters["budget"],
        jobs=parameters["jobs"] or -1,
    )
    with ProgressBar(parameters["quiet"], "runs") as progress:
        return advise(question, progress)


def _command(name: str, changes: Sequence[str], parameters: dict[str, Any]) -> str:
    """The command line that repeats this advice, or (ab) one of its comparisons."""
    words = ["kvbench", name, *as_typed(parameters)]
    if name == "advise":
        words += [word for text in parameters["slos"] for word in ("--slo", text)]
    words += [word for text in changes for word in ("--set-b", text)]
    return shlex.join([*words, "--seeds", str(parameters["seeds"])])


def _shown(found: Advice, as_json: bool) -> str:
    from ..report.advice import advice_document, advice_table
    from ..report.run_json import to_text

    return to_text(advice_document(found)) if as_json else advice_table(found) + "\n"


def _write(folder: Path, found: Advice, parameters: dict[str, Any]) -> list[str]:
    from ..report.advice import advice_csv, advice_document, best_toml
    from ..report.files import write_whole
    from ..report.run_json import to_text

    write_whole(folder / "advice.json", [to_text(advice_document(found))])
    write_whole(folder / "advice.csv", advice_csv(found))
    names = ["advice.json", "advice.csv"]
    (folder / "best.toml").unlink(missing_ok=True)
    if found.best is not None:
        given = configured(parameters, [("--set", change) for change in found.best.changes]).given
        write_whole(folder / "best.toml", best_toml(given, found))
        names.append("best.toml")
    return names
