"""The same code compiled: a choice of the other tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(os.environ.get("KVBENCH_TEST_JIT") == "1", reason="this is the second run")


def environment(**more: str) -> dict[str, str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "KVBENCH_TEST_JIT": "1"} | more
    if "NUMBA_DISABLE_JIT" not in more:
        env.pop("NUMBA_DISABLE_JIT", None)
    return env


def pytest_again(*arguments: str, **more: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_recordings_and_costs_compiled():
    pytest_again("tests/prefix/test_radix_golden.py", "tests/costs/test_tables.py")
