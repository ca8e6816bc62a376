"""The project's own gate: some modelled scenarios against results/baseline.csv, exact.

    python benchmarks/gate.py             exit code of `kvbench gate --exact`; more options of it may follow
    python benchmarks/gate.py --update    write the baseline anew and say what changed

A change of the engine, a preset, a cost table or a scenario moves these numbers; the change that does commits the new
baseline with it, so that a review sees what moved. (Take a scenario out of SET, and delete the file before --update.)
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from kvbench.cli import call

BASELINE = Path(__file__).resolve().parents[1] / "results" / "baseline.csv"

SET = {
    "chat": ("--num-prompts", "150", "--request-rate", "20", "--set", "cache.blocks=1200"),
    "long-vs-short": ("--num-prompts", "80", "--request-rate", "12", "--set", "cache.blocks=6000"),
    "prefix-zipf": ("--num-prompts", "150", "--set", "cache.blocks=3000"),
    "rag": ("--num-prompts", "80", "--set", "cache.blocks=4000"),
}
"""Scenario -> what makes it small, and short of memory."""

PRESETS = ("vllm", "sglang")


def run_set(folder: Path, scenarios: dict[str, tuple[str, ...]] = SET, presets: tuple[str, ...] = PRESETS) -> list[str]:
    """Run each scenario under each preset; the folders of the results."""
    folders = []
    for scenario, options in scenarios.items():
        for preset in presets:
            own = str(folder / f"{scenario}-{preset}")
            with contextlib.redirect_stdout(io.StringIO()):
                code = call(["run", scenario, "--preset", preset, *options, "-o", own, "-q"])
            if code != 0:
                sys.exit(code)
            folders.append(own)
    return folders


def main(arguments: list[str]) -> int:
    update = arguments == ["--update"]
    with tempfile.TemporaryDirectory() as folder:
        folders = run_set(Path(folder))
        return call(
            ["gate", *folders, "--baseline", str(BASELINE), *(arguments if update else ["--exact", *arguments])]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
