"""Where output goes: text of traces on a terminal and in files, outputs that are full or closed, folders of others."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli import call
from kvbench.core.printable import csv_text, printable
from kvbench.metrics.fleet import EngineFigures
from kvbench.report.csv_files import requests_csv, summary_csv
from kvbench.report.fidelity import Case, Figure
from kvbench.report.fidelity_files import fidelity_csv
from kvbench.report.fleet_table import engines_csv
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


@pytest.mark.parametrize("name", [*FORMULAS, HOSTILE, 'a "b", c'])
def test_names_of_groups_and_of_servers_do_nothing_either(name):
    number = {f.name: 1 for f in fields(EngineFigures)} | {"group": name}
    engines = engines_csv(SimpleNamespace(engines=[EngineFigures(**number)]))
    case = Case(name, "run", *[name] * 5, 1, "table", (Figure("ttft", "p50", 2.0, 1.0),), notes=(name, name))
    for text in ("".join(engines), fidelity_csv([case])):
        (row,) = csv.DictReader(io.StringIO(text))
        cells = [cell for cell in row.values() if cell not in ("", "-0.500000")]
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) or "\x1b" in cell for cell in cells)
        assert row.get("metric", "ttft") == "ttft"


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 1}\n'),
        ("summary.csv", "month,profit\n1,2\n"),
        ("requests.csv", "url,count\n"),
        ("run.json", '{"kind": "training"}'),
    ],
)
def test_what_has_a_name_of_ours_may_still_be_of_others(fake_engine, tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)
    assert call([*RUN, "-o", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"holds {name}, which kvbench did not write" in line
    assert (tmp_path / name).read_text() == text


def test_recordings_are_put_beside_recordings(tmp_path):
    assert call(["record", "--engine", "vllm", "--rehearse", "--streams", "1", "-o", str(tmp_path)]) == 0
    assert call(["record", "--engine", "vllm", "--rehearse", "--streams", "1", "-o", str(tmp_path)]) == 0
    assert list(tmp_path.glob("*.jsonl*"))
