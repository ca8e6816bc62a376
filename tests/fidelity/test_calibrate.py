"""Fits to a server's own requests: coefficients that are known come back, files of every tool are read."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.fidelity.calibrate import _busiest_us, _fitted, calibrate
from kvbench.fidelity.fit import Coefficient, fit
from kvbench.fidelity.results import Served, read_served
from kvbench.report.calibration import Calibrated, calibration_table, device_file

SERVER = ("model=qwen3-8b", "device=h100", "costs.silicon=false")
LOAD = ("num_prompts=32", "lengths.output=5", "arrivals.rate=9")
PROMPTS = "lengths.prompt={distribution='uniform', min=50, max=1000}"


def known_server(*costs: str) -> Served:
    """What a server with these costs would have left."""
    changes = (*SERVER, *LOAD, PROMPTS, *costs)
    result = run(configure(None, changes=[("--set", text) for text in changes]))
    journal, requests = result.journal, result.requests
    columns = (
        journal.arrival_ns / 1e9,
        requests.prompt_tokens,
        journal.output_tokens,
        (journal.first_token_ns - journal.arrival_ns) / 1e9,
        (journal.finish_ns - journal.arrival_ns) / 1e9,
    )
    arrival, *others = (np.asarray(column, np.float64) for column in columns)
    return Served("known", "kvbench", arrival - arrival[0], *others)


def system(*more: str):
    return build_system(configure(None, changes=[("--set", text) for text in (*SERVER, *more)]).config)


def test_a_slower_server_is_found_and_predicted():
    """Every matrix and all memory 1.25 times as slow, and 2 ms of host a step."""
    truth = known_server(
        "costs.flops_efficiency=0.56", "costs.bandwidth_efficiency=0.704", "costs.step_overhead_us=2000"
    )
    found = calibrate(system(), [truth], holdout=0.25)
    values = {line.name: line for line in found.lines}
    assert values["linear"].value == pytest.approx(1.25, rel=0.1)
    assert values["linear"].is_determined
    assert values["linear"].low < values["linear"].value < values["linear"].high < 1.3
    for metric, statistic in (("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("tpot", "p99")):
        measured, replayed = found.parts[-1].figures[metric, statistic]
        assert replayed == pytest.approx(measured, rel=0.03)
    assert found.parts[-1].name == "held out"
    assert found.parts[-1].requests == 8
    assert max(map(abs, found.residuals["tpot"])) < max(map(abs, found.before["tpot"])) / 5


def test_what_is_held_out_is_the_end_or_scattered():
    assert _fitted(8, 0.25, False).tolist() == [True] * 6 + [False] * 2
    assert _fitted(8, 0.25, True).tolist() == [True, True, True, False] * 2
    assert _fitted(6, 0.5, True).tolist() == [True, False] * 3
    assert _fitted(5, 0.0, True).all()
    assert call(["calibrate", "x.json", "--scattered"]) == 2


def test_what_the_data_do_not_say_is_named():
    """One token each: nothing decodes, so nothing is known of decode attention."""
    truth = known_server("lengths.output=1")
    found = calibrate(system(), [truth])
    determined = {line.name: line.is_determined for line in found.lines}
    assert not determined["decode"]
    assert not determined["mixed"]
    assert next(line for line in found.lines if line.name == "decode").share < 0.05


def test_the_fit_of_a_plain_function_is_least_squares():
    rng = np.random.default_rng(0)
    x = np.linspace(0.1, 2, 400)
    measured = (3.0 * x + 0.5) * np.exp(0.02 * rng.standard_normal(400))

    def residuals(values):
        a, b, c = values
        return [np.log((a * x + b + 0.0 * c) / measured)]

    found = fit((Coefficient("a", 1.0, 2.0), Coefficient("b", 1.0, 2.0), Coefficient("c", 1.0, 2.0)), residuals)
    a, b, c = found.estimates
    assert (a.value, b.value, c.value) == pytest.approx((3.0, 0.5, 1.0), rel=0.02)
    assert a.low < 3.0 < a.high
    assert b.low < 0.5 < b.high
    assert (a.is_determined, b.is_determined, c.is_determined) == (True, True, False)
    assert c.share < 0.01


# ---------------------------------------------------------------- files


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


BENCH = {
    "input_lens": [30, 20, 10],
    "output_lens": [3, 2, 0],
    "ttfts": [0.3, 0.2, 0.0],
    "itls": [[0.1, 0.2], [0.05], []],
    "start_times": [101.0, 100.0, 100.5],
    "request_rate": 4,
    "max_concurrency": None,
}


def test_vllm_and_sglang_benchmarks(tmp_path):
    (served,) = read_served(write(tmp_path / "a.json", BENCH))
    assert served.tool == "vllm bench serve"
    assert served.arrival.tolist() == [0.0, 1.0]
    assert served.prompt.tolist() == [20, 30]
    assert served.e2el == pytest.approx([0.25, 0.6])
    assert served.tpot == pytest.approx([0.05, 0.15])
    assert served.left_out == 1
    closed = {**BENCH, "request_rate": "inf", "max_concurrency": 2, "backend": "sglang"}
    del closed["start_times"]
    both = read_served(write(tmp_path / "b.jsonl", closed, closed))
    assert [s.slots for s in both] == [2, 2]
    assert both[0].tool == "sglang.bench_serving"
    assert both[0].prompt.tolist() == [30, 20]


def test_aiperf(tmp_path):
    def row(phase: str, start: int, error: object = None) -> dict:
        metrics = {
            "input_sequence_length": {"value": 30, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "time_to_first_token": {"value": 300.0, "unit": "ms"},
            "request_latency": {"value": 600.0, "unit": "ms"},
        }
        meta = {"benchmark_phase": phase, "request_start_ns": start}
        return {"metadata": meta, "metrics": metrics, "error": error}

    rows = (row("warmup", 10**9), row("profiling", 3 * 10**9), row("profiling", 2 * 10**9), row("profiling", 9, "x"))
    (served,) = read_served(write(tmp_path / "profile_export.jsonl", *rows))
    assert (served.tool, len(served), served.left_out) == ("AIPerf", 2, 2)
    assert served.arrival.tolist() == [0.0, 1.0]
    assert served.tpot == pytest.approx([0.15, 0.15])


def test_litellm(tmp_path):
    row = {"startTime": 5.0, "completionStartTime": 5.5, "endTime": 6.0, "prompt_tokens": 9, "completion_tokens": 6}
    (served,) = read_served(write(tmp_path / "log.jsonl", row, {**row, "startTime": 4.0, "status": "failure"}))
    assert (len(served), served.left_out, served.tpot[0]) == (1, 1, pytest.approx(0.1))
    bare = {name: value for name, value in row.items() if name != "completionStartTime"}
    with pytest.raises(UsageError, match="needs completionStartTime"):
        read_served(write(tmp_path / "bare.jsonl", bare))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"mean_ttft_ms": 3.0, "input_lens": [1]}, "--save-detailed"),
        ({**BENCH, "start_times": None}, "start times are not in it"),
        ({**BENCH, "ttfts": [0.1]}, "different lengths"),
        ({**BENCH, "ttfts": [0, 0, 0]}, "no request that finished"),
        ({"x": 1}, "no result of vllm bench serve"),
    ],
)
def test_a_file_without_what_a_fit_needs_is_one_line(row, what, tmp_path):
    with pytest.raises(UsageError, match=what):
        read_served(write(tmp_path / "x.json", row))


SHIFTED = [100.0 + i for i in range(40)]
OF_A_MINUTE = {
    "input_lens": [30] * 40,
    "output_lens": [2] * 40,
    "ttfts": [0.3] * 40,
    "itls": [[0.1]] * 40,
    "start_times": SHIFTED,
    "request_rate": 1.0,
    "duration": 41.0,
}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"ttfts": [300.0] * 40}, "339 s by start_times, ttfts and itls, and its duration says 41 s"),
        ({"start_times": [1e3 * at for at in SHIFTED]}, "39,000 s by start_times"),
        ({"start_times": [at / 1e3 for at in SHIFTED]}, "its request_rate says 1: give times in s"),
    ],
)
def test_times_in_other_units_contradict_their_file(wrong, what, tmp_path):
    (served,) = read_served(write(tmp_path / "x.json", OF_A_MINUTE))
    assert len(served) == 40
    with pytest.raises(UsageError, match=what):
        read_served(write(tmp_path / "x.json", {**OF_A_MINUTE, **wrong}))


def test_a_fit_that_explains_nothing_is_shown_and_not_written(tmp_path, capsys):
    """TTFTs a thousand times too long, in a file that says nothing of its duration or model."""
    served = known_server("num_prompts=20", "lengths.output=3")
    row = {
        "model_id": "Qwen/Qwen3-32B",
        "input_lens": served.prompt.tolist(),
        "output_lens": served.output.tolist(),
        "ttfts": (served.ttft * 1e3).tolist(),
        "itls": [[gap, gap] for gap in served.tpot.tolist()],
        "start_times": served.arrival.tolist(),
    }
    path, device = write(tmp_path / "x.json", row), tmp_path / "mine.toml"
    options = [part for text in SERVER for part in ("--set", text)]
    assert call(["calibrate", str(path), "-o", str(device), "-q", *options]) == 2
    out, err = capsys.readouterr()
    assert not device.exists()
    assert "is not written: after the fit TTFT is off by" in err
    said = " ".join(out.split())
    assert "WARNING: after the fit" in said
    assert "x.json is of Qwen/Qwen3-32B, and qwen3-8b was replayed" in said
    assert "qwen3-8b, bf16, tp 1; preset vllm" in said
    assert call(["calibrate", str(path), "-o", str(device), "-q", "--force", *options]) == 0
    assert device.exists()


@pytest.mark.parametrize(
    ("tpot", "said", "is_doubtful"),
    [(0.05, "", False), (-0.3, "TPOT is still off by -30 %", False), (0.6, "+60 %", True)],
)
def test_what_a_fit_leaves_is_told(tpot, said, is_doubtful):
    residuals = {"ttft": (0.01,), "tpot": (tpot,)}
    found = Calibrated("qwen3-8b", "base", "h100", ("x",), 20, (), (0.5,), residuals, residuals, (), 1, 1.0)
    assert bool(found.doubt) == is_doubtful
    text = " ".join(calibration_table(found).split())
    assert ("WARNING" in text) == bool(said)
    assert said in text


def test_a_stage_that_the_requests_do_not_determine_stays_as_it_is():
    """A serial tokeniser and an output stage of a thousandth of the time: nobody ever waits for them."""
    stages = ("costs.serial_tokenizer=true", "costs.tokenize_us_per_token=0.001", "costs.output_us_per_token=0.001")
    found = calibrate(system(*stages), [known_server("num_prompts=20", "lengths.output=3", *stages)])
    assert set(found.left_out) == {"output_us_per_token", "tokenize_us_per_token"}
    written = device_file(found)
    assert "\n# output_us_per_token: not determined; left out\n" in written
    assert not {"output_us_per_token", "tokenize_us_per_token"} & set(tomllib.loads(written)["host"])


def test_a_device_that_is_unlike_its_base_has_no_output_stage():
    """A decode that is faster, by memory alone, is not to be explained by a stage."""
    truth = known_server("num_prompts=20", "costs.bandwidth_efficiency=0.5", "costs.flops_efficiency=0.9")
    assert all(line.name != "output_us_per_token" for line in calibrate(system(), [truth]).lines)


def test_too_few_requests():
    with pytest.raises(UsageError, match="at least 20"):
        calibrate(system(), [Served("x", "y", *(np.ones(5) for _ in range(5)))])


def test_the_command_writes_a_device_that_runs(tmp_path, capsys):
    small = (*SERVER, "num_prompts=20", "lengths.output=3", "sessions.turns=1", "sharing.groups=0")
    sets = [part for text in small for part in ("--set", text)]
    assert call(["run", "chat", "-q", "-o", str(tmp_path / "r"), *sets]) == 0
    capsys.readouterr()
    device = tmp_path / "mine.toml"
    options = ["--model", "qwen3-8b", "--device", "h100", "--set", "costs.silicon=false", "-q"]
    assert call(["calibrate", str(tmp_path / "r" / "requests.csv"), "-o", str(device), *options]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    tree = tomllib.loads(device.read_text())
    assert tree["base"] == "h100"
    assert set(tree["scale"]) == {"linear", "prefill", "decode", "mixed"}
    assert call(["run", "chat", "-q", "--device", str(device), "--model", "qwen3-8b", "--set", "num_prompts=5"]) == 0
    assert "calibrated on 20 requests" in " ".join(capsys.readouterr().out.split())


def test_the_busiest_time_is_the_slowest_that_an_output_stage_can_be():
    """Four requests hand out 100 tokens each in their second second; a fifth one before."""
    of = [
        np.array(column, np.float64)
        for column in ([0] * 5, [9] * 5, [100] * 4 + [10], [1] * 4 + [0.1], [2] * 4 + [0.9])
    ]
    assert _busiest_us([Served("known", "kvbench", *of)]) == pytest.approx(1e6 / 400)


@pytest.mark.skipif(os.environ.get("KVBENCH_LONG") != "1", reason="four fits; KVBENCH_LONG=1 runs them")
def test_an_output_stage_that_tokens_wait_for_is_found():
    load = ("num_prompts=24", "lengths.output=8", "arrivals.rate=30")
    truth = known_server(*load, "costs.output_us_per_token=5000")
    found = calibrate(system(), [truth])
    stage = next(line for line in found.lines if line.name == "output_us_per_token")
    assert stage.value == pytest.approx(5000, rel=0.1)
    assert stage.is_determined
    assert "output_us_per_token = " in device_file(found)
    without = calibrate(system(), [known_server("num_prompts=20")])
    assert all(line.name != "output_us_per_token" for line in without.lines)
    assert any("output stage" in note for note in without.notes)
