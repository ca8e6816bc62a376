"""`kvbench.run(...)`: one run from Python, as data frames, without files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import nearest, toml_text
from ..core.errors import UsageError
from ..report.csv_files import requests_csv, steps_csv, summary_csv
from ..report.frames import RunFrames, frame_of
from .configure import configure
from .options import KEY_OF_OPTION, flag
from .run import run

if TYPE_CHECKING:
    import pandas as pd


def run_frames(
    target: str | Path | None,
    trace: str | Path | None,
    keys: Mapping[str, Any],
    steps: bool,
    options: Mapping[str, Any],
) -> RunFrames:
    """Run a configuration to its end. See kvbench.run.

    raises  UsageError: as `configure` and `run`, or an option that is none
            KeyboardInterrupt: what there is does not stand for the whole
    """
    changes = []
    for name, value in options.items():
        if name not in KEY_OF_OPTION:
            raise UsageError(
                f"run has no option {name}; the nearest is {nearest(name, KEY_OF_OPTION)} (keys go in set)"
            )
        changes.append((flag(name), f"{KEY_OF_OPTION[name]}={toml_text(value)}"))
    changes += [("set", f"{key}={toml_text(value)}") for key, value in keys.items()]
    configured = configure(_text(target), _text(trace), changes)
    result = run(configured, record_steps=steps)
    if not result.record.complete:
        raise KeyboardInterrupt

    def read(name: str) -> pd.DataFrame:
        if name == "requests":
            return frame_of(requests_csv(result.journal, result.requests))
        if name == "summary":
            return frame_of(summary_csv(result.record))
        if not steps:
            raise UsageError("this run recorded no steps; ask for them: kvbench.run(..., steps=True)")
        return frame_of(steps_csv(result.journal))

    return RunFrames(result.document, read)


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
