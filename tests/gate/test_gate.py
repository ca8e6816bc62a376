"""The gate on the command line: every exit code, and each output read back."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli import call
from kvbench.gate.judge import REGRESSION, UNJUDGED, UNMEASURED, gate, judge
from kvbench.gate.limits import Limits
from kvbench.gate.markdown import MOST_BYTES, markdown
from kvbench.gate.metrics import NEED_NOT_BE, direction
from kvbench.gate.runs import read_runs, to_csv
from kvbench.gate.verdict import compare
from kvbench.metrics.catalogue import NEITHER

from .sides import runs


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, *args, **kwargs) -> str:
        path = tmp_path / f"{name}.csv"
        path.write_text("".join(to_csv(runs(*args, **kwargs))))
        return str(path)

    return write


ALL = ("--all",)
LIMIT = ("--max-regression",)
FILES = {
    "--markdown": "s.md",
    "--junit": "j.xml",
    "--bencher": "b.json",
    "--github-action-benchmark": "g.json",
}


def outputs(folder: Path) -> list[str]:
    """Options that write the report in every form."""
    return [part for option, name in FILES.items() for part in (option, str(folder / name))]


def judged(candidate: str, baseline: str, *options: str) -> int:
    return call(["gate", candidate, "--baseline", baseline, *options])


def test_0_equal_runs_pass(write, capsys):
    assert judged(write("a"), write("b"), "--all") == 0
    assert capsys.readouterr().out.startswith("pass: ")
    assert judged(write("a"), write("b"), "--max-regression", "ttft.p99=5%") == 0
    out = capsys.readouterr().out
    assert "pass: 1 judged, " in out
    assert re.search(r"ttft\.p99 +10\.00 +10\.00 +1\.0000 +5 % +pass", out)


@pytest.mark.parametrize(
    ("values", "options", "code", "says"),
    [
        ({"ttft": 9.0}, ALL, 0, "baseline stale"),
        ({"ttft": 9.0}, ("--exact",), 3, "regression"),
        ({"steps": 7}, ALL, 0, "1 of them changed"),
        ({"steps": 7}, ("--exact",), 3, "regression"),
        ({"steps": 7}, (*LIMIT, "steps=50%"), 0, "baseline stale"),
        ({"steps": 7}, (*LIMIT, "steps=10%"), 3, "regression"),
        ({"steps": 5}, (*LIMIT, "steps=10%"), 3, "regression"),
        ({"ttft": 10.000001}, ALL, 3, "10.000001"),
        ({"ttft": 10.4}, (*LIMIT, "ttft=5%"), 0, "baseline stale"),
        ({"ttft": 10.4}, (*ALL, *LIMIT, "0.05"), 0, "baseline stale"),
        ({"ttft": 10.4}, (*ALL, *LIMIT, "5%", *LIMIT, "ttft.p99=1%"), 3, "1 worse"),
        ({"ttft": 99.0}, (*LIMIT, "e2el=5%"), 0, "not judged"),
        ({"hit_rate": 0.05}, (*ALL, *LIMIT, "50%"), 3, "hit_rate"),
        ({"hit_rate": 0.1}, (*ALL, *LIMIT, "50%", *LIMIT, "hit_rate=99%"), 0, "stale"),
        ({"preemptions": 2}, (*ALL, *LIMIT, "99%"), 3, "preemptions"),
    ],
)
def test_modelled_changes(write, capsys, values, options, code, says):
    base = write("base", values={"preemptions": 0 if values == {"preemptions": 2} else 1})
    candidate = write("candidate", values={"preemptions": 1} | values)
    assert judged(candidate, base, *options) == code
    assert says in capsys.readouterr().out


METRICS = list(next(iter(runs())).values)


@pytest.mark.parametrize("clock", ["modelled", "measured"])
@pytest.mark.parametrize("metric", METRICS)
def test_1_no_metric_passes_without_samples(metric, clock):
    """For every metric and limit: a pair of which a side lacks it is nothing to judge, and never a pass."""
    named, everything, exact = Limits({metric: 0.05}), Limits({}, everything=True), Limits({}, exact=True)
    for limits in (named, everything, exact):
        judges = limits is not everything or direction(metric) != NEITHER
        for gap in ((None, 1.0), (1.0, None)):
            compared = compare(metric, "", direction(metric), [(1.0, 1.0)] * 5 + [gap], clock)
            assert judge(compared, limits, clock) == (UNMEASURED if judges else UNJUDGED)
            assert compared.without == ["baseline" if gap[0] is None else "candidate"]
        neither = compare(metric, "", direction(metric), [(None, None)], clock)
        may = limits is not named and metric in NEED_NOT_BE
        assert judge(neither, limits, clock) == (UNMEASURED if judges and not may else UNJUDGED)


def test_1_the_reason_is_in_the_verdict():
    lacking = [replace(run, values={**run.values, "ttft.p99": None}) for run in runs()]
    assert "ttft.p99: no samples in the candidate" in gate(runs(), lacking, ["ttft.p99=5%"]).headline
    assert "ttft.p99: no samples in the baseline" in gate(lacking, runs(), (), everything=True).headline
    assert "baseline and the candidate" in gate(lacking, lacking, ["ttft=5%"]).headline
    assert gate(lacking, lacking, ["e2el=5%"]).exit_code == 0


def test_1_on_the_command_line_with_the_reason_in_every_output(write, tmp_path, capsys):
    files = outputs(tmp_path)
    candidate = write("a", values={"goodput": None})
    assert judged(candidate, write("b"), *LIMIT, "goodput=5%", *files) == 1
    out = capsys.readouterr().out
    assert "no samples in the baseline and the candidate" in " ".join(out.split())
    case = ET.parse(tmp_path / "j.xml").getroot().find(".//testcase[@name='goodput']")
    assert case.find("error").get("message") == "no samples in the baseline and the candidate"
    assert "no samples" in (tmp_path / "s.md").read_text()
    assert json.loads((tmp_path / "b.json").read_text())["kvbench gate"] == {"exit-code": {"value": 1.0}}


def test_what_is_not_compared_leaves_its_reason_in_every_output(write, tmp_path, capsys):
    """Another workload, a file that is not there, one that is no summary, an empty one: files all the same."""
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").write_text(next(to_csv([])))
    base = write("b")
    cases = [
        (write("a", fingerprint="x"), base, 5, "another workload"),
        (write("a2", seed=9), base, 5, "has no run of small / vllm-0.33, seed"),
        (str(tmp_path / "none.csv"), base, 2, "no such file"),
        (base, str(tmp_path / "text.csv"), 2, "not a summary.csv"),
        (base, str(tmp_path / "empty.csv"), 1, "measured nothing"),
    ]
    for candidate, baseline, code, says in cases:
        (tmp_path / "s.md").write_text("")
        assert judged(candidate, baseline, *ALL, "--json", *outputs(tmp_path)) == code
        printed = capsys.readouterr()
        document = json.loads(printed.out)
        assert (document["exit_code"], document["outcomes"]) == (code, [])
        assert says in document["reason"]
        assert says in printed.err
        (error,) = ET.parse(tmp_path / "j.xml").getroot().iter("error")
        assert says in error.get("message")
        assert says in (tmp_path / "s.md").read_text()
        own = [name for name in json.loads((tmp_path / "b.json").read_text()) if name.startswith("kvbench gate: ")]
        assert says in own[0]
        assert says in json.loads((tmp_path / "g.json").read_text())[-1]["extra"]


def test_text_of_files_cannot_break_an_output(tmp_path, write):
    (tmp_path / "s.md").write_bytes(b"\xff of another step\n")
    candidate = write("a", run="a | <b>\x1b[31m", values={"ttft": 11.0})
    base = write("b", run="a | <b>\x1b[31m")
    assert judged(candidate, base, *ALL, *outputs(tmp_path)) == 3
    ET.parse(tmp_path / "j.xml")
    assert "a &#124; &lt;b>" in (tmp_path / "s.md").read_bytes().decode(errors="replace")


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
    wrong = ("much", "-5%", "nan%", "inf", "ttft=5", "ttft.p99=1", "5%", "ttft=", "=5%")
    for text in wrong:
        assert judged(a, a, "--max-regression", text) == 2, text
    err = capsys.readouterr().err
    assert "write 5%" in err
    assert "add --all" in err
    assert judged(a, a) == 2
    assert "nothing would be judged" in capsys.readouterr().err
    assert judged(a, a, "--update", "--exact") == 2
    assert judged(a, a, "--exact", "--max-regression", "ttft=5%") == 2
    assert judged(a, a, "--all", "--junit", str(tmp_path / "no" / "j.xml")) == 2
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
    assert judged(near, base, *ALL) == 0
    assert judged(slow, base, *ALL) == 3
    assert judged(wide, base, *ALL) == 4
    assert judged(few, write("base2", 2, "measured", {"ttft": 10.0}), *ALL) == 4
    assert judged(slow, base, "--max-regression", "ttft=50%") == 0
    assert judged(slow, base, "--max-regression", "e2el=5%") == 0


def test_4_seeds_that_disagree(write):
    assert judged(write("a", 2, values={"ttft": [9.0, 11.0]}), write("b", 2), *ALL) == 4
    assert judged(write("a", 2, values={"ttft": [9.0, 10.2]}), write("b", 2), "--max-regression", "ttft=5%") == 0


@pytest.mark.parametrize(
    "identity", [{"fingerprint": "x"}, {"model": "x"}, {"device": "x"}, {"preset": "x"}, {"seed": 9}]
)
def test_5_not_comparable(write, capsys, identity):
    assert judged(write("a", **identity), write("b"), *ALL) == 5
    assert "not comparable" in capsys.readouterr().err


def test_5_another_schema(write, tmp_path):
    path = Path(write("a"))
    text = path.read_text()
    assert ",1,modelled," in text
    path.write_text(text.replace(",1,modelled,", ",0,modelled,"))
    assert judged(str(path), write("b"), *ALL) == 5


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
    assert judged(changed, base, *ALL) == 5  # a run of the baseline that nobody measured is not passed over
    assert call(["gate", changed, other, "--baseline", base, "--exact"]) == 0


def test_outputs_read_back(write, tmp_path):
    files = {name: str(tmp_path / name) for name in FILES.values()}
    Path(files["s.md"]).write_text("before\n")
    candidate = write("a", 2, values={"ttft": [11.0, 12.0], "steps": [5, 6], "preemptions": [3, 0]})
    assert judged(candidate, write("b", 2), *ALL, *LIMIT, "steps=50%", *outputs(tmp_path)) == 3

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
    report = gate(runs(run="a | b"), runs(run="a | b", values={"ttft": 99.0}), (), everything=True)
    assert "a &#124; b" in markdown(report)
    assert "left out" not in markdown(report)
    assert "left out" in markdown(report, MOST_BYTES - 300)
    long = markdown(replace(report, outcomes=4000 * report.of(REGRESSION)))
    assert MOST_BYTES - 1000 < len(long.encode()) <= MOST_BYTES
    assert "left out" in long
