"""`kvbench run --grid`: many points, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_INTERRUPTED, EXIT_OK
from .options import configured
from .output import STDOUT, changes_of, quiet_compiler, say, write_files
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..bench.run import Result
    from ..report.grid import Grid
    from ..sweep.grid import Axis, Point


def run_points(parameters: dict[str, Any]) -> int:
    """Check everything, run the points, show what they gave."""
    from ..report.files import result_folder
    from ..sweep.grid import make_points, parse_axis, values_by_key

    axes = [_sized(parse_axis(text), parameters) for text in parameters["grids"]]
    points = make_points(axes, lambda changes: configured(parameters, [*changes_of(parameters), *changes]))
    if parameters["plot"] is not None:
        from ..report.plot import check_plot

        check_plot(Path(parameters["plot"]), values_by_key(axes))
    output = parameters["output"]
    folder = None if output in (None, STDOUT) else result_folder(Path(output), parameters["force"])
    quiet_compiler(parameters["quiet"])
    found = _found(axes, points, parameters, folder)
    _write(found, parameters, folder)
    click.echo(_shown(found, parameters), nl=False)
    return EXIT_OK if found.complete else _interrupted(found, len(points))


def _sized(axis: Axis, parameters: dict[str, Any]) -> Axis:
    """`cache.blocks=auto` as the sizes that this workload asks for."""
    if (axis.key, axis.values) != ("cache.blocks", ("auto",)):
        return axis
    from ..sweep.grid import Axis
    from ..sweep.run import automatic_sizes

    return Axis(axis.key, automatic_sizes(configured(parameters, changes_of(parameters))))


def _found(axes: Sequence[Axis], points: Sequence[Point], parameters: dict[str, Any], folder: Path | None) -> Grid:
    from ..sweep.grid import folder_name, keys_of
    from ..sweep.run import replay_grid, run_grid

    quiet, steps = parameters["quiet"], parameters["steps"]
    names = [folder_name(i, keys_of(axes), point.values) for i, point in enumerate(points)]

    def keep(index: int, result: Result) -> None:
        if folder is not None:
            own = folder / names[index]
            own.mkdir(exist_ok=True)
            write_files(own, result, parameters)
        for warning in () if quiet else result.warnings:
            say(f"warning: {names[index]}: {warning}")

    with ProgressBar(quiet, "points") as progress:
        if parameters["cache_only"]:
            return replay_grid(axes, points, progress)
        return run_grid(axes, points, keep, progress, steps)


def _write(found: Grid, parameters: dict[str, Any], folder: Path | None) -> None:
    from ..report.files import write_whole
    from ..report.grid import grid_csv

    written = []
    if folder is not None:
        write_whole(folder / "grid.csv", grid_csv(found))
        written.append(f"grid.csv{'' if found.cache_only else ' and a folder for each point'} to {folder}")
    if parameters["plot"] is not None and found.complete:
        from ..report.plot import draw_grid

        path = Path(parameters["plot"])
        write_whole(path, [draw_grid(found, path.suffix, parameters["curve"])])
        written.append(str(path))
    if not parameters["quiet"]:
        for row in found.rows:
            if row.error:
                say(f"warning: {', '.join(map('='.join, zip(found.keys, row.values, strict=True)))}: {row.error}")
        if written:
            say(f"wrote {', '.join(written)}")


def _shown(found: Grid, parameters: dict[str, Any]) -> str:
    from ..report.grid import grid_csv, grid_document, grid_table

    if parameters["as_json"]:
        from ..report.run_json import to_text

        return to_text(grid_document(found))
    return "".join(grid_csv(found)) if parameters["output"] == STDOUT else grid_table(found, parameters["curve"]) + "\n"


def _interrupted(found: Grid, num_points: int) -> int:
    say(f"interrupted: a partial result, {len(found.rows)} of {num_points} points")
    return EXIT_INTERRUPTED
