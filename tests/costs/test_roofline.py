from dataclasses import replace

import numpy as np
import pytest

from kvbench.costs import roofline as product
from kvbench.costs import tables as t
from kvbench.costs.classes import ASCEND, GDDR, HBM, class_of, fitted
from kvbench.costs.keys import COST_KEYS, CostSettings
from kvbench.costs.models import active_parameters, kv_bytes_per_token, total_parameters
from kvbench.costs.roofline import MAX_SEQUENCES, MAX_STEP_TOKENS, roofline_times
from kvbench.costs.shipped import shipped_times

from .steps import deployment, price

ROUND = CostSettings(
    flops_efficiency=0.5,
    bandwidth_efficiency=0.8,
    link_efficiency=0.8,
    allreduce_latency_us=10,
    launch_us=2,
    floor_us=0,
)
"""Round shares, so that expected times can be written down."""


def roofline(where, settings=ROUND):
    return product.roofline(where, settings)


def make_rank(where, settings=ROUND):
    return product.make_rank(where, settings)


COMBINATIONS = [
    deployment(),
    deployment("h20", "qwen3-8b", kv_dtype="fp8"),
    deployment("rtx-4090", "qwen2.5-7b", dtype="int8", tp=2, block_tokens=1),
    deployment("b200", "llama-3.1-70b", dtype="fp4", kv_dtype="fp8", tp=16),
    deployment("h100", "deepseek-v3", dtype="fp8", tp=16),
    deployment("h20", "deepseek-v3", dtype="fp8", tp=8, block_tokens=64),
    deployment("ascend-910c", "qwen3-32b", tp=4),
]
NAMES = [f"{d.device.name}-{d.model.name}-tp{d.tp}" for d in COMBINATIONS]

every_combination = pytest.mark.parametrize("where", COMBINATIONS, ids=NAMES)


def _counts(last, number=3000):
    """Every small count, and random ones of every magnitude up to last."""
    rng = np.random.default_rng(1)
    spread = np.exp(rng.uniform(0, np.log(last), number)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(1, min(last, 700)), spread, [last]]))


def _close(ns, exact):
    """Within 1 % of the closed form, or the rounding to whole ns."""
    assert np.all(np.abs(ns - exact) <= 0.01 * exact + 0.51)


@every_combination
def test_linear_part_and_communication_follow_the_closed_form(where):
    tokens = _counts(MAX_STEP_TOKENS)
    rank = make_rank(where)
    out, _ = price(roofline(where).tables, [[n, 0, 0, 0, 0] for n in tokens])
    exact = rank.linear_ns(tokens.astype(float)) + rank.head_ns(np.ones(1))
    _close(out[:, t.LINEAR], exact)
    _close(out[:, t.COMMUNICATION], rank.communication_ns(tokens.astype(float)))


@every_combination
def test_head_follows_the_closed_form(where):
    sequences = _counts(MAX_SEQUENCES)
    rank = make_rank(where)
    out, _ = price(roofline(where).tables, [[0, 0, n, n, 0] for n in sequences])
    count = sequences.astype(float)
    _close(out[:, t.LINEAR], rank.head_ns(count) + rank.linear_ns(count))


@every_combination
def test_prefill_attention_follows_the_closed_form(where):
    length = where.model.max_positions
    rng = np.random.default_rng(2)
    new = rng.permutation(_counts(length))
    context = rng.choice(np.concatenate([[0], _counts(length)]), new.size)
    rank = make_rank(where)
    out, _ = price(roofline(where).tables, [[n, c, 0, 0, 0] for n, c in zip(new, context, strict=True)])
    sizes = new.astype(float), context.astype(float)
    exact = np.maximum(rank.prefill_compute_ns(*sizes), rank.prefill_memory_ns(*sizes))
    _close(out[:, t.PREFILL_ATTENTION], exact)


@every_combination
def test_decode_attention_follows_the_closed_form(where):
    rng = np.random.default_rng(3)
    batch = rng.permutation(_counts(MAX_SEQUENCES))
    context_sum = batch * rng.choice(_counts(where.model.max_positions), batch.size)
    rank = make_rank(where)
    steps = [[0, 0, b, c, 0] for b, c in zip(batch, context_sum, strict=True)]
    out, _ = price(roofline(where).tables, steps)
    sizes = batch.astype(float), context_sum.astype(float)
    exact = np.maximum(rank.decode_compute_ns(*sizes), rank.decode_memory_ns(*sizes))
    _close(out[:, t.DECODE_ATTENTION], exact)


def test_one_token_reads_every_weight_once():
    where = deployment()
    bandwidth = where.device.memory_bandwidth * 0.8 / 1e9
    weights = 2 * (total_parameters(where.model) - 128256 * 4096)  # but not the embedding table
    out, _ = price(roofline(where).tables, [[1, 0, 0, 0, 0]])
    assert out[0, t.LINEAR] == pytest.approx(weights / bandwidth, rel=1e-3)


def test_many_tokens_pay_for_every_product():
    where = deployment()
    layers = active_parameters(where.model) - 128256 * 4096
    out, _ = price(roofline(where).tables, [[16384, 0, 0, 0, 0]])
    head = 2 * 128256 * 4096 / (3350 * 0.8)
    assert out[0, t.LINEAR] - head == pytest.approx(2 * 16384 * layers / (989e3 * 0.5), rel=1e-3)


def test_experts_are_read_as_tokens_touch_them():
    """One token reads its experts, a large batch reads all of them."""
    rank = make_rank(deployment("h200", "deepseek-v3", dtype="fp8"))
    one, many = rank.linear_ns(np.array([1.0, 250.0])) * rank.bytes_per_ns
    assert one == pytest.approx(36e9, rel=0.02)
    assert many == pytest.approx(670e9, rel=0.05)


@pytest.mark.parametrize("name", ["olmoe-1b-7b", "qwen3-30b-a3b", "qwen3-235b-a22b"])
def test_a_mixture_on_one_rank_is_a_dense_model_of_its_active_size_and_stated_terms(name):
    """The router, weights of all experts that any token touches, and a token's activations in each of its experts."""
    where = deployment("h200", name, dtype="fp8", tp=1)
    model, moe = where.model, where.model.moe
    k, width, hidden = moe.experts_per_token, moe.expert_width, model.hidden
    tokens = np.array([1.0, 5.0, 60.0, 1000.0, 100_000.0])
    mixed = make_rank(where)
    dense = make_rank(replace(where, model=replace(model, moe=None, mlp_width=k * width)))
    router = np.maximum(
        2 * hidden * moe.num_experts * tokens / mixed.wide_flops_per_ns,
        2 * (hidden * moe.num_experts + tokens * (hidden + moe.num_experts)) / mixed.bytes_per_ns,
    )
    touched = moe.num_experts * (1 - (1 - k / moe.num_experts) ** tokens)
    more = router.copy()
    for inputs, outputs, both in ((hidden, 2 * width, hidden + 2 * k * width), (width, hidden, k * width + hidden)):
        products = 2 * inputs * outputs * k * tokens / mixed.flops_per_ns
        of_mixed = (touched * inputs * outputs + tokens * k * (inputs + outputs) * 2) / mixed.bytes_per_ns
        of_dense = (k * inputs * outputs + tokens * both * 2) / mixed.bytes_per_ns
        more += np.maximum(products, of_mixed) - np.maximum(products, of_dense)
    differs = mixed.linear_ns(tokens) - dense.linear_ns(tokens)
    assert differs == pytest.approx(model.num_layers * more, rel=1e-6)
    assert touched[0] == pytest.approx(k)
    assert more[2] > 3 * more[0]  # sixty tokens read nearly all experts


def test_decode_reads_every_cached_token():
    where = deployment("h100", "llama-3.1-8b", kv_dtype="fp8")
    out, _ = price(roofline(where).tables, [[0, 0, 32, 320_000, 0]])
    read = 320_000 * kv_bytes_per_token(where.model, "fp8")
    assert out[0, t.DECODE_ATTENTION] == pytest.approx(read / (3350 * 0.8), rel=0.01)


def test_ranks_share_the_work_and_pay_for_talking():
    one, four = (roofline(deployment(tp=tp)).tables for tp in (1, 4))
    step = [[4096, 4096, 64, 640_000, 0]]
    alone, shared = price(one, step)[0][0], price(four, step)[0][0]
    for resource in (t.LINEAR, t.PREFILL_ATTENTION, t.DECODE_ATTENTION):
        assert alone[resource] / shared[resource] == pytest.approx(4, rel=0.02)
    assert alone[t.COMMUNICATION] == 0
    sent = 2 * 3 / 4 * 4160 * 4096 * 2
    assert shared[t.COMMUNICATION] == pytest.approx(2 * 32 * (10_000 + sent / (450 * 0.8)), rel=1e-6)


def test_a_device_without_scale_up_says_so():
    costs = roofline(deployment("l40s", tp=2))
    assert "host link" in costs.notes[0]
    out, _ = price(costs.tables, [[100, 0, 0, 0, 0]])
    assert out[0, t.COMMUNICATION] == pytest.approx(64 * (10_000 + 100 * 4096 * 2 / (32 * 0.8)), rel=1e-6)
    assert roofline(deployment("h100", tp=2)).notes == ()


def test_missing_units_run_at_the_16_bit_rate_and_say_so():
    costs = roofline(deployment("a100", dtype="fp8"))
    assert "no fp8 units" in costs.notes[0]
    many = [[16384, 0, 0, 0, 0]]
    wide = roofline(deployment("a100")).tables
    assert price(costs.tables, many)[0][0, t.LINEAR] == pytest.approx(price(wide, many)[0][0, t.LINEAR])


def test_overheads_are_those_of_the_keys():
    base = replace(ROUND, step_overhead_us=100, request_overhead_us=7, launch_us=0)
    quiet = roofline(deployment(), base).tables
    assert price(quiet, [[5, 0, 3, 30, 0]])[0][0, t.HOST] == 100_000 + 4 * 7_000
    launched = roofline(deployment(), replace(ROUND, launch_us=1, step_overhead_us=0)).tables
    out, _ = price(launched, [[1, 0, 0, 0, 0]])
    assert out[0, t.LAUNCH] == (32 * 9 + 4) * 1_000
    assert out[0, t.HOST] == 10_000


def test_the_source_names_the_efficiencies():
    source = roofline(deployment("ascend-910b"), replace(ROUND, flops_efficiency=0.37)).source
    assert "datasheet, uncalibrated (0.37 of FLOP/s, 0.8 of bandwidth)" in source
    assert "confidence low" in source


def test_usual_steps_take_the_usual_time():
    """Llama 3.1 8B on H100: 7-9 ms a decode step of 32 x 1,000, a quarter second for 8,192 tokens."""
    _, totals = price(roofline(deployment()).tables, [[0, 0, 32, 32_000, 0], [8192, 0, 0, 0, 0]])
    assert 7e6 < totals[0] < 9e6
    assert 0.25e9 < totals[1] < 0.3e9


def test_keys_are_the_settings():
    fields = CostSettings.__dataclass_fields__
    assert [key.name for key in COST_KEYS] == [f"costs.{name}" for name in fields]
    for key in COST_KEYS:
        assert key.default == fields[key.name.removeprefix("costs.")].default
    for key in (key for key in COST_KEYS if key.kind == "float"):
        assert key.low <= key.default <= key.high
        assert key.unit == ("us" if "_us" in key.name else "")


def test_what_is_open_is_that_of_the_class():
    for device, kind in (("h20", HBM), ("rtx-4090", GDDR), ("ascend-910c", ASCEND)):
        where = deployment(device)
        assert class_of(where.device) is kind
        settings = fitted(CostSettings(), where.device, "bf16")
        assert (settings.flops_efficiency, settings.bandwidth_efficiency) == (kind.flops, kind.bandwidth)
        assert fitted(CostSettings(), where.device, "fp8").flops_efficiency == kind.narrow_flops
        assert fitted(ROUND, where.device, "bf16") == ROUND
    assert roofline_times(deployment("ascend-910b")).floor_ns == 14.8e6


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("device", ["h100", "h200"])
def test_the_roofline_is_near_to_measured_kernels(device, engine):
    """Of steps of decodes and prompts alone, at every tp and model that ships: 5 % in the median."""
    steps = [[0, 0, n, n * context, 0] for n in (1, 16, 128) for context in (512, 8192)]
    steps += [[n, 0, 0, 0, 0] for n in (512, 2048, 8192)]
    errors = []
    for model in ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b"):
        for tp in (1, 2, 4, 8):
            where = deployment(device, model, tp=tp)
            (found, measured) = (
                price(x.tables(), steps) for x in (roofline_times(where), shipped_times(where, engine))
            )
            errors += list((found[1] - found[0][:, t.HOST]) / (measured[1] - measured[0][:, t.HOST]) - 1)
    assert np.median(np.abs(errors)) < 0.05
    assert abs(np.median(errors)) < 0.04
