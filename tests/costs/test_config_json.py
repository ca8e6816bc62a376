import json
from dataclasses import replace

import pytest

from kvbench.core.errors import UsageError
from kvbench.costs.models import active_parameters, kv_bytes_per_token, total_parameters
from kvbench.costs.named import find_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN3 = LLAMA | {
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "num_attention_heads": 64,
    "num_hidden_layers": 64,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN25 = LLAMA | {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "max_position_embeddings": 32768,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.fixture
def read(tmp_path):
    def read(values, name="config.json"):
        path = tmp_path / "some-model" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values))
        return find_model(str(path))

    return read


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (QWEN3, "qwen3-32b"),
        (QWEN25, "qwen2.5-7b"),
        (DEEPSEEK, "deepseek-v3"),
    ],
)
def test_a_config_gives_the_built_in_architecture(read, values, name):
    built_in = find_model(name)
    same = {"name": built_in.name, "title": built_in.title, "notes": built_in.notes}
    if built_in.mla is not None:
        same["head_dim"] = built_in.head_dim  # not used by latent attention
    assert replace(read(values), **same) == built_in


def test_mixtral(read):
    model = read(MIXTRAL)
    assert total_parameters(model) == 46_702_792_704
    assert active_parameters(model) == pytest.approx(12.9e9, rel=0.02)
    assert model.name == "some-model"


def test_qwen3_moe(read):
    model = read(QWEN3_MOE)
    assert total_parameters(model) == 30_532_122_624
    assert active_parameters(model) == pytest.approx(3.3e9, rel=0.1)


def test_heads_without_groups_are_multi_head_attention(read):
    values = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert kv_bytes_per_token(read(values), "bf16") == 32 * 2 * 4096 * 2


def test_tied_embeddings_count_once(read):
    assert total_parameters(read(LLAMA)) - total_parameters(read(LLAMA | {"tie_word_embeddings": True})) == (
        128256 * 4096
    )


def test_the_text_part_of_a_multimodal_config_is_read(read):
    assert read({"model_type": "x", "text_config": LLAMA}) == read(LLAMA)


def test_a_folder_and_a_bare_file_name(read, tmp_path, monkeypatch):
    model = read(LLAMA)
    assert find_model(str(tmp_path / "some-model")) == model
    monkeypatch.chdir(tmp_path / "some-model")
    assert find_model("config.json") == model


def test_what_is_left_out_is_noted(read):
    assert read(LLAMA).notes == ()
    window = read(LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    assert window.sliding_window == 4096
    assert "sliding window of 4096" in window.notes[0]
    assert "model type mamba" in read(LLAMA | {"model_type": "mamba"}).notes[0]


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(read, field):
    values = {k: v for k, v in LLAMA.items() if k != field}
    with pytest.raises(UsageError, match=f"config.json: the field '{field}' is missing") as caught:
        read(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (DEEPSEEK | {"qk_rope_head_dim": None}, "the field 'qk_rope_head_dim' is missing"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "'num_experts_per_tok' must lie in 1..8, is 9"),
        (LLAMA | {"hidden_size": "big"}, "'hidden_size' must be a whole number"),
        (LLAMA | {"num_key_value_heads": 0}, "'num_key_value_heads' must be a whole number from 1 on"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "every n-th layer only are not supported"),
        ([1, 2], "expected a JSON object"),
    ],
)
def test_wrong_values_are_one_line(read, values, text):
    with pytest.raises(UsageError, match=text):
        read(values)


def test_files_that_are_not_there_or_not_json(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        find_model(str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match="not a readable JSON file"):
        find_model(str(tmp_path / "broken.json"))
