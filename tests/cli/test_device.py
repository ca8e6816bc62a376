"""`kvbench device`: tables are built, shown, used, and refused where they do not fit."""

import json

import pytest

from kvbench.cli import call

from ..costs.test_profile import folder

__all__ = ["folder"]

FEW = ("--num-prompts", "5", "-q")


@pytest.fixture
def table(folder, tmp_path):
    path = tmp_path / "mine.npz"
    assert call(["device", "build", "--profile", str(folder), "-o", str(path)]) == 0
    return path


def test_a_profile_becomes_a_device(folder, table, capsys):
    capsys.readouterr()
    assert call(["device", "build", "--profile", str(folder), "-o", str(table)]) == 0
    out = capsys.readouterr().out
    assert "profile of vLLM 0.19.0 on RTX 4090 (tp 1)" in out
    assert "chunks of 256 on 1,024; 16 decodes of 4,096" in " ".join(out.split())
    assert call(["run", "chat", "--device", str(table), *FEW]) == 0
    head = " ".join(capsys.readouterr().out.split())
    assert "step times profile of vLLM 0.19.0 on RTX 4090 (tp 1) their error TPOT" in head
    assert call(["run", "chat", "--step-times", str(table), "--device", "rtx-4090", *FEW]) == 0
    assert "step times profile of" in " ".join(capsys.readouterr().out.split())


def test_steps_beyond_a_table_are_counted(table, capsys):
    assert call(["run", "chat", "--device", str(table), "--set", "overlap=false", *FEW]) == 0
    inside = capsys.readouterr().out
    assert call(["run", "chat", "--device", str(table), "--set", "lengths.prompt=1500", *FEW]) == 0
    beyond = " ".join(capsys.readouterr().out.split())
    assert "steps lie beyond what the step times were measured for" in beyond
    assert "beyond what the step times" in " ".join(inside.split())  # this profile ends at chunks of 256
    assert call(["run", "chat", "--set", "costs.silicon=false", *FEW]) == 0
    assert "beyond what" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["h200", "a100", "table"])
def test_step_times_are_shown_beside_the_roofline(name, table, tmp_path, capsys):
    picture = tmp_path / "times.svg"
    capsys.readouterr()
    given = str(table) if name == "table" else name
    assert call(["device", "show", given, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "context 512" in out
    assert "prompt tokens" in out
    assert max(map(len, out.splitlines())) <= 100
    assert picture.read_text().startswith("<svg")
    assert call(["device", "show", given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step times"]
    assert all(row["ms"] > 0 and row["roofline_ms"] > 0 for row in document["decode"] + document["prefill"])
    if name == "a100":
        assert all(row["ms"] == pytest.approx(row["roofline_ms"]) for row in document["decode"])
    assert any(row["beyond"] for row in document["prefill"]) == (name == "table")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "-o", "x.npz"], "needs one of --profile DIR and --silicon SYSTEM"),
        (["build", "--profile", "none", "-o", "x.npz"], "none: no such folder"),
        (["build", "--profile", "none", "-o", "x.csv"], "ends in .npz"),
        (["build", "--silicon", "h200_sxm", "-o", "x.npz"], "needs --model"),
        (["show", "h2000"], "unknown device 'h2000'"),
        (["show", "none.npz"], "none.npz: no such file"),
        (["show", "none.csv"], "none.csv"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert call(["device", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_table_of_something_else_is_refused(table, capsys):
    capsys.readouterr()
    assert call(["run", "chat", "--device", str(table), "--model", "qwen3-8b", *FEW]) == 2
    assert "these step times are of model llama-3.1-8b (the run has qwen3-8b)" in capsys.readouterr().err
