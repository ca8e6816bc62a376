"""The committed baseline: it is of the set that the project gates itself with, and plain Python meets it exactly."""

from __future__ import annotations

from itertools import product

from benchmarks import gate as own_gate
from kvbench.cli import call
from kvbench.gate.runs import read_runs, to_csv
from kvbench.scheduler.presets import ALIASES


def test_the_baseline_is_of_the_set():
    runs = read_runs(own_gate.BASELINE)
    expected = {(scenario, ALIASES[preset]) for scenario, preset in product(own_gate.SET, own_gate.PRESETS)}
    assert {(run["run"], run["preset"]) for run in runs} == expected, "python benchmarks/gate.py --update"
    assert {run["clock"] for run in runs} == {"modelled"}
    assert all(run.values["finished"] for run in runs)


def test_a_run_of_it_is_met_exactly(tmp_path, capsys):
    """.ci/run does the whole set, compiled; here one of it as the suite runs, which is plain Python."""
    folders = own_gate.run_set(tmp_path, {"chat": own_gate.SET["chat"]}, ("vllm",))
    baseline = tmp_path / "part.csv"
    part = [run for run in read_runs(own_gate.BASELINE) if (run["run"], run["preset"]) == ("chat", ALIASES["vllm"])]
    baseline.write_text("".join(to_csv(part)))
    code = call(["gate", *folders, "--baseline", str(baseline), "--exact"])
    assert code == 0, capsys.readouterr().out + "python benchmarks/gate.py --update"
