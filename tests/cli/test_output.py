"""Where output goes: text of traces on a terminal and in files, outputs that are full or closed, folders of others."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli import call
from kvbench.core.printable import csv_text, printable
from kvbench.report.csv_files import requests_csv, summary_csv
from kvbench.report.run_json import to_text
from kvbench.report.table import run_table
from tests.runs import journal, record, requests

ROOT = Path(__file__).resolve().parents[2]

HOSTILE = "\x1b[2J\x9b31m=HYPERLINK(1)\r\n\u202eevil\x7f"
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1")


@given(st.text())
def test_what_is_printed_moves_no_cursor(text):
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in printable(text))


@given(st.text())
def test_a_cell_is_one_cell_and_no_formula(text):
    (row,) = csv.reader(io.StringIO(f"{csv_text(text)},end\n"))
    cell, end = row
    assert end == "end"
    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r") or float(cell) is not None
    plain = printable(text)
    assert cell.removeprefix("'") == plain.removeprefix("'")


@pytest.mark.parametrize("name", [*FORMULAS, HOSTILE])
def test_names_of_a_trace_do_nothing_in_files_and_tables(name):
    rows = list(csv.DictReader(io.StringIO("".join(requests_csv(journal(), requests(tenants=("a", name)))))))
    assert len(rows) == 4
    assert not rows[1]["tenant"].startswith(("=", "+", "-", "@", "\t", "\r"))
    texts = ["".join(summary_csv(record(run=name))), run_table(record(run=name)), to_text({"run": name})]
    for text in texts:
        assert not any(c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e") for c in text)
    assert json.loads(texts[2])["run"] == name


def test_numbers_stay_numbers():
    assert [csv_text(cell) for cell in ("-1", "+2.5", "-1e-9", "a,b", '"')] == ["-1", "+2.5", "-1e-9", '"a,b"', '""""']


def test_an_error_prints_no_control_character(capsys):
    assert call(["run", "\x1b[31mchat"]) == 2
    assert "\x1b[31mchat" not in capsys.readouterr().err


COMMANDS = (["list"], ["list", "--json"], ["config", "chat"], ["--help"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_output_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvbench", *command], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot write the output: No space left on device" in line


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "2>/dev/full >/dev/full"])
def test_a_closed_output_is_one_line(closed):
    command = f"{sys.executable} -m kvbench list {closed}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) <= 1
    assert "report it" not in done.stderr


RUN = ["run", "chat", "--num-prompts", "3", "-q"]


@pytest.mark.parametrize(
    "command",
    [
        RUN,
        [*RUN, "--seeds", "2"],
        [*RUN, "--grid", "cache.blocks=3000,4000"],
        [*RUN, "--cache-state", "both"],
        ["sweep", *RUN[1:], "--grid", "cache.blocks=3000", "--jobs", "1"],
        ["ab", *RUN[1:], "--set-b", "cache.blocks=4000"],
    ],
)
def test_a_folder_with_files_of_others_is_refused(command, fake_engine, tmp_path, capsys):
    """Their own results it takes again, and what the user forces."""
    out = tmp_path / "out"
    assert call([*command, "-o", str(out)]) == 0
    assert call([*command, "-o", str(out)]) == 0
    capsys.readouterr()
    inner = out / "more"
    inner.mkdir()
    (inner / "thesis.tex").write_text("years of work")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert call([*command, "-o", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "more/thesis.tex" in line
    assert "--force" in line
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert call([*command, "-o", str(out), "--force"]) == 0
    assert (inner / "thesis.tex").read_text() == "years of work"
