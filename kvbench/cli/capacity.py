"""`kvbench capacity`: the largest load that keeps its promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, UsageError
from .options import RunCommand, check_target, configuration_options, configured, promises
from .output import quiet_compiler, say

if TYPE_CHECKING:
    from ..report.capacity import CapacityReport
    from ..sweep.capacity import Point

SEEDS = 3


@click.command(cls=RunCommand)
@configuration_options
@click.option("--slo", "slos", metavar="SLO", multiple=True, help="A percentile by itself: ttft.p99:500 (repeatable).")
@click.option("--over", type=click.Choice(["rate", "concurrency"]), default="rate", help="What is raised.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.99, help="Of sequences that keep --goodput. [0.99]")
@click.option("--precision", type=click.FloatRange(1e-4, 1), default=0.02, help="Of a rate. [0.02]")
@click.option(
    "--seeds", metavar="K", type=click.IntRange(min=1), default=SEEDS, help=f"Searches, a seed each. [{SEEDS}]"
)
@click.option("--plot", metavar="FILE", help="Draw the tail against the load: .svg or .png.")
@click.option("--json", "as_json", is_flag=True, help="Print points and brackets as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def capacity_command(**parameters: Any) -> int:
    """Find the largest request rate (or concurrency) at which X keeps its promises.

    kvbench capacity chat --slo ttft.p99:500 --slo tpot.p99:50

    --slo promises a percentile by itself; --goodput ttft:500 tpot:50 promises that a --share of all sequences keep
    all of its bounds together.
    """
    check_target(parameters)
    promised = promises(parameters["slos"])
    if not promised and not any(configured(parameters).config.section("slo").values()):
        raise UsageError("capacity needs a promise to keep: --slo ttft.p99:500, or --goodput ttft:200 tpot:50")
    taken = {"rate": "request_rate", "concurrency": "max_concurrency"}[parameters["over"]]
    if parameters[taken] is not None:
        raise UsageError(f"--{taken.replace('_', '-')} is what the search looks for; leave it out")
    if parameters["plot"] is not None:
        from ..report.plot import check_picture

        check_picture(Path(parameters["plot"]))
    quiet_compiler(parameters["quiet"])
    _show(_searched(parameters), parameters)
    return EXIT_OK


def _searched(parameters: dict[str, Any]) -> CapacityReport:
    from ..report.capacity import CapacityReport
    from ..sweep.capacity_runs import LoadRuns, Sought, find_capacity, starting_load

    over, promised = parameters["over"], tuple(promises(parameters["slos"]))
    sought = Sought(over, parameters["share"], parameters["precision"], promised)
    first = configured(parameters)
    is_trace = bool(first.config["trace.path"])
    recorded = is_trace and first.config["trace.arrivals"] == "recorded"

    def tell(point: Point) -> None:
        if not parameters["quiet"]:
            say(f"{point.load:g}: {f'broke {point.broke}' if point.broke else 'kept'}")

    runs = LoadRuns(lambda changes: configured(parameters, changes), sought, tell)
    seeds = range(first.config["seed"], first.config["seed"] + parameters["seeds"])
    found = find_capacity(runs, seeds, starting_load(first, over), is_trace, recorded)
    assert found.first is not None
    searches = {seed: (one.low, one.high) for seed, one in found.searches.items()}
    return CapacityReport(
        record=found.first.record,
        over=over,
        share=parameters["share"],
        promises=tuple(map(str, promised)),
        brackets=searches,
        points=tuple(vars(point) for point in next(iter(found.searches.values())).points),
        poisson=None if found.poisson is None else vars(found.poisson),
    )


def _show(found: CapacityReport, parameters: dict[str, Any]) -> None:
    from ..report.capacity import capacity_document, capacity_table

    document = capacity_document(found)
    if parameters["plot"] is not None:
        from ..report.files import write_whole
        from ..report.pictures.load import capacity_charts
        from ..report.plot import picture

        path = Path(parameters["plot"])
        write_whole(path, [picture(capacity_charts(document), path.suffix)])
        if not parameters["quiet"]:
            say(f"wrote {path}")
    if parameters["as_json"]:
        from ..report.run_json import to_text

        click.echo(to_text(document), nl=False)
    else:
        click.echo(capacity_table(found))
