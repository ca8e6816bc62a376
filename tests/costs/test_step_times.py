"""Step times as data: files, what they fit, corrections, graphs, what ships."""

from dataclasses import replace

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.costs import tables as t
from kvbench.costs.deployment import Deployment
from kvbench.costs.devices import DEVICES, find_hardware
from kvbench.costs.graphs import captured_graphs
from kvbench.costs.keys import DEFAULTS, CostSettings
from kvbench.costs.known_errors import known_error
from kvbench.costs.models import MODELS, find_hub_model
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import roofline_times
from kvbench.costs.sources import find_step_times, host_times
from kvbench.costs.step_times import Wanted, check_fits, costs_of, load_step_times, save_step_times, shape_of

from ..reference import cost as reference
from .steps import deployment, price, price_chunks

H100 = Wanted("h100", "", "vllm")


@pytest.fixture
def times():
    return replace(roofline_times(deployment()), floor_ns=7e6, host={"step_overhead_us": 123.0})


def test_a_file_holds_what_was_written(times, tmp_path):
    path = tmp_path / "mine.npz"
    save_step_times(times, path)
    read = load_step_times(path)
    assert (read.origin, read.host, read.limits, read.floor_ns) == (times.origin, times.host, times.limits, 7e6)
    for name in ("prefill", "decode", "mixed"):
        for bound in ("compute_ns", "memory_ns"):
            np.testing.assert_allclose(getattr(getattr(read, name), bound), getattr(getattr(times, name), bound), 1e-6)
    first = path.read_bytes()
    save_step_times(times, path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half an archive"])
def test_a_file_that_is_none_is_said_in_one_line(content, tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(UsageError, match="no such file"):
        load_step_times(path)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a file of step times") as error:
        load_step_times(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": find_model("qwen3-8b")}, r"model llama-3.1-8b \(the run has qwen3-8b\)"),
        ({"tp": 2}, r"tp 1 \(the run has 2\)"),
        ({"dtype": "fp8"}, r"dtype bf16 \(the run has fp8\)"),
        ({"kv_dtype": "fp8"}, r"kv_dtype bf16 \(the run has fp8\)"),
    ],
)
def test_a_table_of_something_else_is_refused(times, change, text):
    check_fits(times.origin, deployment(), "x")
    with pytest.raises(UsageError, match=text):
        check_fits(times.origin, replace(deployment(), **change), "x")


def test_replicas_and_shared_experts_have_to_match_too(times):
    with pytest.raises(UsageError, match=r"dp 1 \(the run has 2\), ep 1 \(the run has 2\)"):
        check_fits(times.origin, deployment(), "x", dp=2, ep=2)


def test_the_sources_in_their_order(times, tmp_path):
    path = tmp_path / "mine.npz"
    save_step_times(times, path)
    of_file = find_step_times(deployment(), DEFAULTS, replace(H100, step_times=str(path)))
    assert of_file.origin == times.origin
    assert find_step_times(deployment(), DEFAULTS, replace(H100, device=str(path))).origin == times.origin
    assert find_device(str(path)) == DEVICES["h100"]
    assert find_step_times(deployment(), DEFAULTS, H100).origin.kind == "kernels"
    assert find_step_times(deployment(), CostSettings(silicon=False), H100).origin.kind == "roofline"
    assert find_step_times(deployment(kv_dtype="fp8"), DEFAULTS, H100).origin.kv_dtype == "fp8"  # derived (kv_times)
    for other in (deployment("a100"), deployment(dtype="int8")):
        assert find_step_times(other, DEFAULTS, H100).origin.kind == "roofline"
    assert find_step_times(deployment(), DEFAULTS, Wanted("h100", "", "")).origin.kind == "roofline"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-32b"])
def test_what_ships_is_what_its_name_says(engine, model):
    for device in ("h100", "h200"):
        for dtype in ("bf16", "fp8"):
            last = np.inf
            for tp in (1, 2, 4, 8):
                where = Deployment(DEVICES[device], MODELS[model], dtype, tp=tp)
                times = find_step_times(where, DEFAULTS, Wanted(device, "", engine))
                check_fits(times.origin, where, "shipped")
                assert (times.origin.kind, times.origin.engine, times.origin.device) == (
                    "kernels",
                    engine,
                    where.device,
                )
                assert times.origin.licence
                assert 0.5 < times.origin.measured <= 1.0
                out, total = price(times.tables(), [[4096, 0, 0, 0, 0], [0, 0, 64, 64_000, 0]])
                assert out[0, t.LINEAR] < last  # more ranks, less work for each
                last = out[0, t.LINEAR]
                weights = 2 * MODELS[model].num_layers * MODELS[model].hidden * MODELS[model].mlp_width / tp
                assert total[1] > weights / where.device.memory_bandwidth * 1e9  # nothing beats the memory


def test_a_correction_scales_what_it_names(times, tmp_path):
    save_step_times(times, tmp_path / "mine.npz")
    toml = tmp_path / "own.toml"
    toml.write_text('base = "mine.npz"\nsource = "fitted"\n[scale]\nlinear = 2.0\n[host]\nrequest_overhead_us = 5\n')
    where = deployment()
    scaled = find_step_times(where, DEFAULTS, replace(H100, device=str(toml)))
    steps = [[512, 0, 8, 8000, 0]]
    before, after = (price(x.tables(), steps)[0][0] for x in (load_step_times(tmp_path / "mine.npz"), scaled))
    head = price(replace(scaled, linear=replace(scaled.linear, ns=0 * scaled.linear.ns)).tables(), steps)[0][
        0, t.LINEAR
    ]
    assert after[t.LINEAR] - head == pytest.approx(2 * (before[t.LINEAR] - head), abs=2)
    assert after[t.DECODE_ATTENTION] == before[t.DECODE_ATTENTION]
    assert scaled.origin.source.startswith("fitted, on roofline")
    assert host_times(str(toml), "") == {"step_overhead_us": 123.0, "request_overhead_us": 5}
    assert find_device(str(toml)) == DEVICES["h100"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source = 'x'", "base is missing"),
        ("base = 'h100'\nbaze = 1", "baze is not one of its keys"),
        ("base = 'h100'\n[scale]\nlinaer = 1.0", "scale.linaer is not known"),
        ("base = 'h100'\n[scale]\nlinear = 0", "scale.linear is a number from 0.01 on"),
        ("base = 'h100'\n[host]\nstep_overhead_us = -1", "host.step_overhead_us is a number from 0 on"),
        ("base = 'other.toml'", "not another correction"),
        ("base = 'h1000'", "unknown device 'h1000'"),
    ],
)
def test_a_wrong_correction_is_named(text, message, tmp_path):
    toml = tmp_path / "own.toml"
    toml.write_text(text)
    with pytest.raises(UsageError, match=message):
        find_device(str(toml))


def test_names_of_other_tools():
    assert find_hub_model("meta-llama/Meta-Llama-3.1-8B-Instruct") is MODELS["llama-3.1-8b"]
    assert find_hub_model("Qwen/Qwen3-30B-A3B-Instruct-2507") is MODELS["qwen3-30b-a3b"]
    assert find_hub_model("deepseek-ai/DeepSeek-V3") is MODELS["deepseek-v3"]
    assert find_hardware("RTX4090") is DEVICES["rtx-4090"]
    assert find_hardware("h200_sxm") is DEVICES["h200"]
    with pytest.raises(UsageError, match="name it with --model"):
        find_hub_model("somebody/gpt-9")
    with pytest.raises(UsageError, match="name it with --device"):
        find_hardware("TPU9")


def test_shapes_tell_all_models_apart():
    assert len({shape_of(model) for model in MODELS.values()}) == len(MODELS)


def test_captured_sizes_are_those_of_the_engines():
    vllm = captured_graphs("vllm", 256, 2048, 24 << 30, 1)
    assert vllm.sizes[:5] == (1, 2, 4, 8, 16)
    assert len(vllm.sizes) == 51  # as vLLM 0.19 lists them for 256 sequences
    assert (vllm.sizes[-1], vllm.mixed) == (512, True)
    assert captured_graphs("vllm-ascend", 24, 8192, 64 << 30, 8).sizes == (1, 2, 4, 8, 16, 24)
    sglang = captured_graphs("sglang", 2048, 8192, 80 << 30, 1)
    assert (len(sglang.sizes), sglang.sizes[-1], sglang.mixed) == (36, 256, False)
    assert captured_graphs("sglang", 2048, 8192, 80 << 30, 4).sizes[-1] == 512
    assert captured_graphs("sglang", 2048, 8192, 24 << 30, 1).sizes[-1] == 24
    assert captured_graphs("none", 1, 1, 1, 1).sizes == ()


@pytest.mark.parametrize("rule", ["none", "vllm", "sglang"])
def test_padding_equals_the_reference(rule):
    tables = costs_of(roofline_times(deployment()), DEFAULTS, captured_graphs(rule, 256, 8192, 80 << 30, 1)).tables
    fields = tables.read()
    for batch in (1, 3, 9, 13, 255, 256, 257, 511, 512, 513, 900):
        assert (
            price_chunks(tables, [], [(batch, 99 * batch)])[0]
            == reference.Step(fields, [], batch, 99 * batch).resources()
        )
        mixed = price_chunks(tables, [(7, 50)], [(batch, 99 * batch)])[0]
        assert mixed == reference.Step(fields, [(7, 50)], batch, 99 * batch).resources()


def test_a_step_pays_for_the_graph_and_a_replica_for_the_widest():
    graphs = captured_graphs("vllm", 256, 8192, 80 << 30, 1)
    tables = replace(roofline_times(deployment())).tables(graphs=graphs)
    linear = [price(tables, [[0, 0, n, 10, 0]])[0][0, t.LINEAR] for n in (33, 39, 40, 41)]
    by_head = price(tables, [[0, 0, 40, 10, 0]])[0][0, t.LINEAR]
    assert linear[2] == by_head
    fields = tables.read()
    alone, padded = (reference.Step(fields, [], 33, 10, padded=p).resources()[t.LINEAR] for p in (0, 40))
    assert alone == padded == linear[0]
    assert linear[3] > linear[2]


def test_an_error_is_that_of_the_engine_at_hand_where_it_is_known():
    vllm, sglang, other = (known_error("kernels", "h100", engine) for engine in ("vllm", "sglang", "mindie"))
    assert "median error on 93 deployments of vLLM" in vllm
    assert "median error on 46 deployments of SGLang" in sglang
    assert "on 139 deployments" in other
    assert known_error("roofline", "a100", "sglang").startswith("not known on a100; elsewhere")
    assert known_error("corrected", "h100", "vllm", "TPOT mean +1 %") == "TPOT mean +1 %"
    assert known_error("steps", "h100", "vllm") == "none known"
