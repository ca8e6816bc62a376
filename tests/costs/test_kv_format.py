"""Bytes of a quantised cache against sums by hand, and its step times against the way it computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.bench.cost_notes import regime
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.costs.deployment import Deployment
from kvbench.costs.keys import CostSettings
from kvbench.costs.kv_format import (
    PLAIN,
    KvFormat,
    check_format,
    layer_scale_bytes,
    slope_share,
    token_bytes,
    workspace_bytes,
)
from kvbench.costs.kv_times import break_even_tokens
from kvbench.costs.memory import memory_budget
from kvbench.costs.named import find_device, find_model
from kvbench.costs.pricing import price_steps
from kvbench.costs.sources import find_step_times
from kvbench.costs.step_times import Wanted

from ..runs import counters

LLAMA = find_model("llama-3.1-8b")  # 32 layers, 8 KV heads of 128: 2,048 elements a layer


@pytest.mark.parametrize(
    ("kv_dtype", "kv", "per_layer"),
    [
        ("bf16", PLAIN, 2048 * 2),
        ("fp8", PLAIN, 2048),
        ("fp8_e5m2", KvFormat(scales="token-head"), 2048 + 16 * 2),
        ("int8", PLAIN, 2048 + 16 * 2),  # a scale for K and V of each head
        ("int4", PLAIN, 1024 + 16 * 4 * 2),  # 128 channels are 4 groups of 32
        ("int4", KvFormat(scales="group64"), 1024 + 16 * 2 * 2),
        ("int4", KvFormat(scales="group128"), 1024 + 16 * 2),
        ("int8", KvFormat(scales="tensor"), 2048),
    ],
)
def test_bytes_of_a_token_with_its_scales(kv_dtype, kv, per_layer):
    assert token_bytes(LLAMA, kv_dtype, 1, kv) == 32 * per_layer


def test_layers_that_stay_wide_scales_of_layers_and_the_workspace():
    kv = KvFormat(skip_first=2, skip_last=1)
    assert token_bytes(LLAMA, "fp8", 1, kv) == 3 * 4096 + 29 * 2048
    assert layer_scale_bytes(LLAMA, "fp8", 1, kv) == 29 * 2 * 4
    assert layer_scale_bytes(LLAMA, "fp8", 2, replace(kv, scales="head")) == 29 * 8 * 4
    assert layer_scale_bytes(LLAMA, "int8") == 0
    assert workspace_bytes(LLAMA, "fp8", 1, KvFormat(compute="storage"), 1000) == 1000 * 4096
    assert workspace_bytes(LLAMA, "fp8", 1, PLAIN, 1000) == 0
    assert token_bytes(LLAMA, "fp8", 1, KvFormat(skip_first=32)) == token_bytes(LLAMA, "bf16")


def test_mla_is_one_vector_a_token():
    model = find_model("kimi-k2")
    elements = model.mla.cached_width
    assert token_bytes(model, "int8", 8) == model.num_layers * (elements + 2)
    assert token_bytes(model, "int4", 1) == -(-model.num_layers * (elements * 0.5 + -(-elements // 32) * 2) // 1)


def test_the_three_ways_to_compute():
    assert slope_share(LLAMA, "bf16") == 1
    assert slope_share(LLAMA, "fp8") == pytest.approx(0.54, abs=0.005)  # measured on vLLM
    assert slope_share(LLAMA, "fp8", 1, KvFormat(compute="native")) == 0.5
    assert slope_share(LLAMA, "fp8", 1, KvFormat(compute="storage")) == 2.5
    assert slope_share(LLAMA, "fp8", 1, KvFormat(skip_first=16)) == pytest.approx(0.5 + 0.5 * 0.5 / 0.93)


def deployment(kv_dtype: str, kv: KvFormat = PLAIN, device: str = "h100") -> Deployment:
    return Deployment(find_device(device), LLAMA, kv_dtype=kv_dtype, kv=kv)


@pytest.mark.parametrize("silicon", [True, False])
def test_steps_grow_with_the_context_as_the_way_says_and_break_even(silicon):
    settings, wanted = CostSettings(silicon=silicon), Wanted("h100", "", "vllm")
    contexts = (1 << 10, 1 << 14, 1 << 16)

    def times(kv_dtype: str, kv: KvFormat = PLAIN) -> list[int]:
        found = find_step_times(deployment(kv_dtype, kv), settings, wanted).tables(settings)
        return price_steps(found, [(0, 0, 16, context) for context in contexts])[0].sum(axis=1).tolist()

    wide, fused, storage = times("bf16"), times("fp8"), times("fp8", KvFormat(compute="storage"))
    slope = (fused[2] - fused[1]) / (wide[2] - wide[1])
    assert slope == pytest.approx(0.54, abs=0.01)
    assert (storage[2] - storage[1]) / (wide[2] - wide[1]) == pytest.approx(2.5, abs=0.03)
    d = deployment("fp8")
    even = break_even_tokens(find_step_times(d, settings, wanted), d, settings)
    assert 5_000 < even < 10_000  # about 7,000 on vLLM
    assert fused[0] < wide[0]  # 16,384 tokens
    assert (
        break_even_tokens(
            find_step_times(d, settings, wanted), deployment("fp8", KvFormat(compute="storage")), settings
        )
        == np.inf
    )


def test_a_device_holds_as_many_more_tokens_as_a_token_is_smaller():
    blocks = {name: memory_budget(deployment(name)).num_blocks for name in ("bf16", "fp8", "int4")}
    assert blocks["fp8"] == pytest.approx(2 * blocks["bf16"], rel=1e-3)
    assert blocks["int4"] == pytest.approx(blocks["bf16"] * 4096 / 1152, rel=1e-3)
    stored = memory_budget(deployment("fp8", KvFormat(compute="storage"))).num_blocks
    assert stored < blocks["fp8"]


def test_the_regime_is_what_16_bits_would_have_run_into():
    base = {"num_blocks": 1000, "evicted_blocks": 0, "used_blocks_peak": 400, "kv_tokens_mean": 5000.0}
    assert regime(counters(**base), 0.5, 7000) == "neither"
    assert regime(counters(**{**base, "used_blocks_peak": 600}), 0.5, 7000) == "capacity"
    assert regime(counters(**{**base, "kv_tokens_mean": 9000.0}), 0.5, 7000) == "bandwidth"
    assert regime(counters(**{**base, "evicted_blocks": 1}), 0.5, 4000) == "capacity and bandwidth"


def test_wrong_formats_are_one_line(capsys):
    for kv_dtype, kv in (
        ("bf16", KvFormat(scales="head")),
        ("fp8", KvFormat(skip_first=20, skip_last=20)),
        ("int4", KvFormat(compute="native")),
    ):
        with pytest.raises(UsageError):
            check_format(kv, kv_dtype, LLAMA, True, "--set")
    with pytest.raises(UsageError, match="units"):
        check_format(KvFormat(compute="native"), "fp8", LLAMA, False, "--set")
    assert call(["config", "chat", "--set", "kv.skip_first=2"]) == 2
    assert call(["config", "chat", "--set", "kv_dtype=fp8", "--set", "kv.compute=native", "--device", "a100"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert all("--set" in line for line in err)


def test_a_run_says_what_the_type_is_worth(capsys):
    assert call(["run", "chat", "--num-prompts", "8", "--set", "kv_dtype=fp8", "-q"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "KV fp8: 50.0 % of the bytes of 16 bits, scales included; steps are faster from" in out
    assert "regime: neither" in out
