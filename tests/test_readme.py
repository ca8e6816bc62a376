"""The README's commands are the ones that are tested, and the output that is explained is what the tool prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvbench.cli import call

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="needs a checkout")


def after(marker: str, page: str = "README.md") -> str:
    """The indented block that follows a comment of a page."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^<!-- {marker} -->\n\n((?:    .*\n|\n)+)", text, re.M)
    assert found, f"{page} has no block <!-- {marker} -->"
    return re.sub(r"^    ", "", found[1], flags=re.M).strip("\n")


def test_the_commands_that_ci_runs_are_there():
    assert after("run").count("\n") == after("test").count("\n") == 0
    assert "kvbench run" in after("run")
    assert "pytest" in after("test")


def test_the_output_is_what_the_tool_prints(capsys):
    command = re.search(r"<!-- output of: kvbench (.*) -->", (ROOT / "docs/reading.md").read_text())
    assert command
    assert call([*shlex.split(command[1]), "-q"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    assert after("output of: kvbench .*", "docs/reading.md").splitlines() == printed


def test_every_command_shown_is_understood(capsys):
    text = (ROOT / "README.md").read_text()
    shown = [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^    kvbench (.*)$", text, re.M)]
    assert len(shown) >= 4
    for line in shown:
        arguments = shlex.split(line)
        if arguments[0] == "run":  # as `config` the same options are read, and nothing is run or written
            keep = arguments[1:]
            if "-o" in keep:
                del keep[keep.index("-o") : keep.index("-o") + 2]
            arguments = ["config", *(a for a in keep if not a.endswith("run.json"))]
        assert call(arguments) == 0, line
    capsys.readouterr()
