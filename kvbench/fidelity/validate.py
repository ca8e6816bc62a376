"""All that was measured below a folder, predicted and compared."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from ..core.errors import KvbenchError
from ..report.fidelity import Case, Scores
from .find_truth import find_truth
from .predict import USUAL_CLIENT, Changes, predict_deployment, predict_run
from .step_tables import halves
from .truth import Deployment, ServerRun

STATIC_ESTIMATES = {
    "4dbb50b0cbb6abe264c11e8148c6457c99029509272f6eb39f4236c109177b41": (
        "beside it: the static estimate of aiconfigurator-core 0.12.0 on the rows of {}, without a queue: median "
        "54.8 % TTFT, 13.2 % TPOT (8,192 context tokens a step)"
    ),
}
"""sha256 of a table -> what the package that publishes it says of these rows by itself."""

CHOSEN: dict[str, Callable[[Case], bool]] = {
    "chosen on scored rows: 1,700 us + 45 us a sequence, the host of vLLM 0.12; TP 2 alone chooses 1,200 + 65, and "
    "with that the median error of TPOT at TP 4 and 8 was 3.2 %": lambda case: case.engine == "vllm 0.12.0",
    "chosen on scored rows: 45 us a sequence (as vLLM's) for the host of SGLang 0.5.6, 50 us a token for its output, "
    "its own token budget; TP 2 alone chooses 40 us; with that the median error of TPOT at TP 4, 8 was 7.6, 7.1 %": (
        lambda case: case.engine.startswith("sglang 0.5.6")
    ),
    "not recorded, but assumed as the tool that published the table does it: the client, and the sizes that the "
    "servers were started with; about 20 other clients had been tried on these rows": lambda case: (
        case.client == USUAL_CLIENT
    ),
}
"""What a table must say of its own figures (docs/fidelity.md), and of which cases it holds."""

Progress = Callable[[int, int], None]


def validate(folder: Path, client: str = "", more: Changes = (), progress: Progress | None = None) -> Scores:
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
    notes = [text for text, of in CHOSEN.items() if any(of(case) for case in cases)]
    beside = [*_static_estimates(folder), *map(halves, truth.steps)]
    return Scores(
        str(folder), tuple(cases), tuple(not_scored), tuple(beside), time.perf_counter() - started, tuple(notes)
    )


def _static_estimates(folder: Path) -> list[str]:
    sums = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.csv"))}
    return [STATIC_ESTIMATES[s].format(path.name) for path, s in sums.items() if s in STATIC_ESTIMATES]


def _predicted(one: Deployment | ServerRun, client: str, more: Changes) -> Case:
    return predict_deployment(one, client, more) if isinstance(one, Deployment) else predict_run(one, more)
