"""`compare`, `ab` and `run` with replicates and details, over an engine that needs no compiling."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kvbench.cli import call

SMALL = ["--num-prompts", "20", "--request-rate", "10"]


@pytest.fixture(autouse=True)
def _engine(fake_engine):
    return fake_engine


def test_replicates_leave_rows_of_every_seed(tmp_path, capsys):
    out = tmp_path / "out"
    assert call(["run", "chat", *SMALL, "--seeds", "3", "--seed", "4", "-o", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert [line.split()[0] for line in printed.splitlines()[4:7]] == ["4", "5", "6"]
    assert max(map(len, printed.splitlines())) <= 100
    assert "no replicates" not in err
    frame = pd.read_csv(out / "summary.csv")
    assert frame.groupby("seed").size().nunique() == 1
    assert sorted(frame.seed.unique()) == [4, 5, 6]
    assert frame.groupby("seed").fingerprint.first().nunique() == 3
    assert {p.name for p in out.iterdir()} == {"summary.csv", "seed-4", "seed-5", "seed-6"}
    assert call(["run", "chat", *SMALL, "--seeds", "2", "--json", "-q"]) == 0
    assert [run["seed"] for run in json.loads(capsys.readouterr().out)["runs"]] == [0, 1]


def test_replicates_that_draw_nothing_are_none(capsys):
    still = ["--set", "arrivals.process=constant", "--set", "lengths.prompt=50", "--set", "lengths.output=9"]
    fixed = ["--set", "sessions.turns=1", "--set", "sharing.groups=0", "--set", "sessions.think_s=0"]
    assert call(["run", *SMALL, *still, *fixed, "--set", "seeds.sharing=1", "--set", "seeds.arrivals=1",
                 "--set", "seeds.lengths=1", "--seeds", "2", "chat"]) == 0  # fmt: skip
    assert "no replicates" in capsys.readouterr().err


def test_details_are_tables_or_json(capsys):
    flags = ["--intervals", "--attribution", "--steady"]
    assert call(["run", "chat", *SMALL, *flags]) == 0
    out = capsys.readouterr().out
    assert "needs" not in out  # of 20 samples there is a lower bound of p99
    assert ">= 3.00" in out
    assert "TTFT p90" in out
    assert "drain" in out
    assert max(map(len, out.splitlines())) <= 100
    assert call(["run", "chat", *SMALL, *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["intervals"]["ttft"]["p99"]["needs"] == 368
    assert list(document["steady"]) == ["fill", "steady", "drain"]
    assert document["attribution"] == {}  # this engine does not tell
    assert call(["run", "chat", *flags, "--seeds", "2"]) == 2


def test_goodput_takes_a_list_as_vllm_does(capsys):
    assert call(["run", "--goodput", "ttft:2", "tpot:50", "chat", *SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["slo"] == "ttft:2 tpot:50"
    assert (document["goodput"], document["slo_share"]) == (0, 0)  # its first token takes 3 ms
    assert call(["run", "chat", *SMALL, "--goodput", "ttft:3 tpot:50"]) == 0
    assert "100.00 % of sequences kept ttft:3 tpot:50" in capsys.readouterr().out
    for wrong in (["ttft"], ["ttft:x"], ["itl:3"]):
        assert call(["run", "chat", *SMALL, "--goodput", *wrong]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_compare_two_folders(tmp_path, capsys):
    for name, more in (("a", []), ("b", ["--set", "cache.blocks=3000"]), ("c", ["--num-prompts", "21"])):
        assert call(["run", "chat", *SMALL, *more, "--seeds", "2", "-o", str(tmp_path / name), "-q"]) == 0
    capsys.readouterr()
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert call(["compare", a, b, b]) == 0
    out = capsys.readouterr().out
    assert out.count("geometric mean  ") == 2
    assert "means of 2 pairs" in out
    assert max(map(len, out.splitlines())) <= 100
    assert call(["compare", a, b, "--all", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    verdicts = {metric["metric"]: metric["verdict"] for metric in found["metrics"]}
    assert (verdicts["ttft.p99"], verdicts["geometric mean"]) == ("same", "same")
    assert call(["compare", a, c]) == 5
    assert "another workload" in capsys.readouterr().err
    assert call(["compare", a]) == 2


def test_ab_runs_both_sides_of_every_seed(capsys):
    line = ["ab", "chat", *SMALL, "--set-a", "cache.blocks=3000", "--set-b", "cache.blocks=4000"]
    assert call([*line, "--seeds", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["pairs"], found["pairs_needed"]) == (2, 5)
    assert (found["baseline"], found["candidate"]) == ("A: cache.blocks=3000", "B: cache.blocks=4000")
    assert call([*line, "--set-b", "scheduler.max_num_batched_tokens=2048"]) == 0
    out = capsys.readouterr().out
    assert "ttft.p99" in out
    assert "baseline   A: cache.blocks=3000\n" in out  # whole, however long
    assert "candidate  B: cache.blocks=4000, scheduler.max_num_batched_tokens=2048\n" in out
    assert "needs 5 pairs" in out
    assert "takes 5 of them and has 1" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100
    assert call(["ab", "chat", *SMALL, "--set-a", "device=h100", "--set-b", "device=h200"]) == 0
    assert call(["ab", "chat", *SMALL, "--set-b", "num_prompts=3"]) == 5
    assert call(["ab", "chat", *SMALL]) == 2
    assert call(["ab", "--set-a", "seed=1"]) == 2


def test_ab_leaves_runs_that_compare_takes(tmp_path, capsys):
    line = ["ab", "chat", *SMALL, "--set-a", "cache.blocks=3000", "--set-b", "cache.blocks=4000", "--seeds", "2"]
    assert call([*line, "-o", str(tmp_path / "ab")]) == 0
    printed = capsys.readouterr().out
    frame = pd.read_csv(tmp_path / "ab" / "comparison.csv")
    assert set(frame.pairs) == {2}
    assert {"ttft.p99", "geometric mean"} <= set(frame.metric)
    a, b = (str(tmp_path / "ab" / side) for side in "ab")
    assert call(["compare", a, b]) == 0
    assert capsys.readouterr().out.partition("metric")[2] == printed.partition("metric")[2]
    assert call([*line, "-o", str(tmp_path / "ab" / "comparison.csv")]) == 2


def test_sides_take_turns_where_time_is_measured(monkeypatch):
    """A B B A, so that a drift of the machine falls on both alike."""
    from kvbench.gate import ab

    order = []
    monkeypatch.setattr(ab, "ORDERS", {"modelled": "ABBA"})
    run = ab.run
    monkeypatch.setattr(
        ab, "run", lambda configured: order.append(configured.config["cache.blocks"]) or run(configured)
    )
    line = ["ab", "chat", *SMALL, "--set-a", "cache.blocks=3000", "--set-b", "cache.blocks=4000", "--seeds", "2", "-q"]
    assert call(line) == 0
    assert order == [3000, 4000, 4000, 3000] * 2


def test_seeds_show_the_goodput(capsys):
    assert call(["run", "chat", *SMALL, "--seeds", "2", "--goodput", "ttft:3", "-q"]) == 0
    out = capsys.readouterr().out
    assert "kept ttft:3" in out
    header, _, first = out.splitlines()[3:6]
    assert header.split()[:4] == ["seed", "goodput/s", "kept", "%"]
    assert header.count("goodput/s") == 1
    assert first.split()[2] == "100.00"
    assert max(map(len, out.splitlines())) <= 100
    assert call(["run", "chat", *SMALL, "--seeds", "2", "-q"]) == 0
    assert "goodput" not in capsys.readouterr().out


def test_seeds_show_small_figures_with_the_digits_that_tell_them_apart(capsys):
    assert call(["run", "chat", *SMALL, "--seeds", "2", "--request-rate", "0.5", "--goodput", "ttft:500", "-q"]) == 0
    first, second = capsys.readouterr().out.splitlines()[5:7]
    assert first.split()[1] != second.split()[1]
