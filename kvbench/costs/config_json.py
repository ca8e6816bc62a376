"""Read a Hugging Face `config.json` into a Model: llama, qwen, mistral, mixtral, deepseek and their like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .models import Mla, Model, Moe

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "deepseek_v2", "deepseek_v3")


class _Fields:
    """The fields of one config file; errors name the file and the field."""

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values

    def need(self, name: str) -> int:
        """A field without which the model has no size."""
        if self.values.get(name) is None:
            raise UsageError(f"{self.path}: the field {name!r} is missing; is this the model's config.json?")
        return self.get(name, 0, low=1)

    def get(self, name: str, default: int, low: int = 0) -> int:
        """A field that has a meaning when it is absent or null."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise UsageError(f"{self.path}: {name!r} must be a whole number from {low} on, is {value!r}")
        return value

    def flag(self, name: str) -> bool:
        return bool(self.values.get(name, False))


def read_config_json(path: str) -> Model:
    """The model that a config.json (or a folder that holds one) describes. Raises UsageError of one line."""
    fields = _Fields(path, _load(path))
    heads = fields.need("num_attention_heads")
    hidden = fields.need("hidden_size")
    kind = str(fields.values.get("model_type", ""))
    window = _window(fields)
    return Model(
        name=_name(path),
        title=f"{_name(path)} ({kind or 'config.json'})",
        num_layers=fields.need("num_hidden_layers"),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads", heads, low=1),
        head_dim=fields.get("head_dim", hidden // heads, low=1),
        mlp_width=fields.need("intermediate_size"),
        vocab=fields.need("vocab_size"),
        max_positions=fields.need("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=fields.flag("attention_bias") or kind.startswith("qwen2"),
        qk_norm=kind.startswith("qwen3"),
        mla=_mla(fields),
        moe=_moe(fields),
        sliding_window=window,
        notes=_notes(kind, window),
    )


def _load(path: str) -> dict[str, Any]:
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"model {path!r}: no such file; give a built-in name or a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"model {path!r} is not a readable JSON file: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"model {path!r}: expected a JSON object")
    text = values.get("text_config")
    return text if isinstance(text, dict) else values


def _name(path: str) -> str:
    file = Path(path)
    if file.name == "config.json":
        return file.resolve().parent.name
    return file.stem if file.suffix == ".json" else file.resolve().name


def _window(fields: _Fields) -> int:
    """The sliding window, 0 where the model has none or (Qwen) declares but does not use it."""
    if fields.values.get("use_sliding_window") is False:
        return 0
    return fields.get("sliding_window", 0)


def _mla(fields: _Fields) -> Mla | None:
    if fields.values.get("kv_lora_rank") is None:
        return None
    return Mla(
        q_lora_rank=fields.get("q_lora_rank", 0),
        kv_lora_rank=fields.need("kv_lora_rank"),
        rope_head_dim=fields.need("qk_rope_head_dim"),
        nope_head_dim=fields.need("qk_nope_head_dim"),
        v_head_dim=fields.need("v_head_dim"),
    )


def _moe(fields: _Fields) -> Moe | None:
    experts = next((fields.get(name, 0) for name in _EXPERTS if fields.values.get(name)), 0)
    if experts <= 1:
        return None
    if max(fields.get("moe_layer_freq", 1), fields.get("decoder_sparse_step", 1)) > 1:
        raise UsageError(f"{fields.path}: models with experts in every n-th layer only are not supported")
    width = fields.get("moe_intermediate_size", fields.need("intermediate_size"))
    shared = fields.get("shared_expert_intermediate_size", fields.get("n_shared_experts", 0) * width)
    per_token = fields.need("num_experts_per_tok")
    if not 1 <= per_token <= experts:
        raise UsageError(f"{fields.path}: 'num_experts_per_tok' must lie in 1..{experts}, is {per_token}")
    groups = fields.get("n_group", 1, low=1)
    limit = fields.get("topk_group", 1, low=1)
    return Moe(experts, per_token, width, shared, fields.get("first_k_dense_replace", 0), groups, limit)


def _notes(kind: str, window: int) -> tuple[str, ...]:
    notes = []
    if kind.removesuffix("_moe") not in _KNOWN:
        notes.append(f"model type {kind or 'not given'}: taken as full attention and gated MLPs")
    if window:
        notes.append(f"the sliding window of {window} tokens is ignored: KV and attention cover the context")
    return tuple(notes)
