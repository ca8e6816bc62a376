"""Tables of measured steps (costs.step_csv): the fit that a run uses, made of one half of the rows, on the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.errors import UsageError
from ..costs.step_csv import COLUMNS, Steps, fit_steps, read_steps

FEWEST = 20


def is_step_table(header: Sequence[str]) -> bool:
    """Whether these are the columns of such a table."""
    return set(COLUMNS) <= set(header)


def halves(path: Path) -> str:
    """What each half of the rows says of the other, in a line."""
    try:
        steps = read_steps(path)
    except UsageError as error:
        return f"not scored: {error}"
    if steps.ns.size < FEWEST:
        return f"{path.name}: not scored: {steps.ns.size} rows do not make two halves; {FEWEST} do"
    parts = [steps.part(slice(i, None, 2)) for i in (0, 1)]
    first, second = _median(*parts), _median(*parts[::-1])
    return (
        f"{path.name}: floor, knee and slopes of a step fitted on one half of {steps.ns.size} rows predict the "
        f"other half with a median error of {first:.1f} %, and the other way round {second:.1f} %"
    )


def _median(fitted: Steps, others: Steps) -> float:
    """Per cent."""
    return 100.0 * float(np.median(np.abs(fit_steps(fitted).predict(others) / others.ns - 1.0)))
