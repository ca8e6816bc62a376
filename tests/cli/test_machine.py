"""`kvbench env` and `kvbench doctor`: what they say of this machine, and of machines that are not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy
import pytest

from kvbench import __version__
from kvbench.bench import doctor
from kvbench.cli import call


def test_env_says_what_ran(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert call(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["versions"]["kvbench"] == __version__
    assert document["versions"]["numpy"] == numpy.__version__
    assert document["machine"]["cpus"] == os.cpu_count()
    assert document["variables"]["OMP_NUM_THREADS"] == "3"
    assert Path(document["cache"]["folder"]).name == document["jit"]["digest"]
    assert call(["env"]) == 0
    text = capsys.readouterr().out
    assert f"  kvbench: {__version__}" in text
    assert document["cache"]["folder"] in text


@pytest.fixture
def fit(monkeypatch, tmp_path) -> Path:
    """A machine without a flaw. Its /sys."""
    files = {"devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance", "fs/cgroup/cpu.max": "max 100000"}
    for name, text in files.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(doctor, "SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(doctor, "PLAIN", False)
    monkeypatch.setattr(doctor, "cache_root", lambda: cache)
    monkeypatch.setattr(doctor, "load_average", lambda: 0.1)
    monkeypatch.setattr(doctor, "available_bytes", lambda: 8 << 30)
    monkeypatch.setattr(doctor, "processors", lambda: os.cpu_count())
    monkeypatch.setattr(doctor, "_timed_work", lambda: 1_000_000)
    return tmp_path / "sys"


def states(capsys, code: int) -> dict[str, str]:
    """State of each check; the exit code is that of the whole."""
    assert call(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["trustworthy"] is (code == 0)
    assert all(check["mend"] for check in document["checks"] if check["state"] == "bad")
    return {check["name"]: check["state"] for check in document["checks"]}


def test_a_fit_machine_passes(fit, capsys):
    assert set(states(capsys, 0).values()) == {"ok"}
    assert call(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "can be trusted" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("load_average", lambda: 0.9, "load"),
        ("available_bytes", lambda: 1 << 30, "memory"),
        ("PLAIN", True, "jit"),
        ("cache_root", lambda: Path("/dev/null/cache"), "JIT cache"),
        ("reason_against", lambda _: "belongs to another user", "JIT cache"),
        ("_steps", lambda: iter([15_000_000, 16_000_000]), "clock"),
    ],
)
def test_each_flaw_is_found_and_said_how_to_mend(fit, monkeypatch, capsys, name, value, check):
    monkeypatch.setattr(doctor, name, value)
    found = states(capsys, 1)
    assert [name for name, state in found.items() if state == "bad"] == [check]


def test_work_that_takes_turns_is_unsteady(fit, monkeypatch, capsys):
    times = iter([1_000_000, 1_000_000, 1_300_000, 1_300_000] * 15)
    monkeypatch.setattr(doctor, "_timed_work", lambda: next(times))
    assert states(capsys, 1)["steadiness"] == "bad"


@pytest.mark.parametrize(
    ("governor", "state", "code"), [("powersave", "bad", 1), ("schedutil", "bad", 1), ("", "note", 0)]
)
def test_the_governor(fit, capsys, governor, state, code):
    path = fit / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
    path.write_text(governor) if governor else path.unlink()
    assert states(capsys, code)["governor"] == state


def test_a_share_of_the_processors(fit, monkeypatch, capsys):
    (fit / "fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert states(capsys, 1)["processors"] == "bad"
    (fit / "fs/cgroup/cpu.max").unlink()
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(doctor, "processors", lambda: 4)
    assert states(capsys, 0)["processors"] == "note"


def test_flags_that_change_the_machine_code(fit, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert states(capsys, 1)["jit"] == "bad"


def test_the_real_machine_is_looked_at():
    names = [check.name for check in doctor.examine()]
    assert len(set(names)) == len(names) >= 8
    assert 0 < min(doctor._steps()) < 10_000_000
