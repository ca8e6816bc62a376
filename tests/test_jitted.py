"""The same code compiled: a choice of the other tests, and whole runs against what plain Python gives."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(os.environ.get("KVBENCH_TEST_JIT") == "1", reason="this is the second run")

RUNS = {
    "vllm": ["chat", "--num-prompts", "60", "--set", "cache.blocks=400"],
    "vllm-step": ["chat", "--num-prompts", "60", "--set", "cache.blocks=400", "--set", "path=step"],
    "sglang": ["chat", "--num-prompts", "60", "--preset", "sglang", "--set", "cache.blocks=400"],
}


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


def test_the_tree_with_bounds_checked(tmp_path):
    more = {"NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(tmp_path)}
    pytest_again("tests/prefix/test_radix_golden.py", "-k", "_00_ or _07_", **more)


@pytest.mark.parametrize("name", RUNS)
def test_compiled_and_plain_runs_write_the_same_bytes(name, tmp_path):
    digests = []
    for mode, more in (("jit", {}), ("plain", {"NUMBA_DISABLE_JIT": "1"})):
        folder = tmp_path / mode
        command = [sys.executable, "-m", "kvbench", "run", *RUNS[name], "-q", "-o", str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment(**more), check=True, capture_output=True)
        rows = [(folder / file).read_bytes() for file in ("requests.csv", "summary.csv")]
        digests.append([hashlib.sha256(data).hexdigest() for data in rows])
    assert digests[0] == digests[1]
