"""`kvbench report`, `kvbench plot` and `run --timeline` from command line to files and exit code."""

from __future__ import annotations

import json

import pytest

from kvbench.cli import call

from ..report.pictures.made import write_run

SMALL = ["--num-prompts", "20", "--request-rate", "10"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_run(tmp_path_factory.mktemp("runs") / "one", 50))


def error(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_page_goes_to_a_file_or_to_stdout(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert call(["report", folder, "-o", str(out)]) == 0
    assert error(capsys) == f"kvbench: wrote {out}"
    assert call(["report", folder, "-o", "-", "--title", "A & B"]) == 0
    printed, err = capsys.readouterr()
    assert "<h1>A &amp; B</h1>" in printed
    assert err == ""
    assert printed.replace("A &amp; B", "Report: one") == out.read_text()


def test_plots_are_numbered_by_what_they_show(folder, tmp_path, capsys):
    assert call(["plot", folder, "--what", "cdf", "-o", str(tmp_path / "c.svg"), "-q"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c-e2el.svg", "c-itl.svg", "c-tpot.svg", "c-ttft.svg"]
    first = (tmp_path / "c-ttft.svg").read_bytes()
    assert call(["plot", folder, "--what", "cdf", "--metric", "ttft", "-o", str(tmp_path / "d.svg")]) == 0
    assert (tmp_path / "d.svg").read_bytes() == first
    assert "wrote" in capsys.readouterr().err
    assert call(["plot", folder, "--what", "timeline", "-o", str(tmp_path / "t.png"), "-q"]) == 0
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_timeline_beside_a_run(fake_engine, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert call(["run", "chat", *SMALL, "--timeline", str(trace), "-o", str(tmp_path / "out")]) == 0
    assert f"wrote {trace}" in capsys.readouterr().err
    document = json.loads(trace.read_text())
    assert sum(e["ph"] == "b" and e["name"].startswith("request") for e in document["traceEvents"]) == 20
    assert document["otherData"]["run"] == "chat"
    assert not (tmp_path / "out" / "steps.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "nothing to report"),
        (["report", "nowhere"], "there is no such file or folder"),
        (["report", "FOLDER", "-o", "none/x.html"], "there is no folder"),
        (["report", "FOLDER", "-o", "/"], "is a folder"),
        (["report", "FOLDER", "--baseline", "/"], "is not one of the runs"),
        (["plot", "--what", "cdf", "-o", "x.svg"], "nothing to plot"),
        (["plot", "FOLDER", "--what", "cdf", "-o", "x.gif"], "FILE.svg or FILE.png"),
        (
            ["plot", "FOLDER", "--what", "cdf", "--metric", "queue", "-o", "x.svg"],
            "--what cdf has ttft, tpot, itl, e2el",
        ),
        (["plot", "FOLDER", "--what", "misses", "-o", "x.svg"], "it needs a grid.csv"),
        (["run", "chat", "--timeline", "x.json", "--seeds", "2"], "--timeline draws one run"),
        (["run", "chat", "--timeline", "none/x.json"], "there is no folder"),
    ],
)
def test_wrong_use_is_one_line(folder, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert call([folder if a == "FOLDER" else a for a in arguments]) == 2
    assert said in error(capsys)
    assert list(tmp_path.iterdir()) == []
