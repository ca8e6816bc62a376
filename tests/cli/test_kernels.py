"""`kvbench kernels` from command line to tables, JSON, pictures and exit codes, at sizes for plain Python."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvbench.cli import app, call
from kvbench.speed import check, experiments
from tests.speed.sizes import TINY


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Whatever memory is asked for, it is little."""
    monkeypatch.setattr("kvbench.speed.sizes.Sizes", lambda memory_bytes: TINY)
    monkeypatch.setattr(check, "HEAD_DIMS", (64,))
    monkeypatch.setattr(check, "LAYOUTS", ("NHD",))
    monkeypatch.setattr(check, "LENGTHS", (1, 20, 33))
    monkeypatch.setattr(check, "NEW_TOKENS", (1, 1, 9))
    monkeypatch.setattr(experiments, "_LENGTH", 32)


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="needs the extra `plot`")


def test_tables_of_at_most_100_columns(capsys):
    assert call(["kernels", "--only", "copy,write", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    for word in ("memory", "arithmetic", "copy on write", "KV write", "memcpy", "target", "first", "load before"):
        assert word in out
    assert "paged decode" not in out
    assert max(map(len, out.splitlines())) <= 100
    assert all(line.startswith("kvbench: warning: ") for line in err.splitlines())


def test_quiet_says_nothing_on_stderr():
    result = CliRunner().invoke(app, ["kernels", "--only", "copy", "-q"], standalone_mode=False)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "copy on write" in result.stdout


def test_json(capsys):
    assert call(["kernels", "--only", "copy", "--json", "-q", "--threads", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["clock"]) == ("kvbench.kernels", "measured")
    assert document["machine"]["threads"] == 1
    row = next(row for row in document["rows"] if row["group"] == "copy on write")
    assert row["ratio"] == pytest.approx(row["rate"] / row["limit_rate"])
    assert {"milliseconds", "spread", "first_s", "target", "peer"} <= set(row)


def test_check_passes_and_fails_with_its_exit_code(capsys, monkeypatch):
    assert call(["kernels", "--check"]) == 0
    out = capsys.readouterr().out
    assert "0 failed" in out
    assert max(map(len, out.splitlines())) <= 100
    monkeypatch.setattr(check, "BOUND", 0.0)
    assert call(["kernels", "--check"]) == 1
    assert "FAILED: decode, head size 64, float32, NHD: error" in capsys.readouterr().out
    assert call(["kernels", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


@pytest.mark.parametrize("name", ["block-size", "layout"])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_an_experiment_is_a_table_and_a_picture(matplotlib, tmp_path, capsys, name, suffix):
    picture = tmp_path / f"x{suffix}"
    assert call(["kernels", "--experiment", name, "--threads", "1", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert picture.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    if suffix == ".svg":
        assert ("tokens per block" if name == "block-size" else "decode bf16") in picture.read_text()


def test_an_experiment_as_json(capsys):
    assert call(["kernels", "--experiment", "layout", "--json", "-q", "--threads", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "kvbench.kernels.experiment"
    assert len(document["rows"]) == len(document["lines"][0][1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "decode,radx"], "'radx' is not a group; take decode"),
        (["--only", "copy", "--check"], "--only and --check do not go together"),
        (["--experiment", "layout", "--check"], "--check and --experiment do not go together"),
        (["--experiment", "layouts"], "take one of block-size"),
        (["--threads", "100000"], "100000 threads: this machine has"),
        (["--threads", "0"], "--threads"),
        (["--memory", "1"], "--memory"),
        (["--plot", "x.svg"], "--plot draws an experiment"),
        (["--experiment", "layout", "--plot", "x.pdf"], "write it as FILE.svg or FILE.png"),
        (["--experiment", "layout", "--plot", "nowhere/x.svg"], "there is no folder nowhere"),
        (["copy"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert call(["kernels", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
