"""--cache-state: one state, or cold and warm beside each other."""

from __future__ import annotations

import json

import pytest

from kvbench.cli import call

TEXT = """
num_prompts = 12
arrivals.rate = 5
sharing = {groups = 2, prefix = 320}
lengths = {prompt = 20, output = 4}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return str(path)


def run(capsys, *arguments):
    code = call(["run", *arguments, "-q"])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_one_state(capsys, scenario):
    code, out, _ = run(capsys, scenario, "--cache-state", "warm")
    assert code == 0
    assert "cache        warm;" in out


def test_both_states_and_their_ratio(capsys, scenario, tmp_path):
    code, out, _ = run(capsys, scenario, "--cache-state", "both", "-o", str(tmp_path / "out"))
    assert code == 0
    assert "cache        cold | warm;" in out
    assert "warm / cold" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("hit rate")]
    cold, warm, ratio = map(float, row[-3:])
    assert (cold, warm) == (78.43, 98.82)
    assert ratio == pytest.approx(warm / cold, abs=1e-3)
    assert "warm: the cache has seen this very workload once before t = 0" in out.replace("\n", " ")
    assert max(map(len, out.splitlines())) <= 100
    for state in ("cold", "warm"):
        document = json.loads((tmp_path / "out" / state / "run.json").read_text())
        assert document["config"]["cache"]["state"] == state


def test_both_states_for_a_program(capsys, scenario):
    code, out, _ = run(capsys, scenario, "--cache-state", "both", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {"cold", "warm", "ratio"}
    assert found["ratio"]["hit_rate"] == found["warm"]["hit_rate"] / found["cold"]["hit_rate"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cache-state", "hot"], "cache.state is one of cold, warm, prefilled; got 'hot'"),
        (["--cache-state", "both", "--cache-only"], "leave --cache-only out"),
        (["--cache-state", "both", "--grid", "tp=1,2"], "leave --grid out"),
        (["--cache-state", "both", "-o", "-"], "give a folder with -o DIR"),
    ],
)
def test_what_cannot_be_compared(capsys, scenario, arguments, expected):
    code, out, err = run(capsys, scenario, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_states_of_tiers_beside_each_other(capsys, scenario, tmp_path):
    """Cold is a first visit; what lies on the host comes from there, what lies on the device from nowhere else."""
    more = ("--set", "tiers.host.ratio=2", "--set", "cache.blocks=120")
    code, out, _ = run(capsys, scenario, "--cache-state", "tiers", *more, "-o", str(tmp_path / "out"))
    assert code == 0
    (header,) = [line for line in out.splitlines() if "host warm" in line and "device warm" in line and "|" not in line]
    assert "storage warm" not in header
    rows = {line[:18].strip(): line[18:].split() for line in out.splitlines() if line.startswith("of that")}
    cold, host, device = map(float, rows["of that host, %"])
    assert cold < 1 < host
    assert device < host
    assert max(map(len, out.splitlines())) <= 100
    document = json.loads((tmp_path / "out" / "host-warm" / "run.json").read_text())
    assert document["config"]["tiers"]["host"]["state"] == "warm"


def test_states_of_tiers_without_any(capsys, scenario):
    code, _, err = run(capsys, scenario, "--cache-state", "tiers")
    assert code == 2
    assert "give a host" in err
