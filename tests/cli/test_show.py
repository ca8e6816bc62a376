"""`list`, `config`, help and start-up."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from kvbench import __version__
from kvbench.bench.keys import key_tree
from kvbench.cli import call
from kvbench.cli.progress import ProgressBar
from kvbench.costs.devices import DEVICES
from kvbench.costs.models import MODELS
from kvbench.scheduler.presets import PRESETS


def modules_after(arguments: list[str]) -> set[str]:
    """Names of the modules that a process has loaded after one command line."""
    code = f"import sys; from kvbench.cli import call; call({arguments}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return set(done.stderr.split())


def test_list_has_a_line_for_everything(capsys):
    assert call(["list"]) == 0
    out = capsys.readouterr().out
    for name in ("chat", *PRESETS, *MODELS, *DEVICES, "fcfs", "lru"):
        line = next(line for line in out.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 2, line


def test_config_shows_every_key(capsys):
    assert call(["config"]) == 0
    out = capsys.readouterr().out.splitlines()
    shown = dict(line.split(" = ", 1) for line in out if not line.startswith(" "))
    assert set(shown) == {key.name for key in key_tree().keys}
    assert shown["scheduler.max_num_seqs"] == "1024    (by device)"
    assert max(len(line) for line in out if line.startswith(" ")) <= 100


def test_config_shows_the_values_of_a_target_and_where_they_stood(capsys):
    assert call(["config", "chat", "--preset", "sglang", "--set", "cache.blocks=77"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "cache.blocks = 77    (--set)" in out
    assert 'cache.kind = "radix"    (preset sglang-0.5.23)' in out
    assert "arrivals.rate = 8.0    (scenario chat)" in out


def test_every_meaning_is_a_line_of_its_own():
    for key in key_tree().keys:
        assert key.meaning, key.name
        assert "\n" not in key.meaning


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["-h"], [], ["run", "--help"]])
def test_help_and_version(arguments, capsys):
    assert call(arguments) == 0
    out, err = capsys.readouterr()
    assert ("Usage: kvbench" in out) or out == f"kvbench {__version__}\n"
    assert err == ""


def test_an_unknown_command_is_one_line(capsys):
    assert call(["rnu"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_loads_no_array_library():
    modules = modules_after(["--help"])
    assert "click" in modules
    assert not {"numpy", "numba", "pandas", "scipy", "tabulate"} & modules


@pytest.mark.parametrize("command", ["list", "config", "config chat"])
def test_looking_things_up_compiles_nothing(command):
    modules = modules_after(command.split())
    assert "kvbench.cli" in modules
    assert not {"numba", "numpy"} & modules


def test_python_m_is_the_console_script():
    done = subprocess.run([sys.executable, "-m", "kvbench", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"kvbench {__version__}\n")


def test_a_reader_that_leaves_early_gets_no_trace():
    done = subprocess.run(
        f"{sys.executable} -m kvbench config | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("preset = ")


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_color_is_for_terminals_that_did_not_refuse_it(value, coloured):
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "NO_COLOR": value}
    subprocess.run([sys.executable, "-m", "kvbench", "rnu"], stderr=theirs, env=environment, timeout=60)
    os.close(theirs)
    error = os.read(ours, 4096).decode()
    os.close(ours)
    assert "No such command" in error
    assert ("\x1b[31m" in error) is coloured


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "shown"),
    [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)],
)
def test_progress_is_for_terminals(monkeypatch, stream, quiet, shown):
    monkeypatch.setattr(sys, "stderr", stream())
    with ProgressBar(quiet) as progress:
        progress(1, 4)
        progress(4, 4)
    text = sys.stderr.getvalue()
    assert ("100%" in text) is shown
    assert bool(text) is shown


@pytest.mark.parametrize("command", [["list"], ["config", "chat"]])
def test_no_line_is_wider_than_a_table(command, capsys):
    assert call(command) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
