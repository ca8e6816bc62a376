"""Recordings of real engines: where they lie and how they are read. For the references and the product alike.

tests/golden holds a choice of them (see its README). Where `../shared/golden` lies beside the checkout, or
KVBENCH_GOLDEN names a folder, the others are replayed as well, marked slow.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
CHOICE = REPO / "tests" / "golden"
SHARED = REPO.parent / "shared"
"""Data beside the checkout, where there is any; tests that need it skip without it."""
SUFFIXES = (".jsonl", ".jsonl.gz")


def _all_folders() -> list[Path]:
    if "KVBENCH_GOLDEN" in os.environ:
        return [Path(os.environ["KVBENCH_GOLDEN"])]
    rooms = ("recordings/eplb", "recordings/pd", "recordings/router")
    return [SHARED / folder for folder in ("golden", "cases/recordings", *rooms)]


def recording_name(path: Path) -> str:
    """vllm_sched_04_cache_preempt for .../vllm_sched_04_cache_preempt.jsonl.gz."""
    return path.name.partition(".")[0]


def _found(folder: Path, pattern: str) -> dict[str, Path]:
    paths = [p for suffix in SUFFIXES for p in folder.glob(pattern + suffix)]
    return {recording_name(p): p for p in paths}


def chosen_recordings(pattern: str) -> list[Path]:
    """Those that come with the repository. The pattern is of names: `vllm_sched_*`."""
    found = _found(CHOICE, pattern)
    if not found:
        raise LookupError(f"no recording {pattern} in {CHOICE}")
    return [found[name] for name in sorted(found)]


def recording_params(pattern: str) -> list[Any]:
    """Test parameters, one a recording; those that do not come with the repository are marked slow."""
    chosen = {recording_name(p): p for p in chosen_recordings(pattern)}
    everything = {n: p for folder in _all_folders() for n, p in _found(folder, pattern).items()} | chosen
    return [
        pytest.param(path, id=name, marks=() if name in chosen else pytest.mark.slow)
        for name, path in sorted(everything.items())
    ]


def read_recording(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """(header, steps, last line) of a recording."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    lines = [json.loads(line) for line in text.splitlines()]
    return lines[0], lines[1:-1], lines[-1]
