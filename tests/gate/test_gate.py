"""The gate on the command line: every exit code, and each output read back."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli import call
from kvbench.gate.judge import REGRESSION, gate
from kvbench.gate.markdown import MOST_BYTES, markdown
from kvbench.gate.runs import read_runs, to_csv

from .sides import runs


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, *args, **kwargs) -> str:
        path = tmp_path / f"{name}.csv"
        path.write_text("".join(to_csv(runs(*args, **kwargs))))
        return str(path)

    return write


def judged(candidate: str, baseline: str, *options: str) -> int:
    return call(["gate", candidate, "--baseline", baseline, *options])


def test_0_equal_runs_pass(write, capsys):
    assert judged(write("a"), write("b")) == 0
    assert capsys.readouterr().out.startswith("pass: ")


@pytest.mark.parametrize(
    ("values", "options", "code", "says"),
    [
        ({"ttft": 9.0}, (), 0, "baseline stale"),
        ({"ttft": 9.0}, ("--exact",), 3, "regression"),
        ({"steps": 7}, (), 0, "baseline stale"),
        ({"steps": 7}, ("--exact",), 3, "regression"),
        ({"ttft": 10.000001}, (), 3, "regression"),
        ({"ttft": 10.4}, ("--max-regression", "ttft=5%"), 0, "baseline stale"),
        ({"ttft": 10.4}, ("--max-regression", "0.05"), 0, "baseline stale"),
        ({"ttft": 10.4}, ("--max-regression", "5%", "--max-regression", "ttft.p99=1%"), 3, "1 worse"),
        ({"hit_rate": 0.05}, ("--max-regression", "50%"), 3, "hit_rate"),
        ({"hit_rate": 0.1}, ("--max-regression", "50%", "--max-regression", "hit_rate=99%"), 0, "stale"),
        ({"preemptions": 2}, ("--max-regression", "99%"), 3, "preemptions"),
        ({"ttft": None}, (), 3, "ttft"),
    ],
)
def test_modelled_changes(write, capsys, values, options, code, says):
    base = write("base", values={"preemptions": 0 if values == {"preemptions": 2} else 1})
    candidate = write("candidate", values={"preemptions": 1} | values)
    assert judged(candidate, base, *options) == code
    assert says in capsys.readouterr().out


def test_1_an_empty_baseline_fails(tmp_path, write, capsys):
    empty = tmp_path / "empty.csv"
    empty.write_text(next(to_csv([])))
    assert judged(write("a"), str(empty)) == 1
    assert judged(str(empty), write("a")) == 1
    assert judged(str(empty), write("b"), "--update") == 1
    assert "measured nothing" in capsys.readouterr().err


def test_2_usage(write, tmp_path, capsys):
    a = write("a")
    assert judged(a, str(tmp_path / "none.csv")) == 2
    assert judged(a, a, "--max-regression", "tfft=5%") == 2
    assert "nearest is ttft" in capsys.readouterr().err
    assert judged(a, a, "--max-regression", "much") == 2
    assert judged(a, a, "--max-regression", "-5%") == 2
    assert judged(a, a, "--update", "--exact") == 2
    measured = write("m", clock="measured")
    assert judged(measured, measured, "--exact") == 2
    assert all(line.startswith("kvbench: ") for line in capsys.readouterr().err.splitlines())


def test_measured_runs_are_judged_by_their_interval(write):
    noise = [1.01, 0.99, 1.0, 1.02, 0.98, 1.0]
    base = write("base", 6, "measured", {"ttft": 10.0})
    near = write("near", 6, "measured", {"ttft": [10 * x for x in noise]})
    slow = write("slow", 6, "measured", {"ttft": [13 * x for x in noise]})
    wide = write("wide", 6, "measured", {"ttft": [10 * x for x in (1, 1.3, 0.9, 1.25, 0.8, 1.1)]})
    few = write("few", 2, "measured", {"ttft": [9.0, 8.0]})
    assert judged(near, base) == 0
    assert judged(slow, base) == 3
    assert judged(wide, base) == 4
    assert judged(few, write("base2", 2, "measured", {"ttft": 10.0})) == 4
    assert judged(slow, base, "--max-regression", "ttft=50%") == 0


def test_4_seeds_that_disagree(write):
    assert judged(write("a", 2, values={"ttft": [9.0, 11.0]}), write("b", 2)) == 4
    assert judged(write("a", 2, values={"ttft": [9.0, 10.2]}), write("b", 2), "--max-regression", "5%") == 0


@pytest.mark.parametrize(
    "identity", [{"fingerprint": "x"}, {"model": "x"}, {"device": "x"}, {"preset": "x"}, {"seed": 9}]
)
def test_5_not_comparable(write, capsys, identity):
    assert judged(write("a", **identity), write("b")) == 5
    assert "not comparable" in capsys.readouterr().err


def test_5_another_schema(write, tmp_path):
    path = Path(write("a"))
    text = path.read_text()
    assert ",1,modelled," in text
    path.write_text(text.replace(",1,modelled,", ",0,modelled,"))
    assert judged(str(path), write("b")) == 5


def test_update_writes_the_baseline_and_says_what_changed(write, tmp_path, capsys):
    base = str(tmp_path / "new" / "baseline.csv")
    assert judged(write("a"), base, "--update") == 0
    assert capsys.readouterr().out == "small / vllm-0.33, seed 0: new\n"
    changed = write("c", values={"ttft": 9.0})
    assert judged(changed, base, "--update") == 0
    out = capsys.readouterr().out
    assert "small / vllm-0.33, seed 0: ttft.p99 10.00 -> 9.00\n" in out
    assert judged(changed, base, "--exact") == 0
    other = write("o", run="other")
    assert judged(other, base, "--update") == 0
    assert {run["run"] for run in read_runs(Path(base))} == {"small", "other"}
    assert judged(changed, base) == 5  # a run of the baseline that nobody measured is not passed over
    assert call(["gate", changed, other, "--baseline", base, "--exact"]) == 0


def test_outputs_read_back(write, tmp_path):
    files = {name: str(tmp_path / name) for name in ("s.md", "j.xml", "b.json", "g.json")}
    flags = zip(("--markdown", "--junit", "--bencher", "--github-action-benchmark"), files.values(), strict=True)
    options = [part for pair in flags for part in pair]
    Path(files["s.md"]).write_text("before\n")
    candidate = write("a", 2, values={"ttft": [11.0, 12.0], "steps": [5, 6], "preemptions": [3, 0]})
    assert judged(candidate, write("b", 2), *options) == 3

    text = Path(files["s.md"]).read_text()
    assert text.startswith("before\n")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ❌")]
    assert ["ttft.mean", "ms", "10.00", "11.50"] in [row[2:6] for row in rows]

    suites = ET.parse(files["j.xml"]).getroot()
    (suite,) = suites
    cases = {case.get("name"): case for case in suite}
    assert int(suite.get("tests")) == len(cases)
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert {name for name in failed if name.startswith("ttft")} == {f"ttft.{s}" for s in ("mean", "p50", "p90", "p99")}
    assert int(suites.get("failures")) == len(failed)
    assert cases["preemptions"].find("skipped") is not None
    assert "stale" in cases["steps"].find("system-out").text

    bencher = json.loads(Path(files["b.json"]).read_text())
    own = bencher["small / vllm-0.33 / seed 1"]
    assert own["ttft-p50"] == {"value": 12.0, "lower_value": 10.8, "upper_value": 13.2}
    assert own["steps"] == {"value": 6.0}

    entries = json.loads(Path(files["g.json"]).read_text())
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["small / vllm-0.33 / seed 0 / ttft.p50"]["value"] == 11.0
    assert by_name["small / vllm-0.33 / seed 0 / ttft.p50"]["range"] == "9.9 .. 12.1"
    assert not any("throughput" in name or "hit_rate" in name for name in by_name)


def test_a_step_summary_stays_within_its_limit():
    report = gate(runs(run="a | b"), runs(run="a | b", values={"ttft": 99.0}), (), exact=False)
    assert "a &#124; b" in markdown(report)
    assert "left out" not in markdown(report)
    assert "left out" in markdown(report, MOST_BYTES - 300)
    long = markdown(replace(report, outcomes=4000 * report.of(REGRESSION)))
    assert MOST_BYTES - 1000 < len(long.encode()) <= MOST_BYTES
    assert "left out" in long
