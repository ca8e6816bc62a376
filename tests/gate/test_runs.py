"""Reading summary.csv and pairing runs: what is refused, and why."""

from __future__ import annotations

import pytest

from kvbench.core.errors import EXIT_NOT_COMPARABLE, UsageError
from kvbench.gate.pairing import NotComparable, compare_group, pair_up
from kvbench.gate.runs import parse_runs, read_runs, to_csv
from kvbench.gate.verdict import SAME
from kvbench.report.csv_files import summary_csv
from kvbench.report.result_files import write_result
from tests.runs import journal, record, requests

from .sides import runs


def test_a_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "summary.csv"
    text = "".join(summary_csv(record()))
    path.write_text(text)
    (run,) = read_runs(path)
    assert run.values["ttft.mean"] == 16.5
    assert run.values["ttft.p99"] is not None
    assert run.values["goodput"] is None
    assert run.units["hit_rate"] == "share of prompt tokens"
    assert "".join(to_csv([run])) == text.replace('"a CPU, 2 threads"', "")  # a modelled run is of no machine
    assert "".join(to_csv(parse_runs("".join(to_csv([run])), "again"))) == "".join(to_csv([run]))


def test_a_measured_baseline_keeps_its_machine():
    (run,) = runs(clock="measured")
    assert "a CPU, 2 threads" in "".join(to_csv([run]))


def test_a_folder_of_folders_is_all_of_them(tmp_path):
    for seed in (0, 1):
        own = tmp_path / f"seed-{seed}"
        own.mkdir()
        (own / "summary.csv").write_text("".join(summary_csv(record(seed=seed))))
    assert [run["seed"] for run in read_runs(tmp_path)] == ["0", "1"]


WHOLE = "".join(summary_csv(record()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "not a summary.csv of kvbench: it has no column run"),
        (WHOLE + "short,row\n", "has not as many cells"),
        (WHOLE.replace("16.500000", "x"), "'x' is not a number"),
        (WHOLE.replace("16.500000", "nan"), "'nan' is not a number"),
        (WHOLE.replace("16.500000", "inf"), "'inf' is not a number"),
        (WHOLE.replace("16.500000", "-16.5"), "'-16.5' is not a number from 0 on"),
        (WHOLE.replace(",p99,", ",p98,"), "no column p99"),
        (WHOLE.replace(",n,", ",m,"), "no column n"),
        (WHOLE.replace(",p99,", ",p90,"), "no column p99"),
        (WHOLE.replace(",p99_low,", ",mean,"), "two columns mean"),
        (WHOLE[:-1], "cut off"),
        (WHOLE[: WHOLE.index("small", WHOLE.index(",itl,"))], "no row e2el: the file was cut off"),
        (WHOLE.replace(record().fingerprint, ""), "a row without fingerprint"),
        (WHOLE.replace(",modelled,", ",guessed,"), "clock guessed"),
        (WHOLE.replace("22.000000,,2,", "22.000000,,0,"), "values of no samples"),
        (WHOLE.replace("22.000000,,2,", "22.000000,,,"), "values of no samples"),
        (WHOLE + "\0" * 9, "cut off|not CSV|as many cells"),
        ("", "no column run"),
        ("".join(summary_csv(record())) + "".join(list(summary_csv(record()))[1:2]), "two runs of small"),
    ],
)
def test_what_is_no_summary_is_refused(tmp_path, text, says):
    path = tmp_path / "summary.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_runs(path)


def test_a_cut_that_leaves_whole_rows_is_noticed_beside_run_json(tmp_path):
    write_result(tmp_path, record(), {"complete": True}, journal(), requests())
    assert len(read_runs(tmp_path)) == 1
    path = tmp_path / "summary.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    with pytest.raises(UsageError, match="cut off"):
        read_runs(tmp_path)


def test_an_interrupted_run_is_not_compared(tmp_path):
    (tmp_path / "summary.csv").write_text("".join(summary_csv(record())))
    (tmp_path / "run.json").write_text('{"complete": false}')
    with pytest.raises(UsageError, match="interrupted"):
        read_runs(tmp_path)


def test_a_folder_without_results_says_so(tmp_path):
    with pytest.raises(UsageError, match="no summary"):
        read_runs(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        read_runs(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        ({"fingerprint": "other"}, "workload"),
        ({"model": "qwen3-8b"}, "another model"),
        ({"device": "h200"}, "another device"),
        ({"cache_state": "warm"}, "state of the cache"),
        ({"clock": "measured"}, "another clock"),
        ({"seed": 3}, "no run of small, seed"),
    ],
)
def test_another_thing_is_not_comparable(identity, says):
    with pytest.raises(NotComparable, match=says) as found:
        pair_up(runs(), runs(**identity), by_preset=False)
    assert found.value.exit_code == EXIT_NOT_COMPARABLE


def test_the_machine_matters_where_time_is_measured():
    pair_up(runs(), runs(machine="another"), by_preset=False)
    with pytest.raises(NotComparable, match="another machine"):
        pair_up(runs(clock="measured"), runs(clock="measured", machine="another"), by_preset=False)


def test_what_is_named_may_differ():
    (group,) = pair_up(runs(), runs(device="h200"), False, across=("device",))
    assert {c.verdict for c in compare_group(group) if c.exists} == {SAME}


def test_another_unit_is_not_comparable():
    (there,) = runs()
    (other,) = parse_runs("".join(to_csv([there])).replace(",ttft,ms,", ",ttft,s,"), "other")
    with pytest.raises(NotComparable, match=r"ttft\.\w+ in ms and in s"):
        pair_up([there], [other], by_preset=False)


def test_presets_are_compared_or_tell_runs_apart():
    vllm, sglang = runs(preset="vllm-0.33"), runs(preset="sglang-0.5.12")
    assert len(pair_up(vllm, sglang, by_preset=False)) == 1
    assert [group.name for group in pair_up(vllm + sglang, sglang + vllm, by_preset=False)] == [
        "small / vllm-0.33",
        "small / sglang-0.5.12",
    ]
    with pytest.raises(NotComparable, match="no run of"):
        pair_up(vllm, sglang, by_preset=True)
    with pytest.raises(UsageError, match="two runs of"):
        pair_up(vllm + vllm, vllm, by_preset=False)


def test_seeds_are_pairs_of_one_group():
    (group,) = pair_up(runs(3), list(reversed(runs(3))), by_preset=False)
    assert [(a["seed"], b["seed"]) for a, b in group.pairs] == [("0", "0"), ("1", "1"), ("2", "2")]
