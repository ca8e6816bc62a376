"""A sweep: points that are there already are taken as they are, the others run in parallel, rows come out in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ..bench.fleet import devices_of
from ..bench.replicates import seeds_from
from ..bench.run import Progress
from ..core.errors import KvbenchError, UsageError
from ..report.sweep import Sweep, SweepRow
from .digest import point_digest
from .grid import Axis, Point, keys_of
from .run import groups
from .task import Outcome, Task, attempts_file, finished

SEED = "seed"
POINTS = "points"
"""The folder of the points' folders."""

_LONGEST_NAME = 100

Run = Callable[[Sequence[Task]], Generator[Outcome]]
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """Every point with its task, and the outcomes that are there already."""

    keys: tuple[str, ...]
    points: tuple[Point, ...]
    tasks: tuple[Task, ...]
    there: dict[int, Outcome]


def with_seeds(axes: Sequence[Axis], count: int | None, first: int) -> list[Axis]:
    """The axes and, where none of them is it, one of the seeds: the fastest. UsageError: seeds are said twice."""
    if SEED in keys_of(axes):
        if count is not None:
            raise UsageError("--seeds and --grid seed=... both name seeds; leave one of them out")
        return list(axes)
    return [*axes, Axis(SEED, tuple(map(str, seeds_from(first, count or 1))))]


def plan(axes: Sequence[Axis], points: Sequence[Point], folder: Path, steps: bool) -> Planned:
    """What is to be run. A point is there when its run.json has the digest that its configuration has now."""
    keys = keys_of(axes)
    tasks, there = [], {}
    for index, point in enumerate(points):
        digest = point_digest(point.system)
        own = folder / POINTS / _folder_name(keys, point.values, digest)
        tasks.append(Task(index, point.configured, own, digest, steps))
        attempts_file(own).unlink(missing_ok=True)  # of a sweep whose workers died
        figures = finished(own, digest, steps)
        if figures is not None:
            there[index] = Outcome(index, figures)
    return Planned(keys, tuple(points), tuple(tasks), there)


def run_sweep(planned: Planned, run: Run, progress: Progress, warn: Warn) -> tuple[Sweep, bool]:
    """Run what is not there. The second value: whether a worker died, or a point failed by a fault of kvbench.

    Ctrl-C, or a worker that died, leaves the rows of the points that ended.
    raises  UsageError: no point could run
    """
    pending = [planned.tasks[i] for group in groups(planned.points, lambda _: ()) for i in group]
    pending = [task for task in pending if task.index not in planned.there]
    outcomes, stopped, failed = dict(planned.there), False, False
    if pending:
        progress(0, len(pending))  # the clock of the estimate starts here
    try:
        with closing(run(pending)) as ended:
            for outcome in ended:
                outcomes[outcome.index] = outcome
                for text in (*outcome.warnings, *([outcome.error] if outcome.error else [])):
                    warn(f"{planned.tasks[outcome.index].folder.name}: {text}")
                progress(len(outcomes) - len(planned.there), len(pending))
    except KeyboardInterrupt:
        stopped = True
    except KvbenchError as error:
        if isinstance(error, UsageError):
            raise
        warn(str(error))
        stopped = failed = True
    if not stopped and all(outcome.error for outcome in outcomes.values()):
        raise UsageError(f"no point of the sweep could run; the first: {outcomes[0].error}")
    failed = failed or any(not outcome.expected for outcome in outcomes.values())
    return _sweep(planned, outcomes), failed


def _sweep(planned: Planned, outcomes: dict[int, Outcome]) -> Sweep:
    at = planned.keys.index(SEED)
    rows = []
    for index, outcome in sorted(outcomes.items()):
        point, config = planned.points[index], planned.points[index].system.config
        rows.append(
            SweepRow(
                values=point.values[:at] + point.values[at + 1 :],
                seed=config[SEED],
                clock=config["clock"],
                devices=devices_of(config),
                folder="" if outcome.error else f"{POINTS}/{planned.tasks[index].folder.name}",
                figures=outcome.figures,
                error=outcome.error,
            )
        )
    return Sweep(
        run=planned.points[0].configured.name,
        keys=planned.keys[:at] + planned.keys[at + 1 :],
        rows=tuple(rows),
        total=len(planned.tasks),
        reused=len(planned.there),
        seeds=len({point.system.config[SEED] for point in planned.points}),
    )


def _folder_name(keys: Sequence[str], values: Sequence[str], digest: str) -> str:
    """Readable, safe on any file system, and of this configuration alone."""
    text = ",".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    return f"{re.sub(r'[^A-Za-z0-9._=,+-]+', '_', text)[:_LONGEST_NAME]}-{digest}"
