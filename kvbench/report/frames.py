"""A run as data frames: `kvbench.load(DIR)`, and what `kvbench.run(...)` returns.

run = kvbench.load("results/chat")
run.requests.groupby("tenant").ttft_ms.quantile(0.99)

pandas is imported when a frame is first asked for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import read_text
from ..core.errors import UsageError
from .run_json import read_run

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".parquet", ".csv")


class RunFrames:
    """One run.

    requests   a row per sequence: the columns of requests.csv
    steps      a row per engine step: those of steps.csv. UsageError: the run did not record its steps
    summary    a row per metric: those of summary.csv
    config     every key of the run, resolved, as nested tables
    document   all of run.json
    """

    def __init__(self, document: dict[str, Any], read: Callable[[str], pd.DataFrame]) -> None:
        """read: from "requests", "steps" or "summary" to its frame."""
        self.document = document
        self._read = read

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.document["config"])

    @cached_property
    def requests(self) -> pd.DataFrame:
        return self._read("requests")

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self._read("steps")

    @cached_property
    def summary(self) -> pd.DataFrame:
        return self._read("summary")

    def __repr__(self) -> str:
        partial = "" if self.document["complete"] else ", PARTIAL"
        return f"<run {self.document['run']}, workload {self.document['fingerprint'][:16]}{partial}>"


def load(path: str | Path) -> RunFrames:
    """The run in a folder that `kvbench run -o` wrote. UsageError: there is none."""
    folder = Path(path)
    return RunFrames(read_run(folder / "run.json"), lambda name: read_frame(folder, name))


def read_frame(folder: Path, name: str) -> pd.DataFrame:
    """One table of a folder. UsageError: it is not there."""
    import pandas as pd

    found = next((folder / f"{name}{s}" for s in SUFFIXES if (folder / f"{name}{s}").exists()), None)
    if found is None:
        raise UsageError(f"{folder}: holds no {name}.csv{'; record steps with --steps' if name == 'steps' else ''}")
    return pd.read_parquet(found) if found.suffix == ".parquet" else pd.read_csv(found)


def csv_text(path: Path) -> str:
    """The text of a CSV file, or of the Parquet file that stands in its place. UsageError: there is neither."""
    packed = path.with_suffix(".parquet")
    if path.exists() or not packed.exists():
        return read_text(path)
    return str(read_frame(path.parent, path.stem).to_csv(index=False))


def frame_of(pieces: Iterable[str]) -> pd.DataFrame:
    """What `pd.read_csv` makes of the file whose text these are."""
    import pandas as pd

    return pd.read_csv(io.StringIO("".join(pieces)))


def parquet(pieces: Iterable[str]) -> bytes:
    """The same frame as a Parquet file."""
    out = io.BytesIO()
    frame_of(pieces).to_parquet(out, engine="pyarrow", index=False)
    return out.getvalue()


def check_parquet() -> None:
    """UsageError: pyarrow is not there."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UsageError("--format parquet needs pyarrow: pip install 'kvbench[parquet]'")
