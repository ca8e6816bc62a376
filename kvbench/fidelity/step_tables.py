"""Tables of measured steps: CSV of step_tokens, prefill_tokens, decodes, context, ms.

What one device does is a floor that launches set, and beyond a knee a line in the sequences, the cached tokens that are
read and the prompt tokens. Fitted on every second row, it predicts the others.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

NEEDED = ("step_tokens", "prefill_tokens", "decodes", "context", "ms")

FEWEST = 20
_START = (15.0, 3.0, 0.05, 0.02, 0.05, 0.01)
"""Floor and base in ms; ms of a sequence, of 1,000 cached tokens, of a prompt token, of a million of its pairs."""
_FAR = 0.03


def is_step_table(header: Sequence[str]) -> bool:
    """Whether these are the columns of such a table."""
    return set(NEEDED) <= set(header)


def halves(path: Path) -> str:
    """What each half of the rows says of the other, in a line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        table = np.array([[float(row[name]) for name in NEEDED[1:]] for row in rows])
    except (TypeError, ValueError) as error:
        return f"{path.name}: not scored: {error}"
    if len(table) < FEWEST:
        return f"{path.name}: not scored: {len(table)} rows do not make two halves; {FEWEST} do"
    first, second = (_median(table[i::2], table[1 - i :: 2]) for i in (0, 1))
    return (
        f"{path.name}: floor, knee and slopes of a step fitted on one half of {len(table)} rows predict the other half "
        f"with a median error of {first:.1f} %, and the other way round {second:.1f} %"
    )


def _median(fitted: F64, others: F64) -> float:
    from scipy.optimize import least_squares

    def errors(at: F64) -> F64:
        return np.asarray(np.log(_step_ms(np.exp(at), fitted) / fitted[:, -1]), np.float64)

    found = least_squares(errors, np.log(_START), loss="soft_l1", f_scale=_FAR).x
    return float(np.median(np.abs(_step_ms(np.exp(found), others) / others[:, -1] - 1.0))) * 100.0


def _step_ms(values: F64, table: F64) -> F64:
    floor, base, sequence, cached, prompt, pairs = values
    new, decodes, context = table[:, 0], table[:, 1], table[:, 2]
    line = base + sequence * decodes + cached * decodes * context / 1e3 + prompt * new + pairs * new * context / 1e6
    return np.asarray(np.maximum(floor, line), np.float64)
