"""Completion scripts are ones that a shell takes, and what they ask for is answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.cli import call

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one(shell, capsys, tmp_path):
    assert call(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert f"_KVBENCH_COMPLETE={shell}_complete" in text
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed; its script was printed and not tried")
    (tmp_path / "script").write_text(text)
    done = subprocess.run([program, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("kvbench ru", ["run"]),
        ("kvbench run cha", ["chat"]),
        ("kvbench run chat --preset sgl", ["sglang"]),
        ("kvbench run chat --device h10", ["h100"]),
        ("kvbench run chat --model llama-3.1-8", ["llama-3.1-8b"]),
        ("kvbench sweep chat --grid cache.evic", ["cache.eviction="]),
        ("kvbench sweep chat --backend d", ["dask"]),
    ],
)
def test_names_are_completed(typed, offered):
    words = {"_KVBENCH_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "kvbench"],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | words,
        capture_output=True,
        text=True,
    )
    found = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert set(offered) <= set(found)
    assert all(name.startswith(typed.split()[-1]) for name in found)
