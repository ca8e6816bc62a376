"""`kvbench sweep`: a grid on all cores or a cluster, which goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from .options import RunCommand, check_target, configuration_options, configured, force_option, keys_completed
from .output import say
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..report.sweep import Sweep
    from ..sweep.grid import Point
    from ..sweep.resume import Planned


@click.command(cls=RunCommand)
@configuration_options
@click.option(
    "--grid",
    "grids",
    metavar="KEY=V,V",
    multiple=True,
    required=True,
    shell_complete=keys_completed,
    help="Run every combination; 1000..64000*4 is a range, KEY:KEY=V:V,V:V changes several keys at once.",
)
@click.option("--seeds", metavar="K", type=click.IntRange(min=1), help="Each point under K seeds, from --seed on.")
@click.option("-o", "--output", metavar="DIR", required=True, help="sweep.csv, and a folder for each point.")
@force_option
@click.option("--steps", is_flag=True, help="Write steps.csv of each point too.")
@click.option("-j", "--jobs", metavar="N", type=click.IntRange(min=1), help="Workers; all cores by default.")
@click.option("--backend", type=click.Choice(["loky", "dask", "ray"]), default="loky", help="Processes, or a cluster.")
@click.option("--address", metavar="URL", help="Of the cluster's scheduler: tcp://host:8786 (dask).")
@click.option("--plot", metavar="FILE", help="SVG or PNG: goodput of the values of the first --grid, row by row.")
@click.option("--json", "as_json", is_flag=True, help="Print the points as JSON instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def sweep_command(**parameters: Any) -> int:
    """Run every combination of a grid on all cores; points that are there already are not run again.

    kvbench sweep chat --grid block_tokens=8,16,32 --grid cache.eviction=lru,slru --seeds 3 -o results/sweep

    A point is there when its run.json was written by the same code for the same configuration. On a cluster DIR and
    the files that X names have to lie where the workers see them.
    """
    from ..report.files import result_folder, write_whole
    from ..report.sweep import sweep_csv
    from ..sweep.grid import make_points, parse_axis
    from ..sweep.resume import plan, run_sweep, with_seeds

    check_target(parameters)
    if parameters["address"] is not None and parameters["backend"] == "loky":
        raise UsageError("--address is that of a cluster; add --backend dask or --backend ray")
    axes = [parse_axis(text) for text in parameters["grids"]]
    axes = with_seeds(axes, parameters["seeds"], configured(parameters).config["seed"])
    points = make_points(axes, lambda changes: configured(parameters, changes))
    if parameters["plot"] is not None:
        _check_plot(parameters["plot"], points)
    measured = any(point.system.config["clock"] == "measured" for point in points)
    run = _runner(parameters, measured)
    folder = result_folder(Path(parameters["output"]).absolute(), parameters["force"])
    planned = plan(axes, points, folder, parameters["steps"])
    quiet = parameters["quiet"]
    if not quiet:
        _say_first(planned, parameters["backend"])
    with ProgressBar(quiet, "points") as progress:
        found, failed = run_sweep(planned, run, progress, _warner(quiet))
    write_whole(folder / "sweep.csv", sweep_csv(found))
    _check_seen(planned, found, folder)
    if parameters["plot"] is not None and found.complete:
        _draw(parameters["plot"], found, len(axes[0].keys))
    click.echo(_shown(found, parameters["as_json"]), nl=False)
    if not quiet:
        say(f"wrote sweep.csv and a folder for each point to {parameters['output']}")
    return _exit_code(found, failed)


def _check_plot(path: str, points: Sequence[Point]) -> None:
    """UsageError: it could not be written, or there is nothing to draw."""
    from ..metrics.slo import Slo
    from ..report.plot import check_picture

    check_picture(Path(path))
    if not any(Slo(**point.system.config.section("slo")) for point in points):
        raise UsageError("--plot draws goodput; promise something: --set slo.ttft=2000 --set slo.tpot=50")


def _draw(path: str, found: Sweep, num_keys: int) -> None:
    from ..report.files import write_whole
    from ..report.pictures.designs import designs_chart
    from ..report.plot import picture

    chart = designs_chart(found, num_keys)
    if chart is not None:
        write_whole(Path(path), [picture([chart], Path(path).suffix)])


def _say_first(planned: Planned, backend: str) -> None:
    """What explains a progress bar that starts late, or not at all."""
    from ..core.jit import CACHE_DIR, PLAIN

    if planned.there:
        say(f"{len(planned.there)} of {len(planned.tasks)} points are there already")
    if backend == "loky" and not PLAIN and not any(CACHE_DIR.iterdir()):
        say("compiling for this machine first (kept for the next run)")


def _runner(parameters: dict[str, Any], measured: bool) -> Any:
    """Measured runs take turns: beside each other they would measure each other."""
    from ..sweep.parallel import run_tasks
    from ..sweep.task import run_task

    jobs, backend = parameters["jobs"] or (1 if measured else -1), parameters["backend"]
    if measured and (jobs != 1 or backend != "loky"):
        raise UsageError("clock = measured runs one after another on this machine; leave --jobs and --backend out")
    return partial(run_tasks, run_task, jobs=jobs, backend=backend, address=parameters["address"])


def _check_seen(planned: Planned, found: Sweep, folder: Path) -> None:
    """A worker without this folder writes into one of its own."""
    lost = [row for row in found.rows if not row.error and not (folder / row.folder / "run.json").exists()]
    if lost:
        raise UsageError(f"-o {folder}: the workers wrote {len(lost)} points where this machine does not see them")


def _shown(found: Sweep, as_json: bool) -> str:
    from ..report.run_json import to_text
    from ..report.sweep import sweep_document, sweep_table

    return to_text(sweep_document(found)) if as_json else sweep_table(found) + "\n"


def _exit_code(found: Sweep, failed: bool) -> int:
    if not found.complete:
        say(f"stopped: {len(found.rows)} of {found.total} points; the same command goes on from there")
    if failed:
        return EXIT_FAILED
    return EXIT_OK if found.complete else EXIT_INTERRUPTED


def _warner(quiet: bool) -> Callable[[str], None]:
    return lambda text: None if quiet else say(f"warning: {text}")
