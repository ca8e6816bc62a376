"""What run.json says about where a run was made."""

from __future__ import annotations

import shutil
import subprocess

import numpy
import pytest

from kvbench import __version__
from kvbench.bench import machine


def test_versions_and_cpu():
    assert machine.versions()["kvbench"] == __version__
    assert machine.versions()["numpy"] == numpy.__version__
    assert machine.machine()["cpu"] == machine.cpu_name() != ""


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_a_checkout_and_of_no_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PACKAGE", tmp_path / "kvbench")
    assert machine.git_commit() == ""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (tmp_path / "f").write_text("1")
    for command in (["init", "-q"], ["add", "f"], [*identity, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, timeout=30)
    commit = machine.git_commit()
    assert len(commit) == 40
    (tmp_path / "f").write_text("2")
    assert machine.git_commit() == f"{commit}-dirty"
