"""`kvbench run` from command line to files and exit code, over an engine that needs no compiling."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvbench.cli import call
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline

SMALL = ["--num-prompts", "20", "--request-rate", "10"]
CSV = ("requests.csv", "summary.csv", "steps.csv")


@pytest.fixture(autouse=True, scope="module")
def _tables():
    """Cost tables are compiled before the tests: the notice of it belongs to no command's stderr."""
    roofline(Deployment(find_device("h100"), find_model("llama-3.1-8b")))


@pytest.fixture(autouse=True)
def _engine(fake_engine):
    return fake_engine


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text("num_prompts = 20\n[arrivals]\nrate = 10\n[cache]\nblocks = 5000\n")
    return str(path)


def lines(capsys) -> list[str]:
    """Lines of stderr since the last call."""
    return capsys.readouterr().err.splitlines()


def test_a_table_on_stdout_and_nothing_on_stderr(scenario, capsys):
    assert call(["run", scenario]) == 0
    out, err = capsys.readouterr()
    assert "TTFT" in out
    assert "20: 20 finished" in out
    assert err == ""


def test_a_built_in_scenario_needs_no_file(capsys):
    assert call(["run", "chat", "-q"]) == 0
    assert capsys.readouterr().out.startswith("run          chat\n")


def test_files_are_the_same_twice_and_from_their_run_json(scenario, tmp_path, capsys):
    first, second, third = (tmp_path / "deep" / name for name in "abc")
    assert call(["run", scenario, "-o", str(first), "--steps"]) == 0
    assert "wrote requests.csv, summary.csv, itl.csv, steps.csv, run.json" in capsys.readouterr().err
    assert call(["run", scenario, "-o", str(second), "--steps"]) == 0
    assert call(["run", str(first / "run.json"), "-o", str(third), "--steps"]) == 0
    for name in CSV:
        assert (first / name).read_bytes() == (second / name).read_bytes() == (third / name).read_bytes()
    assert len(pd.read_csv(first / "requests.csv")) == 20
    a, c = (json.loads((folder / "run.json").read_text()) for folder in (first, third))
    assert a["config"] == c["config"]
    assert a["given"] == c["given"]
    assert {"kvbench", "numba", "numpy", "python"} <= set(a["versions"])
    assert set(a["host_s"]) == {"workload", "costs", "build", "run", "journal", "bounds", "metrics"}
    assert set(a["jit"]) == {"functions_compiled", "seconds"}
    assert a["machine"]["cpu"]


def test_without_steps_there_is_no_steps_csv(scenario, tmp_path):
    assert call(["run", scenario, "-q", "-o", str(tmp_path / "a")]) == 0
    assert not (tmp_path / "a" / "steps.csv").exists()


def test_json_is_the_summary(scenario, capsys):
    assert call(["run", scenario, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["mean_ttft_ms"] == 3.0
    assert document["mean_queue_ms"] == 1.0
    assert document["finished"] == 20
    assert document["complete"] is True


def test_a_dash_prints_the_summary_table(scenario, capsys):
    assert call(["run", scenario, "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("run,fingerprint,schema,")


def test_options_are_keys_by_another_name(fake_engine):
    options = ["--preset", "sglang", "--model", "qwen3-8b", "--device", "h200", "--tp", "2", "--dtype", "fp8"]
    options += ["--max-concurrency", "5", "--burstiness", "0.5", "--seed", "7", "--set", "block_tokens=1"]
    assert call(["run", "chat", "-q", *SMALL, *options]) == 0
    settings = fake_engine.last.settings
    assert settings.scheduler.discipline == "prefill-first"
    assert (settings.max_model_len, settings.concurrency, settings.block_tokens) == (40960, 5, 1)
    assert fake_engine.last.num_sequences == 20


def test_the_seed_is_in_the_result(scenario, capsys):
    prints = []
    for seed in ("1", "1", "2"):
        assert call(["run", scenario, "--json", "--seed", seed]) == 0
        prints.append(json.loads(capsys.readouterr().out)["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def test_a_trace_gives_arrivals_and_lengths(tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 600, "output_length": 3, "hash_ids": [0, i + 1]} for i in range(4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    assert call(["run", "chat", "--trace", str(trace), "-q", "-o", str(out)]) == 0
    frame = pd.read_csv(out / "requests.csv")
    assert frame.arrival_ms.tolist() == [0, 1000, 2000, 3000]
    assert set(frame.prompt_tokens) == {600}
    document = json.loads((out / "run.json").read_text())
    assert document["run"] == "t"
    assert len(document["trace"]["sha256"]) == 64
    capsys.readouterr()

    trace.write_text(trace.read_text().replace("600", "601"))
    assert call(["run", str(out / "run.json")]) == 0
    assert "warning: this is not the workload of that run.json" in capsys.readouterr().err


def test_bad_rows_stop_the_run_or_are_counted(tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    good = '{"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [0]}\n'
    trace.write_text(good + "oops\n")
    assert call(["run", "--trace", str(trace)]) == 2
    assert f"{trace}:2:" in lines(capsys)[0]
    assert call(["run", "--trace", str(trace), "--skip-bad-rows"]) == 0


def test_cache_only_prints_hit_rates_and_their_rules(scenario, capsys):
    assert call(["run", scenario, "--cache-only"]) == 0
    rates, counts, *notes = capsys.readouterr().out.split("\n\n")
    names = ["hit_rate_tokens", "hit_rate_tokens_infinite", "hit_rate_tokens_optimum"]
    assert [line.split()[0] for line in rates.splitlines()[2:]] == names
    assert rates.splitlines()[2].split(maxsplit=2)[1:] == [
        "0.2500", "of prompt tokens, as a run finds them whose requests lie far apart"
    ]  # fmt: skip
    assert "exact for such a cache, a bound for every policy" in " ".join(notes[-1].split())
    assert "answers enter the cache as in a run" in notes[0]
    assert all(max(map(len, part.splitlines())) <= 100 for part in (rates, counts, *notes))
    assert call(["run", scenario, "--cache-only", "--no-answers", "--warm-up", "0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["answers"], document["warm_up"]) == (False, 0.5)
    assert document["counted"] == document["requests"] - document["requests"] // 2
    assert "prompts alone enter the cache" in document["rules"]["answers"]
    assert "the first 50 % of the requests" in document["rules"]["warm_up"]


# ---------------------------------------------------------------- what goes wrong


def test_some_refused_are_counted_and_warned_about_once(scenario, capsys):
    lengths = "lengths.prompt={distribution='uniform', min=1, max=400}"
    assert call(["run", scenario, "--set", lengths, "--set", "cache.blocks=20", "--json"]) == 0
    out, err = capsys.readouterr()
    refused = json.loads(out)["statuses"]["refused"]
    assert 0 < refused < 20
    assert err == (
        f"kvbench: warning: {refused} of 20 sequences were refused at arrival: "
        f"{refused} exceed the cache (20 blocks, 320 tokens)\n"
    )
    assert call(["run", scenario, "--set", lengths, "--set", "cache.blocks=20", "-q"]) == 0
    assert lines(capsys) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cache.blocks=2", "exceed the cache (2 blocks, 32 tokens)"),
        ("max_model_len=100", "exceed max_model_len (100)"),
        ("lengths.output=0", "have no output token"),
    ],
)
def test_all_refused_is_an_error_with_the_reason(scenario, capsys, text, reason):
    assert call(["run", scenario, "--set", text]) == 2
    (line,) = lines(capsys)
    assert line.startswith("kvbench: all 20 sequences were refused: 20 ")
    assert reason in line


def test_interrupted_leaves_a_partial_result_that_says_so(scenario, tmp_path, capsys, fake_engine):
    fake_engine.interrupt_after = 5
    assert call(["run", scenario, "-o", str(tmp_path / "p")]) == 130
    out, err = capsys.readouterr()
    assert "PARTIAL" in out
    assert "interrupted: a partial result, 5 of 20 sequences finished" in err
    assert json.loads((tmp_path / "p" / "run.json").read_text())["complete"] is False
    statuses = pd.read_csv(tmp_path / "p" / "requests.csv").status
    assert statuses.value_counts().to_dict() == {"partial": 15, "finished": 5}


def test_interrupted_before_anything_ran(monkeypatch, scenario, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvbench.bench.run.build_workload", stop)
    assert call(["run", scenario]) == 130
    assert "interrupted before there was a result" in lines(capsys)[-1]


def test_a_fault_of_kvbench_is_one_line_and_a_trace_for_who_asks(monkeypatch, scenario, capsys):
    def fail(*_):
        raise IndexError("out of\nbounds")

    monkeypatch.setattr("kvbench.bench.run.step_costs", fail)
    assert call(["run", scenario]) == 1
    (line,) = lines(capsys)
    assert "unexpected IndexError: out of bounds" in line
    assert call(["run", scenario, "-v"]) == 1
    assert "Traceback" in "\n".join(lines(capsys))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to run"),
        (["caht"], "unknown scenario caht; the nearest is chat"),
        (["./none.toml"], "none.toml: no such file"),
        (["none.json"], "none.json: no such file"),
        (["--trace", "none.jsonl"], "none.jsonl"),
        (["a/trace.jsonl"], "give it as --trace a/trace.jsonl"),
        (["chat", "--set", "cache.blcks=1"], "the nearest is cache.blocks"),
        (["chat", "--tp", "two"], "tp is a number of devices, got 'two'"),
        (["chat", "--request-rate", "-1"], "--request-rate arrivals.rate=-1: arrivals.rate must be at least"),
        (["chat", "--steps"], "give a folder with -o DIR"),
        (["chat", "--cache-only", "-o", "x"], "writes no files"),
        (["chat", "--no-answers"], "add --cache-only"),
        (["chat", "--warm-up", "0.1"], "add --cache-only"),
        (["chat", "--cache-only", "--warm-up", "1.5"], "offline.warm_up"),
        (["chat", "-o", __file__], "a file with this name exists"),
        (["chat", "--nope"], "No such option"),
        (["chat", "chat"], "unexpected extra argument"),
        (["chat", "--model", "deepseek-v3"], "does not fit"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert call(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err
    assert err.startswith("kvbench: ")


def test_an_empty_trace_and_a_folder(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    assert call(["run", "--trace", str(tmp_path / "empty.jsonl")]) == 2
    assert call(["run", "--trace", str(tmp_path)]) == 2
    assert len(lines(capsys)) == 2


def test_a_trace_twice_as_fast_or_without_its_bursts(fake_engine, tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    row = '{{"timestamp": {}, "input_length": 100, "output_length": 5, "hash_ids": [{}]}}\n'
    trace.write_text("".join(row.format(4000 * (i // 4), i) for i in range(40)))
    arrivals = {}
    for name, options in (("plain", []), ("fast", ["--speedup", "2x"]), ("drawn", ["--arrivals", "poisson"])):
        assert call(["run", "--trace", str(trace), *options, "-o", str(tmp_path / name), "-q"]) == 0
        arrivals[name] = pd.read_csv(tmp_path / name / "requests.csv").arrival_ms
    assert (arrivals["fast"] * 2).tolist() == arrivals["plain"].tolist()
    assert arrivals["drawn"].nunique() == 40
    assert arrivals["drawn"].is_monotonic_increasing
    assert 0.4 < arrivals["drawn"].max() / arrivals["plain"].max() < 2.5
    assert "poisson at 1.083/s" in " ".join(capsys.readouterr().out.split())
    assert call(["run", "--trace", str(trace), "--speedup", "fast"]) == 2
    assert "write it as 2x" in capsys.readouterr().err
