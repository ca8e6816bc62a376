import pytest

from kvbench.core.errors import UsageError
from kvbench.costs.memory import EngineLimits, memory_budget
from kvbench.costs.models import kv_bytes_per_token, weight_bytes

from .steps import deployment


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("block_tokens", [1, 16, 100])
def test_the_parts_fill_what_is_usable_up_to_one_block(tp, block_tokens):
    where = deployment("h200", "llama-3.1-8b", tp=tp, block_tokens=block_tokens)
    budget = memory_budget(where, EngineLimits(memory_utilization=0.8))
    parts = budget.weights_bytes + budget.reserved_bytes + budget.metadata_bytes + budget.kv_bytes
    assert budget.usable_bytes == int(where.device.memory_bytes * 0.8)
    assert 0 <= budget.usable_bytes - parts < budget.block_bytes
    assert budget.kv_bytes == budget.num_blocks * budget.block_bytes
    assert budget.block_bytes == kv_bytes_per_token(where.model, "bf16", tp) * block_tokens
    assert budget.weights_bytes == weight_bytes(where.model, "bf16", tp)


def test_blocks_of_a_real_server():
    """vLLM 0.19 found 2,588 blocks for this model, device and setting."""
    limits = EngineLimits(memory_utilization=0.9, max_batched_tokens=2048, max_num_seqs=256)
    budget = memory_budget(deployment("rtx-4090", "llama-3.1-8b", max_model_len=32768), limits)
    assert budget.num_blocks == pytest.approx(2588, rel=0.03)


def test_one_byte_kv_doubles_the_blocks():
    wide, narrow = (memory_budget(deployment("h100", "qwen3-8b", kv_dtype=d)) for d in ("bf16", "fp8"))
    assert narrow.num_blocks in (2 * wide.num_blocks, 2 * wide.num_blocks + 1)


def test_small_blocks_cost_tables():
    small, large = (memory_budget(deployment(block_tokens=n)) for n in (1, 64))
    assert small.metadata_bytes > 50 * large.metadata_bytes


@pytest.mark.parametrize(
    ("device", "model", "rest", "advice"),
    [
        ("h100", "llama-3.1-70b", {}, "try tp 2"),
        ("rtx-4090", "qwen3-32b", {}, "try tp 4 or dtype fp8 with tp 2"),
        ("h100", "deepseek-v3", {"dtype": "fp8", "tp": 8}, "try tp 16"),
        ("h100", "deepseek-v3", {}, "try dtype fp8 with tp 16"),
        ("rtx-4090", "deepseek-v3", {}, "no tp up to 16 helps"),
    ],
)
def test_what_would_fit(device, model, rest, advice):
    where = deployment(device, model, **rest)
    with pytest.raises(UsageError, match=f"{model} does not fit {device}: .*; {advice}") as caught:
        memory_budget(where)
    assert "\n" not in str(caught.value)


def test_advice_is_true():
    """Every combination the error names has room for blocks, and the next smaller tp has not."""
    with pytest.raises(UsageError, match=r"try tp 4 or dtype fp8 with tp 2$"):
        memory_budget(deployment("rtx-4090", "qwen3-32b", tp=1))
    assert memory_budget(deployment("rtx-4090", "qwen3-32b", tp=4)).num_blocks > 0
    assert memory_budget(deployment("rtx-4090", "qwen3-32b", tp=2, dtype="fp8")).num_blocks > 0
    with pytest.raises(UsageError, match="does not fit"):
        memory_budget(deployment("rtx-4090", "qwen3-32b", tp=2))
