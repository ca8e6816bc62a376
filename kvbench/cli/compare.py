"""`kvbench compare` and `kvbench ab`: two sides in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, KvbenchError, UsageError
from .options import RunCommand, check_target, configuration_options, configured, force_option
from .output import quiet_compiler, say
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..bench.run import Result
    from ..gate.pairing import Group
    from ..report.record import RunRecord

ACROSS = ("model", "device", "cache_state", "machine")


@click.command()
@click.argument("paths", nargs=-1, metavar="A B [C...]")
@click.option("--across", multiple=True, type=click.Choice(ACROSS), help="Compare although this differs.")
@click.option("--all", "show_all", is_flag=True, help="Every metric.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON.")
def compare_command(paths: tuple[str, ...], across: tuple[str, ...], show_all: bool, as_json: bool) -> int:
    """Compare runs with the first of them, the baseline, by metric.

    Each is a folder that `kvbench run -o` wrote, or a summary.csv; several seeds are compared in pairs.
    """
    from ..gate.pairing import pair_up
    from ..gate.runs import read_runs

    if len(paths) < 2:
        raise UsageError("compare takes two sides at least: kvbench compare results/a results/b")
    first, *others = [read_runs(Path(path)) for path in paths]
    sides = [(path, pair_up(first, other, False, across)) for path, other in zip(paths[1:], others, strict=True)]
    _show([(group, (paths[0], path)) for path, groups in sides for group in groups], show_all, as_json)
    return EXIT_OK


@click.command(cls=RunCommand)
@configuration_options
@click.option("--set-a", "sets_a", metavar="KEY=VALUE", multiple=True, help="Any key, of side A.")
@click.option("--set-b", "sets_b", metavar="KEY=VALUE", multiple=True, help="Any key, of side B.")
@click.option("--seeds", metavar="K", type=click.IntRange(min=1), default=1, help="Pairs: K seeds from --seed on.")
@click.option("-o", "--output", metavar="DIR", help="Write comparison.csv, and the runs into DIR/a and DIR/b.")
@force_option
@click.option("--all", "show_all", is_flag=True, help="Every metric.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def ab_command(**parameters: Any) -> int:
    """Run X twice for each seed, with the keys of A (the baseline) and of B (the candidate), and compare.

    kvbench ab chat --set-a cache.kind=none --set-b cache.kind=hash --seeds 5
    """
    from ..bench.replicates import seeds_from
    from ..gate.ab import run_ab

    check_target(parameters)
    if sorted(parameters["sets_a"]) == sorted(parameters["sets_b"]):
        raise UsageError("both sides are the same; give --set-a KEY=VALUE or --set-b KEY=VALUE")
    for side in "ab":
        if any(text.partition("=")[0].strip() == "seed" for text in parameters[f"sets_{side}"]):
            raise UsageError(f"--set-{side} seed: both sides run under the same seeds; use --seed and --seeds")
    quiet_compiler(parameters["quiet"])
    sides = {
        name: _side([(f"--set-{name.lower()}", text) for text in parameters[f"sets_{name.lower()}"]], parameters)
        for name in "AB"
    }
    seeds = seeds_from(configured(parameters).config["seed"], parameters["seeds"])
    kept = KeptRuns(parameters["output"], parameters["force"])
    with ProgressBar(parameters["quiet"], "runs") as progress:
        group, warnings = run_ab(sides, seeds, progress, kept.keep)
    for warning in () if parameters["quiet"] else warnings:
        say(f"warning: {warning}")
    names = tuple(", ".join(parameters[f"sets_{name}"]) or "as given" for name in "ab")
    _show([(group, (f"A: {names[0]}", f"B: {names[1]}"))], parameters["show_all"], parameters["as_json"])
    if parameters["output"] is not None:
        kept.write_comparison(group)
        if not parameters["quiet"]:
            say(f"wrote comparison.csv, and the runs of A and B, to {parameters['output']}")
    return EXIT_OK


class KeptRuns:
    """The files of both sides: DIR/a and DIR/b, each as `kvbench run --seeds -o` leaves them, so compare takes them.

    Where time is measured each side runs twice a seed; the second time is in DIR/a-again and DIR/b-again.
    """

    def __init__(self, output: str | None, force: bool) -> None:
        """UsageError: the place cannot be written, which is found before the runs."""
        from ..report.files import result_folder

        self._folder = None if output is None else result_folder(Path(output), force)
        self._records: dict[str, list[RunRecord]] = {}

    def keep(self, side: str, earlier: int, result: Result) -> None:
        if self._folder is None:
            return
        from ..report.files import make_folder, write_whole
        from ..report.replicates import replicates_csv
        from ..report.result_files import write_result

        name = side.lower() + ("-again" if earlier else "")
        records = self._records.setdefault(name, [])
        records.append(result.record)
        own = make_folder(self._folder / name / f"seed-{result.record.seed}")
        write_result(own, result.record, result.document, result.journal, result.requests)
        write_whole(self._folder / name / "summary.csv", replicates_csv(records))

    def write_comparison(self, group: Group) -> None:
        from ..gate.pairing import compare_group
        from ..gate.table import comparison_csv, with_mean
        from ..report.files import write_whole

        assert self._folder is not None
        compared = with_mean(compare_group(group), group.clock)
        write_whole(self._folder / "comparison.csv", comparison_csv(compared))


def _side(own: list[tuple[str, str]], parameters: dict[str, Any]) -> Any:
    return lambda changes: configured(parameters, [*own, *changes])


def _show(sides: Sequence[tuple[Group, tuple[str, str]]], show_all: bool, as_json: bool) -> None:
    from ..gate.metrics import MAIN
    from ..gate.pairing import compare_group
    from ..gate.table import comparison_document, comparison_table, with_mean

    compared = [(group, with_mean(compare_group(group, None if show_all else MAIN), group.clock)) for group, _ in sides]
    for group, found in compared:
        if not found:
            raise KvbenchError(f"{group.name}: neither side measured anything: there is nothing to compare")
    if as_json:
        from ..report.run_json import to_text

        documents = [comparison_document(g, c, names) for (g, c), (_, names) in zip(compared, sides, strict=True)]
        click.echo(to_text({"comparisons": documents}), nl=False)
    else:
        found_text = [comparison_table(g, c, names) for (g, c), (_, names) in zip(compared, sides, strict=True)]
        click.echo("\n\n".join(found_text))
