"""All that was measured below a folder, predicted and compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ..core.errors import KvbenchError
from ..report.fidelity import Case, Scores
from .predict import Changes, predict_deployment, predict_run
from .truth import Deployment, ServerRun, find_truth

DEFAULT_CLIENT = "aiconfigurator"
"""Tables of deployments do not say what their client did; this is what the package that publishes them generates."""

Progress = Callable[[int, int], None]


def validate(
    folder: Path, client: str = DEFAULT_CLIENT, more: Changes = (), progress: Progress | None = None
) -> Scores:
    """Predict everything. more: changes of the configuration of every case. UsageError: nothing to compare with."""
    started = time.perf_counter()
    truth = find_truth(folder)
    not_scored = list(truth.not_scored)
    cases: list[Case] = []
    asked: list[Deployment | ServerRun] = [*truth.deployments, *truth.runs]
    for done, one in enumerate(asked):
        if progress is not None:
            progress(done, len(asked))
        try:
            cases.append(_predicted(one, client, more))
        except KvbenchError as error:
            not_scored.append((one.name, str(error)))
    return Scores(str(folder), tuple(cases), tuple(not_scored), seconds=time.perf_counter() - started)


def _predicted(one: Deployment | ServerRun, client: str, more: Changes) -> Case:
    return predict_deployment(one, client, more) if isinstance(one, Deployment) else predict_run(one, more)
