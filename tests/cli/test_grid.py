"""`kvbench run --grid` from command line to files and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvbench.cli import call

SMALL = ["--num-prompts", "20", "--request-rate", "10", "--set", "lengths.prompt=60", "--set", "lengths.output=6"]
BLOCKS = ["--grid", "cache.blocks=800..3200*2"]


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)


def test_full_runs_leave_a_table_and_a_folder_for_each_point(fake_engine, tmp_path, capsys):
    out = tmp_path / "out"
    grid = ["--grid", "cache.blocks=4000,5000", "--grid", "seed=1,2"]
    assert call(["run", "chat", *SMALL, *grid, "-o", str(out), "--steps"]) == 0
    printed, err = capsys.readouterr()
    head, table, *_ = printed.split("\n\n")
    assert head.split()[:2] == ["run", "chat"]
    assert "device       h100" in head
    assert "2 workloads" in head
    assert table.split()[:2] == ["blocks", "seed"]
    assert len(table.splitlines()) == 2 + 4
    assert "seed 1: no difference" in printed
    assert err == f"kvbench: wrote grid.csv and a folder for each point to {out}\n"
    frame = pd.read_csv(out / "grid.csv")
    assert frame[["cache.blocks", "seed"]].values.tolist() == [[4000, 1], [4000, 2], [5000, 1], [5000, 2]]
    folders = sorted(p for p in out.iterdir() if p.is_dir())
    assert folders[1].name == "002-cache.blocks=4000,seed=2"
    assert {p.name for p in folders[1].iterdir()} == {"requests.csv", "summary.csv", "itl.csv", "steps.csv", "run.json"}
    config = json.loads((folders[1] / "run.json").read_text())["config"]
    assert (config["cache"]["blocks"], config["seed"]) == (4000, 2)
    assert call(["run", str(folders[1] / "run.json"), "-q"]) == 0


def test_a_curve_on_stdout_as_table_csv_and_json(capsys, tmp_path):
    command = [
        "run",
        "chat",
        *SMALL,
        *BLOCKS,
        "--grid",
        "cache.eviction=lru,fifo",
        "--preset",
        "sglang",
        "--cache-only",
    ]
    assert call(command) == 0
    table = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert table[0].split() == ["blocks", "GB", "lru", "fifo", "optimum", "infinite"]
    assert [line.split()[0] for line in table[2:]] == ["800", "1,600", "3,200"]
    assert call([*command, "-o", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 6
    assert call([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["points"][1]["grid"] == {"cache.blocks": "800", "cache.eviction": "fifo"}
    assert call([*command, "-o", str(tmp_path / "c"), "-q"]) == 0
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["grid.csv"]


def test_a_picture_is_drawn(capsys, tmp_path):
    path = tmp_path / "curve.svg"
    assert call(["run", "chat", *SMALL, *BLOCKS, "--cache-only", "--plot", str(path)]) == 0
    assert path.read_text().startswith("<svg")
    assert capsys.readouterr().err == f"kvbench: wrote {path}\n"


def test_points_that_cannot_run_are_warned_about(fake_engine, capsys):
    assert call(["run", "chat", *SMALL, "--grid", "cache.blocks=1,5000"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvbench: warning: cache.blocks=1: all 20 sequences were refused")
    assert call(["run", "chat", *SMALL, "--grid", "cache.blocks=1,2"]) == 2


def test_interrupted_is_a_partial_result(fake_engine, capsys, tmp_path: Path):
    fake_engine.interrupt_after = 5
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    picture = tmp_path / "none.svg"
    command = ["run", "chat", *SMALL, "--grid", "cache.blocks=4000,5000", "--plot", str(picture)]
    assert call([*command, "-o", str(tmp_path / "p")]) == 130
    assert not picture.exists()
    assert "interrupted: a partial result, 1 of 2 points" in capsys.readouterr().err
    assert "interrupted" in (tmp_path / "p" / "grid.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "cache.blcks=1,2"], "unknown key cache.blcks; the nearest is cache.blocks"),
        (["--grid", "cache.blocks=1,two"], "--grid cache.blocks=two: cache.blocks is a number"),
        (["--grid", "cache.blocks"], "write it as key=value,value"),
        (["--grid", "seed=1", "--grid", "seed=2"], "--grid seed is given twice"),
        (["--grid", "seed=1,2", "--plot", "a.gif"], "FILE.svg or FILE.png"),
        (["--grid", "seed=1,2", "--plot", "a.png"], "pip install 'kvbench[plot]'"),
        (["--plot", "a.svg"], "--plot draws the curves of a grid; add --grid"),
        (["--cache-only", "--grid", "cache.kind=hash,none"], "nothing to replay"),
        (["--grid", "seed=1,2", "-o", __file__], "a file with this name exists"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(no_matplotlib, arguments, message, capsys):
    assert call(["run", "chat", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


def test_automatic_sizes_reach_from_one_request_to_all(capsys):
    assert call(["run", "chat", *SMALL, "--cache-only", "--grid", "cache.blocks=auto", "--curve", "hit"]) == 0
    out = capsys.readouterr().out
    assert "hit ratio, % of prompt tokens" in out
    rows = [line.split() for line in out.split("\n\n")[2].splitlines()[2:]]
    sizes = [int(row[0].replace(",", "")) for row in rows]
    assert sizes == sorted(sizes)
    assert 4 <= len(sizes) <= 12
    assert rows[-1][2] == rows[-1][-1]  # the largest hits all that there is
    assert "The device holds" in out
