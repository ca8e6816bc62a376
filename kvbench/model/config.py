"""The shape of a model: built-in sizes, or the config.json of a Hugging Face folder.

One block serves four architectures: RMSNorm, attention with rotary positions and grouped KV heads, RMSNorm, gated
MLP. They differ in three switches (biases of q, k and v; a norm of each query and key head; a sliding window).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..kernels.layout import HEAD_DIMS

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")

WIDTH_UNIT = 16
"""Widths are whole vectors of the widest CPU, so that no kernel has a remainder."""


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape. Widths count elements; `kv_heads` divides `heads`."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-5
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    window: int = 0
    """Tokens that a position sees, itself included; 0: all."""
    max_positions: int = 4096

    @property
    def parameters(self) -> int:
        """Every weight of the model."""
        return sum(_size(shape) for shape in self.weight_shapes().values())

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each tensor, as Hugging Face names it, and its shape: (outputs, inputs) for a matrix."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        widths = {
            "q": self.heads * self.head_dim,
            "k": self.kv_heads * self.head_dim,
            "v": self.kv_heads * self.head_dim,
        }
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (self.hidden,)}
        for name, width in widths.items():
            shapes[f"self_attn.{name}_proj.weight"] = (width, self.hidden)
            if self.qkv_bias:
                shapes[f"self_attn.{name}_proj.bias"] = (width,)
        if self.qk_norm:
            shapes |= {"self_attn.q_norm.weight": (self.head_dim,), "self_attn.k_norm.weight": (self.head_dim,)}
        return shapes | {
            "self_attn.o_proj.weight": (self.hidden, widths["q"]),
            "post_attention_layernorm.weight": (self.hidden,),
            "mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "mlp.up_proj.weight": (self.intermediate, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.intermediate),
        }


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


SIZES = {
    "nano": ModelConfig("llama", 4, 256, 4, 2, 64, 704, 4096),
    "tiny": ModelConfig("llama", 8, 512, 8, 2, 64, 1408, 16_000),
    "small": ModelConfig("llama", 16, 768, 12, 4, 64, 2048, 32_000),
}
"""5, 39 and 150 million parameters."""


def named(size: str) -> ModelConfig:
    """A built-in size. Raises UsageError for any other name."""
    if size in SIZES:
        return SIZES[size]
    nearest = difflib.get_close_matches(size, SIZES, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"unknown model size {size!r}; the nearest is {nearest!r} (there are {', '.join(SIZES)}; "
        "a folder with a config.json works too)"
    )


def from_folder(path: str | Path) -> ModelConfig:
    """The model that `path`/config.json describes. Raises UsageError where it cannot be read or is not supported."""
    file = Path(path) / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"model {str(path)!r} has no config.json; give a Hugging Face folder or a built-in size"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{file} is not a readable JSON file: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected a JSON object")
    return _Reader(str(file), values).config()


class _Reader:
    """One config.json; every error names the file and the field."""

    def __init__(self, file: str, values: dict[str, Any]) -> None:
        self.file, self.values = file, values

    def config(self) -> ModelConfig:
        kind = self._architecture()
        self._refuse_the_unsupported(kind)
        hidden, heads = self._whole("hidden_size"), self._whole("num_attention_heads")
        config = ModelConfig(
            architecture=kind,
            layers=self._whole("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=self._whole("num_key_value_heads", heads),
            head_dim=self._whole("head_dim", 128 if kind == "qwen3" else hidden // heads),
            intermediate=self._whole("intermediate_size"),
            vocab=self._whole("vocab_size"),
            rope_theta=self._rope_theta(),
            rms_eps=self._positive("rms_norm_eps", 1e-6),
            tied_embeddings=bool(self.values.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            window=self._window(kind),
            max_positions=self._whole("max_position_embeddings"),
        )
        if config.heads % config.kv_heads:
            raise self._error("num_key_value_heads", f"{config.kv_heads} must divide {config.heads} heads")
        if config.head_dim not in HEAD_DIMS:
            raise self._error(
                "head_dim", f"{config.head_dim} has no kernel; there are {', '.join(map(str, HEAD_DIMS))}"
            )
        for field, width in (("hidden_size", config.hidden), ("intermediate_size", config.intermediate)):
            if width % WIDTH_UNIT:
                raise self._error(field, f"{width} must be a multiple of {WIDTH_UNIT}")
        return config

    def _error(self, field: str, text: str) -> UsageError:
        return UsageError(f"{self.file}: {field!r}: {text}")

    def _architecture(self) -> str:
        kind = self.values.get("model_type")
        if kind not in ARCHITECTURES:
            raise self._error("model_type", f"{kind!r} is not supported; there are {', '.join(ARCHITECTURES)}")
        return str(kind)

    def _refuse_the_unsupported(self, kind: str) -> None:
        if self.values.get("hidden_act", "silu") != "silu":
            raise self._error("hidden_act", f"{self.values['hidden_act']!r} is not supported; only silu is")
        for field in ("attention_bias", "mlp_bias") if kind != "qwen2" else ("mlp_bias",):
            if self.values.get(field):
                raise self._error(field, "biases are supported for q, k and v of qwen2 only")
        if self.values.get("quantization_config"):
            raise self._error("quantization_config", "quantised weights are not supported; take the model in bf16")

    def _rope(self) -> dict[str, Any]:
        """Fields of rotary positions: newer files gather them, older ones have a scaling beside the base."""
        for field in ("rope_parameters", "rope_scaling"):
            values = self.values.get(field) or {}
            if not isinstance(values, dict):
                raise self._error(field, "expected an object")
            scaling = values.get("rope_type", values.get("type", "default"))
            if scaling != "default":
                raise self._error(field, f"the scaling {scaling!r} is not supported; only plain rotary positions are")
            if float(values.get("partial_rotary_factor", 1)) != 1:
                raise self._error(field, "rotary positions of a part of each head are not supported")
        return self.values.get("rope_parameters") or {}

    def _rope_theta(self) -> float:
        gathered = self._rope().get("rope_theta")
        return self._positive("rope_theta", 10_000.0) if gathered is None else float(gathered)

    def _window(self, kind: str) -> int:
        """The sliding window. Qwen files declare one that counts only where `use_sliding_window` is set."""
        kinds = set(self.values.get("layer_types") or ())
        if len(kinds) > 1:
            raise self._error("layer_types", "windows in some layers only are not supported")
        if (
            kind == "llama"
            or kinds == {"full_attention"}
            or not self.values.get("use_sliding_window", kind == "mistral")
        ):
            return 0
        if kind.startswith("qwen") and not kinds and self.values.get("max_window_layers"):
            raise self._error("max_window_layers", "windows in some layers only are not supported")
        return 0 if self.values.get("sliding_window") is None else self._whole("sliding_window")

    def _whole(self, field: str, default: int | None = None) -> int:
        value = self.values.get(field)
        value = default if value is None else value
        if value is None:
            raise self._error(field, "is missing; is this the model's config.json?")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(field, f"must be a whole number from 1 on, is {value!r}")
        return value

    def _positive(self, field: str, default: float) -> float:
        value = self.values.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._error(field, f"must be a positive number, is {value!r}")
        return float(value)
