"""`kvbench capacity`: the largest load that keeps its promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, UsageError
from .options import RunCommand, configuration_options, configured
from .run import quiet_compiler, say

if TYPE_CHECKING:
    from ..sweep.capacity import Point

LEAST_RATE, MOST_RATE = 1e-3, 1e6
FIRST_RATE, FIRST_CONCURRENCY = 1.0, 8


@click.command(cls=RunCommand)
@configuration_options
@click.option("--over", type=click.Choice(["rate", "concurrency"]), default="rate", help="What is raised.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.99, help="Of sequences that keep the SLOs. [0.99]")
@click.option("--precision", type=click.FloatRange(1e-4, 1), default=0.02, help="Of a rate. [0.02]")
@click.option("--json", "as_json", is_flag=True, help="Print points and bracket as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def capacity_command(**parameters: Any) -> int:
    """Find the largest request rate (or concurrency) at which X keeps its SLOs.

    kvbench capacity chat --goodput ttft:200 tpot:50
    """
    if parameters["target"] is None and parameters["trace"] is None:
        raise UsageError("nothing to run: name a scenario (kvbench list), a file, or --trace FILE")
    config = configured(parameters).config
    if not any(config.section("slo").values()):
        raise UsageError("capacity needs a promise to keep: --goodput ttft:200 tpot:50")
    taken = {"rate": "request_rate", "concurrency": "max_concurrency"}[parameters["over"]]
    if parameters[taken] is not None:
        raise UsageError(f"--{taken.replace('_', '-')} is what the search looks for; leave it out")
    quiet_compiler(parameters["quiet"])
    return _search(parameters)


def _search(parameters: dict[str, Any]) -> int:
    from ..report.capacity import answer, capacity_document, capacity_table, doubt
    from ..report.run_json import to_text
    from ..sweep.capacity import Scale, search

    over, runs = parameters["over"], _Runs(parameters)
    start = runs.try_load(FIRST_RATE if over == "rate" else FIRST_CONCURRENCY)
    if over == "rate":
        scale = Scale(FIRST_RATE, LEAST_RATE, MOST_RATE, False, parameters["precision"])
    else:
        scale = Scale(FIRST_CONCURRENCY, 1, max(runs.num_requests, FIRST_CONCURRENCY), True, 0)
    found = search(scale, lambda load: start if load == start.load else runs.try_load(load))
    rows = [vars(point) for point in found.points]
    if parameters["as_json"]:
        bracket = (found.low, found.high)
        document = capacity_document(runs.name, runs.clock, over, runs.slo, parameters["share"], *bracket, rows)
        click.echo(to_text(document), nl=False)
    else:
        said = answer(over, found.low, found.high, scale.most)
        said += doubt(over, next((p.served for p in found.points if p.load == found.low), 0.0), found.low)
        click.echo(capacity_table(runs.name, runs.clock, runs.slo, parameters["share"], said, rows))
    return EXIT_OK


class _Runs:
    """A run for each load."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.name, self.clock, self.slo, self.num_requests = "", "", "", 0

    def try_load(self, load: float) -> Point:
        from ..bench.run import run
        from ..report.grid import run_figures
        from ..sweep.capacity import Point

        result = run(configured(self.parameters, _changes(self.parameters["over"], load)))
        record = result.record
        if not record.complete:
            raise KeyboardInterrupt
        self.name, self.clock, self.slo = record.run, record.clock, record.slo
        self.num_requests = len(result.requests)
        kept = float(record.summary["slo_share"] or 0.0)
        met = kept >= self.parameters["share"]
        if not self.parameters["quiet"]:
            say(f"{load:g}: {100 * kept:.2f} % kept {record.slo}{'' if met else ': not met'}")
        return Point(load, kept, met, run_figures(record), float(record.summary["request_throughput"] or 0.0))


def _changes(over: str, load: float) -> list[tuple[str, str]]:
    """Concurrency: clients that ask again when they have their answer, so nobody waits behind the cap unseen."""
    if over == "rate":
        return [("--request-rate", f"arrivals.rate={load}")]
    return [("--over", "arrivals.process=closed"), ("--over", f"arrivals.concurrency={int(load)}")]
