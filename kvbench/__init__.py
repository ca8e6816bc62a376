"""kvbench: what a KV-cache design does to the latency tail, before a GPU is touched."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own is as good, and its import is not free
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from .report.frames import RunFrames

__version__ = "0.1.0"


def load(path: str | Path) -> RunFrames:
    """The run that `kvbench run -o` wrote into a folder: .requests, .steps, .summary (data frames), .config, .document.

    raises  kvbench.core.errors.UsageError: there is none
    """
    from .report.frames import load

    return load(path)


def run(
    target: str | Path | None = None,
    *,
    trace: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    steps: bool = False,
    **options: Any,
) -> RunFrames:
    """Run a scenario, a file or a trace; the same object as `load` gives, and no files.

    target    a scenario's name, a .toml file, or the run.json of an earlier run
    trace     a trace to replay
    set       key -> value, as --set: {"cache.blocks": 2000}
    steps     record every engine step
    options   preset, model, device, tp, dtype, clock, num_prompts, request_rate, burstiness, max_concurrency, seed
    raises    kvbench.core.errors.UsageError: what is wrong, where, what to try
    """
    from .bench.frames import run_frames

    return run_frames(target, trace, set or {}, steps, options)
