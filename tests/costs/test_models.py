import pytest

from kvbench.core.errors import UsageError
from kvbench.costs.deployment import Deployment
from kvbench.costs.models import MODELS, active_parameters, divides, kv_bytes_per_token, total_parameters, weight_bytes
from kvbench.costs.named import find_device, find_model

# Parameter counts that the checkpoints' metadata state.
EXACT = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_248_023_552,
}
KV_BYTES = {
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "qwen2.5-7b": 57_344,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "mistral-7b": 131_072,
    "deepseek-v3": 61 * (512 + 64) * 2,
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_of_the_checkpoint(name):
    assert total_parameters(find_model(name)) == EXACT[name]


def test_a_mixture_of_experts_has_two_sizes():
    model = find_model("deepseek-v3")
    assert total_parameters(model) == pytest.approx(671e9, rel=1e-3)
    assert active_parameters(model) == pytest.approx(37e9, rel=0.02)


@pytest.mark.parametrize("name", KV_BYTES)
def test_kv_bytes_per_token(name):
    model = find_model(name)
    assert kv_bytes_per_token(model, "bf16") == KV_BYTES[name]
    assert kv_bytes_per_token(model, "fp8") == kv_bytes_per_token(model, "int8") == KV_BYTES[name] // 2


def test_kv_heads_divide_and_are_copied_beyond_their_number():
    model = find_model("llama-3.1-70b")
    whole = kv_bytes_per_token(model, "bf16")
    assert [whole // kv_bytes_per_token(model, "bf16", tp) for tp in (1, 2, 4, 8, 16)] == [1, 2, 4, 8, 8]


def test_latent_kv_is_on_every_rank():
    model = find_model("deepseek-v3")
    assert len({kv_bytes_per_token(model, "bf16", tp) for tp in (1, 2, 8, 16)}) == 1


def test_weight_bytes_by_dtype():
    model = find_model("llama-3.1-8b")
    wide = 2 * 128256 * 4096 + 65 * 4096  # embeddings, head and norms keep 16 bits
    layers = EXACT["llama-3.1-8b"] - wide
    assert weight_bytes(model, "bf16") == weight_bytes(model, "fp16") == 2 * EXACT["llama-3.1-8b"]
    assert weight_bytes(model, "fp8") == weight_bytes(model, "int8") == layers + 2 * wide
    assert weight_bytes(model, "fp4") == layers * 9 // 16 + 2 * wide


@pytest.mark.parametrize("name", MODELS)
def test_weights_divide_among_ranks(name):
    """What is replicated (norms, MLA down-projections, routers) stays below 2 % of a rank at tp 4."""
    model = find_model(name)
    share = 4 * weight_bytes(model, "bf16", 4) / weight_bytes(model, "bf16")
    assert 1.0 <= share < 1.02


@pytest.mark.parametrize("name", MODELS)
def test_descriptions_are_one_line(name):
    assert "\n" not in find_model(name).description


@pytest.mark.parametrize(("typed", "nearest"), [("llama-8b", "llama-3.1-8b"), ("Qwen3-8B", "qwen3-8b")])
def test_an_unknown_name_names_the_nearest(typed, nearest):
    with pytest.raises(UsageError, match=f"unknown model '{typed}'.*'{nearest}'"):
        find_model(typed)


def test_tp_must_divide_heads():
    assert [tp for tp in (1, 2, 3, 4, 8) if divides(find_model("qwen2.5-7b"), tp)] == [1, 2, 4]
    with pytest.raises(UsageError, match=r"tp 8 does not divide qwen2.5-7b \(28 .*try tp 1, 2, 4"):
        Deployment(find_device("h100"), find_model("qwen2.5-7b"), tp=8)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("dtype", "fp6", "dtype 'fp6' is not known; try one of bf16"),
        ("kv_dtype", "fp4", "kv_dtype 'fp4' is not known"),
        ("tp", 0, "tp 0 does not divide"),
        ("block_tokens", 0, "block_tokens must be at least 1"),
    ],
)
def test_impossible_deployments(field, value, text):
    with pytest.raises(UsageError, match=text):
        Deployment(find_device("h100"), find_model("qwen3-8b"), **{field: value})
