"""The candidate's runs in the JSON of github-action-benchmark, tool `customSmallerIsBetter`.

One file has one direction: metrics of which less is better are written, the others are not.
source: its README: [{"name", "unit", "value", "range", "extra"}].
"""

from __future__ import annotations

import json

from ..metrics.catalogue import LOWER
from .judge import Report
from .metrics import direction
from .runs import Run


def action_benchmark(report: Report) -> str:
    """An entry for each metric of each run, then one of the gate itself with its verdict."""
    entries = [
        {
            "name": f"{run['run']} / {run['preset']} / seed {run['seed']} / {metric}",
            "unit": run.units[metric],
            "value": value,
            **_range(run, metric),
            "extra": f"clock {run['clock']}, {run['model']} on {run['device']}, cache {run['cache_state']}",
        }
        for run in report.candidates
        for metric, value in run.values.items()
        if value is not None and direction(metric) == LOWER
    ]
    own = {"name": "kvbench gate", "unit": "exit code", "value": report.exit_code, "extra": report.headline}
    return json.dumps([*entries, own], indent=2, allow_nan=False) + "\n"


def _range(run: Run, metric: str) -> dict[str, str]:
    low, high = run.bound(metric, "low"), run.bound(metric, "high")
    return {} if low is None or high is None else {"range": f"{low:g} .. {high:g}"}
