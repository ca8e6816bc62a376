"""Units compiled by several processes: each once, whoever is there, and all of them whoever dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.core import ahead
from kvbench.core.ahead import PROCESSES, Unit, begin
from kvbench.core.compile_watch import CompileWatch
from kvbench.core.jit import source_digest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The cache of this process and of its helpers, which need no compiler here."""
    folder = tmp_path / source_digest()
    folder.mkdir()
    monkeypatch.setattr(ahead, "PLAIN", False)
    monkeypatch.setattr(ahead, "CACHE_DIR", folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setenv(PROCESSES, "2")
    return folder


def units(log: Path, names: str = "abcd", function: str = "compile_one", *more: str) -> list[Unit]:
    return [Unit(name, "tests.core.slow_units", function, (name, str(log), *more), 1.0) for name in names]


def compiled(log: Path) -> tuple[str, set[str]]:
    """Names in order, and who compiled."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return "".join(sorted(name for name, _ in lines)), {by for _, by in lines}


def test_each_unit_is_compiled_once_and_then_kept(folder, tmp_path):
    log = tmp_path / "log"
    helpers = begin(units(log))
    helpers.finish()
    assert compiled(log)[0] == "abcd"
    begin(units(log)).finish()
    assert compiled(log)[0] == "abcd"


def test_a_helper_takes_part(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_take_part", lambda unit, wait: None)  # this process does nothing
    log = tmp_path / "log"
    begin(units(log)).finish()
    names, by = compiled(log)
    assert names == "abcd"
    assert str(os.getpid()) not in by


def test_one_process_compiles_all_itself(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(PROCESSES, "1")
    log = tmp_path / "log"
    begin(units(log)).finish()
    assert compiled(log) == ("abcd", {str(os.getpid())})


def test_a_helper_that_dies_lets_go(folder, tmp_path):
    log = tmp_path / "log"
    begin(units(log, "abcd", "compile_here_only", str(os.getpid()))).finish()
    assert compiled(log) == ("abcd", {str(os.getpid())})


def test_two_runs_at_once_share_the_work(folder, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.core.slow_units", str(log)]
    runs = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert compiled(log)[0] == "abc"


def test_no_process_and_no_lock_is_no_error(folder, tmp_path, monkeypatch):
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError("no more of these")

    monkeypatch.setattr(ahead.subprocess, "Popen", refuse)
    monkeypatch.setattr(ahead.fcntl, "flock", refuse)
    log = tmp_path / "log"
    begin(units(log)).finish()
    assert compiled(log) == ("abcd", {str(os.getpid())})


def test_without_locks_nobody_helps(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "fcntl", None)
    log = tmp_path / "log"
    begin(units(log)).finish()
    assert compiled(log) == ("abcd", {str(os.getpid())})


def test_the_bar_says_what_compiles_and_how_long(folder, tmp_path):
    watch = CompileWatch()
    first, second = units(tmp_path / "log", "ab")
    watch.expect([first, second], 2)
    before = watch._line()
    assert before.endswith(": a, b")
    assert "about 8 s left" in before  # 14 of small functions and 2 x 1, by two
    first._done.touch()
    assert watch._line().endswith(": b")
