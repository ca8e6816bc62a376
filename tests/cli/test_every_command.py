"""What holds for every command: help, -v, --json, exit codes in one table, colour only where it is wanted."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kvbench.cli import app, call
from kvbench.core import errors

ROOT = Path(__file__).resolve().parents[2]

NO_JSON = {
    "trace convert": "writes a trace",
    "trace fit": "writes a workload",
    "completion": "prints a script",
    "warm": "fills the cache",
    "report": "writes a page",
    "plot": "draws a picture",
}
"""Commands whose output is no data, and why."""


def commands(group: click.Group = app, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


ALL = list(commands())


def options(command: click.Command) -> set[str]:
    return {text for parameter in command.params for text in parameter.opts}


@pytest.mark.parametrize(("name", "command"), ALL)
def test_help_is_there_and_fits(name, command, capsys):
    assert call([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert command.help
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(("name", "command"), ALL)
def test_verbose_and_json_are_options_of_every_command(name, command):
    assert {"-v", "--verbose"} <= options(command)
    if name not in NO_JSON:
        assert "--json" in options(command)


def test_a_fault_in_any_command_shows_its_trace_to_who_asks(monkeypatch, capsys):
    def fail():
        raise IndexError("out of bounds")

    monkeypatch.setattr("kvbench.bench.scenarios.scenario_descriptions", fail)
    assert call(["list"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert call(["list", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_exit_codes_stand_in_one_table_that_help_shows(capsys):
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert set(errors.EXIT_CODES) == codes
    assert call(["--help"]) == 0
    table = capsys.readouterr().out.partition("Exit codes:")[2]
    assert [int(line.split()[0]) for line in table.strip().splitlines()] == sorted(codes)


def test_no_command_makes_up_an_exit_code():
    """Numbers that are returned as exit codes come from the table."""
    for path in (ROOT / "kvbench" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_command"):
                returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
                assert not any(isinstance(value, ast.Constant) for value in returned), f"{path.name}: {node.name}"


def test_list_and_config_as_json(capsys):
    assert call(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "chat" in listed["scenarios"]
    assert {"lru", "slru"} <= set(listed["eviction policies"])
    assert call(["config", "chat", "--set", "cache.blocks=700", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert keys["cache.blocks"]["value"] == 700
    assert keys["cache.blocks"]["from"] == "--set"
    assert keys["arrivals.rate"]["unit"] == "requests/s"
    assert all(entry["meaning"] for entry in keys.values())


def test_verify_as_json(capsys, tmp_path):
    assert call(["record", "--engine", "sglang", "--rehearse", "--streams", "1", "--json", "-o", str(tmp_path)]) == 0
    names = json.loads(capsys.readouterr().out)["streams"]
    assert call(["verify", "golden", str(tmp_path), "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert len(document["streams"]) == len(names)
    arguments = ["verify", "fuzz", "--operations", "200", "--combination", "token-budget/hash/16/step", "--json", "-q"]
    assert call(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert sum(line["operations"] for line in document["combinations"]) >= 200


def test_gate_as_json(fake_engine, capsys, tmp_path):
    small = ["run", "chat", "--num-prompts", "20", "-q"]
    assert call([*small, "-o", str(tmp_path / "a")]) == 0
    baseline = str(tmp_path / "baseline.csv")
    capsys.readouterr()
    assert call(["gate", str(tmp_path / "a"), "--baseline", baseline, "--update", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["changes"]) == 1
    assert call(["gate", str(tmp_path / "a"), "--baseline", baseline, "--all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 0
    assert {one["outcome"] for one in document["outcomes"]} == {"pass", "not judged"}


def test_no_color_holds_on_a_terminal():
    """Errors are red on a terminal, and plain where NO_COLOR is set."""
    pty = pytest.importorskip("pty", reason="needs a terminal")
    shown = {}
    for name, more in {"plain": {"NO_COLOR": "1"}, "coloured": {}}.items():
        master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"PYTHONPATH": str(ROOT)} | more
        done = subprocess.run([sys.executable, "-m", "kvbench", "run", "caht"], stderr=slave, env=environment)
        assert done.returncode == 2
        shown[name] = os.read(master, 4096).decode()
        os.close(slave)
        os.close(master)
    assert "unknown scenario caht" in shown["plain"]
    assert "\x1b[" not in shown["plain"]
    assert "\x1b[" in shown["coloured"]
