"""Sizes by name and config.json files: what is read, and the one line where it is not."""

from __future__ import annotations

import json

import pytest

from kvbench.core.errors import UsageError
from kvbench.model.config import SIZES, ModelConfig, from_folder, named

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 256, "vocab_size": 300, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5, "rope_theta": 5e5,
}  # fmt: skip


def read(tmp_path, values) -> ModelConfig:
    (tmp_path / "config.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return from_folder(tmp_path)


def test_sizes_by_name():
    assert [round(named(size).parameters / 1e6) for size in ("nano", "tiny", "small")] == [5, 39, 150]
    assert all(c.heads % c.kv_heads == 0 and c.hidden % 16 == 0 for c in SIZES.values())
    with pytest.raises(UsageError, match="unknown model size 'tinny'; the nearest is 'tiny'"):
        named("tinny")


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({}, "rope_theta", 5e5),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, "rope_theta", 7.0),
        ({"num_key_value_heads": None}, "kv_heads", 2),
        ({"head_dim": 128}, "head_dim", 128),
        ({"tie_word_embeddings": True}, "tied_embeddings", True),
        ({"model_type": "qwen2"}, "qkv_bias", True),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64}, "window", 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "window", 8),
        ({"model_type": "qwen3"}, "head_dim", 128),
        ({"model_type": "qwen3", "head_dim": 64}, "qk_norm", True),
        ({"model_type": "mistral", "sliding_window": 64}, "window", 64),
        ({"model_type": "mistral", "sliding_window": None}, "window", 0),
    ],
)  # fmt: skip
def test_what_a_file_says(tmp_path, change, field, value):
    assert getattr(read(tmp_path, LLAMA | change), field) == value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mixtral"}, "'model_type': 'mixtral' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "the scaling 'llama3' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "the scaling 'linear' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "the scaling 'yarn' is not supported"),
        ({"rope_parameters": [1]}, "'rope_parameters': expected an object"),
        ({"rope_theta": -1}, "'rope_theta': must be a positive number"),
        ({"attention_bias": True}, "'attention_bias': biases are supported for"),
        ({"mlp_bias": True}, "'mlp_bias': biases are supported for"),
        ({"hidden_act": "gelu"}, "'hidden_act': 'gelu' is not supported"),
        ({"head_dim": 48}, "'head_dim': 48 has no kernel"),
        ({"num_attention_heads": 3, "head_dim": 64, "num_key_value_heads": 2}, "2 must divide 3 heads"),
        ({"intermediate_size": 250}, "'intermediate_size': 250 must be a multiple of 16"),
        ({"vocab_size": None}, "'vocab_size': is missing"),
        ({"vocab_size": 1.5}, "'vocab_size': must be a whole number"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not supported"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "windows in some"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "in some"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_one_line(tmp_path, change, words):
    with pytest.raises(UsageError, match=words) as error:
        read(tmp_path, LLAMA | change)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "words"), [("{", "not a readable JSON file"), ("[]", "expected a JSON object")])
def test_a_broken_file(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        read(tmp_path, text)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"has no config\.json"):
        from_folder(tmp_path)
