"""The candidate's runs in the JSON of Bencher, and the gate's exit code.

The format has no place for words: the reason of a gate that could not compare is the name of a benchmark.

source: Bencher Metric Format: {benchmark: {measure: {"value", "lower_value", "upper_value"}}}, where a measure is a
slug of lower case letters, digits and hyphens.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .judge import Report
from .runs import Run


def bencher(report: Report) -> str:
    """A benchmark for each run, a measure for each metric that has a value; then one of the gate itself."""
    document: dict[str, dict[str, Any]] = {}
    for run in report.candidates:
        measures = {metric: _measure(run, metric, value) for metric, value in run.values.items() if value is not None}
        document[f"{run['run']} / {run['preset']} / seed {run['seed']}"] = {
            re.sub(r"[^a-z0-9]+", "-", metric.lower()): measure for metric, measure in measures.items()
        }
    name = f"kvbench gate: {report.headline}" if report.refusal else "kvbench gate"
    document[name] = {"exit-code": {"value": float(report.exit_code)}}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _measure(run: Run, metric: str, value: float) -> dict[str, float]:
    """The value, with the bounds of its interval where the file has them."""
    bounds = {f"{name}_value": run.bound(metric, side) for name, side in (("lower", "low"), ("upper", "high"))}
    return {"value": value} | {name: bound for name, bound in bounds.items() if bound is not None}
