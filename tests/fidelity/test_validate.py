"""Predictions beside measurements: what is found in a folder, how it is compared, what is told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.fidelity.find_truth import find_truth
from kvbench.fidelity.names import known_device, known_model, known_preset
from kvbench.fidelity.predict import run_changes
from kvbench.fidelity.server_runs import arrivals_s, measured_figures, read_server_run, read_times
from kvbench.fidelity.validate import validate
from kvbench.report.fidelity import Case, Figure, spread

COLUMNS = (
    "id,backend,backend_version,model_path,system,precision,gemm_quant_mode,isl,osl,silicon_concurrency,batch_size,"
    "tp_size,pp_size,attention_dp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)
ROWS = (
    "a,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,2,2,2,1,,1,50.0,18.0",
    "b,sglang,0.5.12,meta-llama/Llama-3.1-8B-Instruct,h200_sxm,fp8,fp8_block,100,9,,3,1,1,,1,20.0,6.0",
    "c,trtllm,1.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,2,2,2,1,,1,50.0,18.0",
    "d,vllm,0.19.0,who/knows-7b,h100_sxm,,,200,9,2,2,2,1,,1,50.0,18.0",
    "e,vllm,0.19.0,Qwen/Qwen3-32B,abacus,,,200,9,2,2,2,1,,1,50.0,18.0",
    "f,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,2,2,2,4,,1,50.0,18.0",
    "g,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,2,2,2,1,8,1,50.0,18.0",
    "h,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,2,2,2,1,,1,,18.0",
    "j,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,fp8,,200,9,2,2,2,1,,0.0,50.0,18.0",
    "i,vllm,0.19.0,Qwen/Qwen3-32B,h100_sxm,,,200,9,,,2,1,,1,50.0,18.0",
)
FEW = ("client.prompts_per_slot=2", "client.warm_up_per_slot=0")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A table under any name in some folder, and a run."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "any-name.csv").write_text("\n".join((COLUMNS, *ROWS)) + "\n")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    make_run(tmp_path / "my-run")
    return tmp_path


def make_run(folder: Path, **more: object) -> None:
    (folder / "vllm").mkdir(parents=True)
    arguments = {"max_num_seqs": 4, "max_num_batched_tokens": 512, "dtype": "bfloat16", **more}
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": arguments,
        "kv_cache": {"num_gpu_blocks": 500, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
    }
    (folder / "vllm" / "meta.json").write_text(json.dumps(meta))
    rows = [
        {
            "request_id": f"r{i}",
            "input_toks": 100 + i,
            "output_toks": 5,
            "arrival_time": 1e9 + 0.1 * i,
            "queued_ts": 70.0 + 0.1 * i + 0.01 * (i % 3),
            "scheduled_ts": 70.0 + 0.1 * i + 0.03,
            "first_token_ts": 70.1 + 0.1 * i,
            "last_token_ts": 70.2 + 0.1 * i,
        }
        for i in range(8)
    ]
    (folder / "vllm" / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))


def changes(*texts: str) -> list[tuple[str, str]]:
    return [("--set", text) for text in texts]


def test_everything_is_compared_or_listed_with_its_reason(measured):
    scores = validate(measured, more=())
    assert {case.name for case in scores.cases} == {"a", "b", "j", "my-run"}
    why = dict(scores.not_scored)
    assert set(why) == {"other.csv", "c", "d", "e", "f", "g", "deep/any-name.csv:9", "deep/any-name.csv:11"}
    assert "no engine trtllm" in why["c"]
    assert "who/knows-7b" in why["d"]
    assert "abacus" in why["e"]
    assert "pipeline" in why["f"]
    assert "replicas" in why["g"]
    assert "silicon_ttft_ms" in why["deep/any-name.csv:9"]
    assert "neither silicon_concurrency nor batch_size" in why["deep/any-name.csv:11"]
    by_name = {case.name: case for case in scores.cases}
    assert (by_name["b"].dtype, by_name["b"].doubt != "", by_name["a"].doubt) == ("fp8-block", True, "")
    assert len(by_name["my-run"].figures) == 12
    assert by_name["my-run"].kv_blocks == 500
    for case in scores.cases:
        for figure in case.figures:
            assert figure.error == pytest.approx(figure.predicted / figure.measured - 1)


def test_a_device_twice_as_fast_is_predicted_faster(measured):
    slow, fast = (
        validate(
            measured,
            more=changes(*FEW, "costs.silicon=false", f"costs.flops_efficiency={e}", f"costs.bandwidth_efficiency={e}"),
        )
        for e in (0.3, 0.9)
    )
    for one, other in zip(slow.cases, fast.cases, strict=True):
        assert all(s.predicted > f.predicted for s, f in zip(one.figures, other.figures, strict=True))


def test_arrivals_are_the_clients_and_latencies_count_from_the_stamp(tmp_path):
    make_run(tmp_path / "r")
    times = read_times(read_server_run(tmp_path / "r"))
    assert np.allclose(np.diff(arrivals_s(times)), 0.1)
    figures = measured_figures(times)
    waits = [0.1 - 0.01 * (i % 3) for i in range(8)]
    assert figures["ttft", "mean"] == pytest.approx(1e3 * np.mean(waits), rel=1e-6)
    assert figures["tpot", "p90"] == pytest.approx(25.0, rel=1e-6)


def test_replicas_in_lockstep_are_one_case(tmp_path):
    """Two ranks step together; each has half of the requests, so nobody waits for what one alone would compute."""
    make_run(tmp_path / "two", data_parallel_size=2)
    make_run(tmp_path / "one")
    cases = {case.name: {(f.metric, f.statistic): f for f in case.figures} for case in validate(tmp_path).cases}
    assert set(cases) == {"one", "two"}
    assert {key: f.measured for key, f in cases["one"].items()} == {key: f.measured for key, f in cases["two"].items()}
    for statistic in ("mean", "p99"):
        assert cases["two"]["tpot", statistic].predicted > 0
        assert cases["two"]["ttft", statistic].predicted <= cases["one"]["ttft", statistic].predicted * 1.05


def test_the_link_that_a_run_states_is_the_one_it_is_predicted_with(tmp_path):
    make_run(tmp_path / "r", tensor_parallel_size=2)
    assert ("validate", "costs.link_efficiency=0.0") in run_changes(read_server_run(tmp_path / "r"))
    (tmp_path / "r" / "config.json").write_text('{"link_bw": 8, "link_latency": 20000}')
    assert ("validate", "costs.link_efficiency=0.25") in run_changes(read_server_run(tmp_path / "r"))
    slow, fast = (
        validate(tmp_path, more=changes(f"costs.link_efficiency={share}")).cases[0].error("ttft")
        for share in (0.01, 1.0)
    )
    assert slow > fast
    for wrong in ('"fast"', "true", "-1", "1e9"):
        (tmp_path / "r" / "config.json").write_text(f'{{"link_bw": {wrong}}}')
        with pytest.raises(UsageError, match="link_bw is a bandwidth in GB/s"):
            read_server_run(tmp_path / "r")


def test_the_command_prints_a_table_and_writes_both_files(measured, capsys, tmp_path):
    sets = [part for text in FEW for part in ("--set", text)]
    assert call(["validate", str(measured), "-q", "-o", str(tmp_path / "out"), *sets]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    for text in ("not scored:", "bias", "my-run", "no engine trtllm", "worst", "\nvllm 0.19.0, qwen3-32b, h100, bf16 "):
        assert text in out
    rows = list(csv.DictReader((tmp_path / "out" / "fidelity.csv").read_text().splitlines()))
    assert len(rows) == 3 * 2 + 12
    document = json.loads((tmp_path / "out" / "fidelity.json").read_text())
    assert document["cases"] == 4
    assert len(document["not_scored"]) == 8
    assert call(["validate", str(measured), "-q", "--json", *sets]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["summary_percent"] == document["summary_percent"]


def test_a_folder_without_measurements_is_one_line(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n")
    assert call(["validate", str(tmp_path)]) == 2
    assert "no table of deployments" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no such folder"):
        find_truth(tmp_path / "nowhere")


def test_spread_is_of_sizes_and_bias_keeps_the_sign():
    cases = [
        Case(str(i), "deployment", "", "", "", "", "", 1, "", (Figure("ttft", "mean", 100.0, 100.0 + e),))
        for i, e in enumerate((-10, -20, 30, -40))
    ]
    found = spread(cases, "ttft")
    assert (found.cases, found.median, found.bias, found.worst) == pytest.approx((4, 25.0, -15.0, 40.0))
    assert found.p90 == pytest.approx(np.percentile([10, 20, 30, 40], 90))
    assert spread(cases, "tpot") is None


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
    ],
)
def test_models_by_their_names_elsewhere(told, known):
    assert known_model(told) == known


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("h200_sxm", "h200"),
        ("h100_pcie", "h100-pcie"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
    ],
)
def test_devices_by_their_names_elsewhere(told, known):
    assert known_device(told) == known


def test_presets_by_version():
    assert known_preset("vllm", "0.12.0") == "vllm-0.12"
    assert known_preset("vllm", "0.19.0") == "vllm-0.19"
    assert known_preset("vllm", "0.25.1") == "vllm-0.19"
    assert known_preset("vllm", "0.40") == "vllm-0.33"
    assert known_preset("sglang", "0.5.6.post2") == "sglang-0.5.6"
    assert known_preset("sglang", "0.5.14") == "sglang-0.5.12"
    with pytest.raises(UsageError, match="no engine"):
        known_preset("tgi", "2.0")


def test_steps_of_one_half_predict_the_other(tmp_path):
    rows = ["step_tokens,prefill_tokens,decodes,context,ms"]
    for decodes in range(8, 256, 8):
        for context in (256, 1024, 2048):
            ms = max(12.0, 4.0 + 0.03 * decodes + 0.02 * decodes * context / 1e3)
            rows.append(f"{decodes},0,{decodes},{context},{ms}")
    (tmp_path / "steps.csv").write_text("\n".join(rows))
    make_run(tmp_path / "run")
    (line,) = validate(tmp_path).beside
    found = [float(word) for word in line.split() if word.replace(".", "").isdigit() and "." in word]
    assert len(found) == 2
    assert max(found) < 1.0
    (tmp_path / "steps.csv").write_text("\n".join(rows[:9]))
    assert "not scored" in validate(tmp_path).beside[0]


def test_a_page_draws_what_was_validated(measured, capsys, tmp_path):
    sets = [part for text in FEW for part in ("--set", text)]
    assert call(["validate", str(measured), "-q", "-o", str(tmp_path / "out"), *sets]) == 0
    assert call(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html"), "-q"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "TTFT: predicted against measured" in page
    assert "my-run" in page


def test_what_was_chosen_on_scored_rows_is_said_beside_them(measured):
    usual, stated = validate(measured, more=changes(*FEW)), validate(measured, "vllm-bench", changes("num_prompts=4"))
    assert any("had been tried on these rows" in note for note in usual.notes)
    assert not any("had been tried on these rows" in note for note in stated.notes)
    assert not any("the host of vLLM 0.12" in note for note in usual.notes)
