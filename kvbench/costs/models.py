"""Models as exact architectures: parameters, weight bytes and KV bytes, whole or per tensor-parallel rank.

Everything is derived from one list, `matmuls`: the weights a token passes, with their shapes on one rank.
The roofline prices the same list. What must hold: at tp 1 the list, the embeddings, norms and biases add
up to the published parameter count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.errors import UsageError

WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "fp4": 0.5625}
"""Bytes per quantised weight. fp4 is NVFP4: half a byte and an fp8 scale for every 16 weights. The scales of
fp8 and int8 (one per channel or per 128 x 128 block: below 0.1 %) are not counted."""

KV_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int4": 0.5}
"""Bytes per cached element, without scales (kv_format). fp8 is fp8_e4m3."""

WIDE_BYTES = 2
"""Embeddings, head, norms, biases and routers stay at 16 bits in a quantised model."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: one latent vector and one rotary key are cached for all heads."""

    q_lora_rank: int
    """0: queries are projected directly."""
    kv_lora_rank: int
    rope_head_dim: int
    nope_head_dim: int
    v_head_dim: int

    @property
    def cached_width(self) -> int:
        return self.kv_lora_rank + self.rope_head_dim


@dataclass(frozen=True)
class Moe:
    """Routed experts, and what every token passes beside them."""

    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int = 0
    """Summed width of the shared experts."""
    dense_layers: int = 0
    """Leading layers with an ordinary MLP."""
    groups: int = 1
    """Of experts; a token uses those of group_limit groups alone. 1: no groups."""
    group_limit: int = 1


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer with gated MLPs and full attention."""

    name: str
    title: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    max_positions: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    mla: Mla | None = None
    moe: Moe | None = None
    sliding_window: int = 0
    """0: none. Kept for the note; KV and attention are those of full attention."""
    notes: tuple[str, ...] = ()
    """One line each on what the figures leave out for this model."""

    @property
    def description(self) -> str:
        """One line for a list."""
        total, active = total_parameters(self) / 1e9, active_parameters(self) / 1e9
        size = f"{total:.2f}B parameters" if self.moe is None else f"{total:.0f}B, {active:.0f}B active"
        kv = kv_bytes_per_token(self, "bf16") / 1024
        return f"{self.title}: {size}, {kv:.1f} KiB of bf16 KV per token, context {self.max_positions}"


@dataclass(frozen=True)
class Matmul:
    """A weight of (inputs, outputs) on one rank, in `layers` layers; with experts, that many of them."""

    name: str
    inputs: int
    outputs: int
    layers: int
    experts: int = 1
    experts_per_token: int = 1
    wide: bool = False
    """Stays at 16 bits in a quantised model."""

    @property
    def weights(self) -> int:
        """Weights of all layers on this rank."""
        return self.inputs * self.outputs * self.experts * self.layers


_HUB_WORDS = re.compile(r"^meta-|-(instruct|thinking|base|chat|hf|fp8|v\d+\.\d+|\d{4})\b")


def find_hub_model(hub_name: str) -> Model:
    """The built-in model that a hub's name means: meta-llama/Meta-Llama-3.1-8B-Instruct is llama-3.1-8b."""
    short = _HUB_WORDS.sub("", hub_name.lower().rpartition("/")[2])
    if short in MODELS:
        return MODELS[short]
    raise UsageError(f"model {hub_name!r} is none of the built-in ones ({', '.join(MODELS)}); name it with --model")


def divides(model: Model, tp: int) -> bool:
    """Whether heads, KV heads and MLP widths divide among tp ranks as the engines need it."""
    widths = [model.num_heads]
    if model.moe is None or model.moe.dense_layers:
        widths.append(model.mlp_width)
    if model.moe is not None:
        widths += [model.moe.expert_width, model.moe.shared_width]
    kv_fits = model.mla is not None or model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0
    return kv_fits and all(width % tp == 0 for width in widths)


def kv_heads_per_rank(model: Model, tp: int) -> int:
    """KV heads divide; with more ranks than heads each rank holds a copy of one."""
    return max(1, model.num_kv_heads // tp)


def matmuls(model: Model, tp: int = 1, ep: int = 1, redundant: int = 0) -> tuple[Matmul, ...]:
    """The weights of the layers on one rank, in the order a token passes them; the head is apart.

    ep  ranks that experts are spread over, each of them whole on its rank; redundant: replicas beyond one an expert
    """
    return _attention(model, tp) + _mlp(model, tp, ep, redundant)


def expert_matmuls(model: Model, tp: int = 1, ep: int = 1, redundant: int = 0) -> tuple[Matmul, ...]:
    """Those of them that are routed experts."""
    return tuple(m for m in matmuls(model, tp, ep, redundant) if m.name.startswith("expert_"))


def _attention(model: Model, tp: int) -> tuple[Matmul, ...]:
    heads, layers, hidden = model.num_heads // tp, model.num_layers, model.hidden
    if model.mla is None:
        outputs = (heads + 2 * kv_heads_per_rank(model, tp)) * model.head_dim
        return (
            Matmul("qkv", hidden, outputs, layers),
            Matmul("o", heads * model.head_dim, hidden, layers),
        )
    mla = model.mla
    query = heads * (mla.nope_head_dim + mla.rope_head_dim)
    # The down-projections are small and every rank has them whole: the latent KV is replicated.
    if mla.q_lora_rank:
        down = Matmul("qkv_a", hidden, mla.q_lora_rank + mla.cached_width, layers)
        queries: tuple[Matmul, ...] = (down, Matmul("q_b", mla.q_lora_rank, query, layers))
    else:
        queries = (Matmul("kv_a", hidden, mla.cached_width, layers), Matmul("q", hidden, query, layers))
    return (
        *queries,
        # At decode the engines absorb kv_b into queries and outputs: the same weights and products.
        Matmul("kv_b", mla.kv_lora_rank, heads * (mla.nope_head_dim + mla.v_head_dim), layers),
        Matmul("o", heads * mla.v_head_dim, hidden, layers),
    )


def _mlp(model: Model, tp: int, ep: int, redundant: int) -> tuple[Matmul, ...]:
    moe, hidden = model.moe, model.hidden
    dense = model.num_layers if moe is None else moe.dense_layers
    out = _gated("", hidden, model.mlp_width // tp, dense) if dense else ()
    if moe is None:
        return out
    sparse = model.num_layers - moe.dense_layers
    out += (Matmul("router", hidden, moe.num_experts, sparse, wide=True),)
    if moe.shared_width:
        out += _gated("shared_", hidden, moe.shared_width // tp, sparse)
    if ep > 1:
        held = (moe.num_experts + redundant) // ep
        return out + _gated("expert_", hidden, moe.expert_width, sparse, held, moe.experts_per_token)
    return out + _gated("expert_", hidden, moe.expert_width // tp, sparse, moe.num_experts, moe.experts_per_token)


def _gated(
    prefix: str, hidden: int, width: int, layers: int, experts: int = 1, experts_per_token: int = 1
) -> tuple[Matmul, ...]:
    return (
        Matmul(f"{prefix}gate_up", hidden, 2 * width, layers, experts, experts_per_token),
        Matmul(f"{prefix}down", width, hidden, layers, experts, experts_per_token),
    )


def head(model: Model, tp: int = 1) -> Matmul:
    """The output head on one rank: computed for sequences, not for tokens."""
    return Matmul("lm_head", model.hidden, -(-model.vocab // tp), 1, wide=True)


def _vectors(model: Model, tp: int) -> int:
    """Norms and biases on one rank."""
    per_layer = 2 * model.hidden
    if model.qk_norm:
        per_layer += 2 * model.head_dim
    if model.qkv_bias:
        per_layer += (model.num_heads // tp + 2 * kv_heads_per_rank(model, tp)) * model.head_dim
    if model.mla is not None:
        per_layer += model.mla.q_lora_rank + model.mla.kv_lora_rank
    return per_layer * model.num_layers + model.hidden


def _embedding_copies(model: Model) -> int:
    return 1 if model.tied_embeddings else 2


def total_parameters(model: Model) -> int:
    """Every weight of the model."""
    layers = sum(m.weights for m in matmuls(model))
    return layers + _embedding_copies(model) * head(model).weights + _vectors(model, 1)


def active_parameters(model: Model) -> int:
    """Weights that one token is multiplied with: its own experts; no embedding table, that is a look-up."""
    used = sum(m.weights // m.experts * m.experts_per_token for m in matmuls(model))
    return used + head(model).weights + _vectors(model, 1)


def weight_bytes(model: Model, dtype: str, tp: int = 1, ep: int = 1, redundant: int = 0) -> int:
    """Bytes of the weights on one rank; see WEIGHT_BYTES and WIDE_BYTES for what is quantised, matmuls for ep."""
    layers = sum(m.weights * matmul_bytes(m, dtype) for m in matmuls(model, tp, ep, redundant))
    wide = _embedding_copies(model) * head(model, tp).weights + _vectors(model, tp)
    return int(layers) + wide * WIDE_BYTES


def matmul_bytes(matmul: Matmul, dtype: str) -> float:
    """Bytes per weight of this matrix in a model of this dtype."""
    return WIDE_BYTES if matmul.wide else WEIGHT_BYTES[dtype]


def kv_elements_per_layer(model: Model, tp: int = 1) -> int:
    """Cached elements per token and layer on one rank. MLA: the latent and the rotary key, on every rank."""
    if model.mla is not None:
        return model.mla.cached_width
    return 2 * kv_heads_per_rank(model, tp) * model.head_dim


def kv_bytes_per_token(model: Model, kv_dtype: str, tp: int = 1) -> int:
    """KV bytes per token on one rank, all layers, without scales."""
    return int(model.num_layers * kv_elements_per_layer(model, tp) * KV_BYTES[kv_dtype])


_BUILT_IN = (
    Model("llama-3.1-8b", "Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
    Model("llama-3.1-70b", "Llama 3.1 70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    Model("qwen2.5-7b", "Qwen2.5 7B", 28, 3584, 28, 4, 128, 18944, 152064, 131072, qkv_bias=True),
    Model("qwen3-8b", "Qwen3 8B", 36, 4096, 32, 8, 128, 12288, 151936, 40960, qk_norm=True),
    Model("qwen3-32b", "Qwen3 32B", 64, 5120, 64, 8, 128, 25600, 151936, 40960, qk_norm=True),
    Model("mistral-7b", "Mistral 7B v0.3", 32, 4096, 32, 8, 128, 14336, 32768, 32768),
    Model(
        "olmoe-1b-7b", "OLMoE 1B-7B", 16, 2048, 16, 16, 128, 1024, 50304, 4096, qk_norm=True,
        moe=Moe(num_experts=64, experts_per_token=8, expert_width=1024),
    ),
    Model(
        "qwen3-30b-a3b", "Qwen3 30B-A3B", 48, 2048, 32, 4, 128, 6144, 151936, 40960, qk_norm=True,
        moe=Moe(num_experts=128, experts_per_token=8, expert_width=768),
    ),
    Model(
        "qwen3-235b-a22b", "Qwen3 235B-A22B", 94, 4096, 64, 4, 128, 12288, 151936, 40960, qk_norm=True,
        moe=Moe(num_experts=128, experts_per_token=8, expert_width=1536),
    ),
    Model(
        "kimi-k2", "Kimi K2", 61, 7168, 64, 64, 128, 18432, 163840, 131072,
        mla=Mla(q_lora_rank=1536, kv_lora_rank=512, rope_head_dim=64, nope_head_dim=128, v_head_dim=128),
        moe=Moe(num_experts=384, experts_per_token=8, expert_width=2048, shared_width=2048, dense_layers=1),
    ),
    Model(
        "deepseek-v3", "DeepSeek V3", 61, 7168, 128, 128, 128, 18432, 129280, 163840,
        mla=Mla(q_lora_rank=1536, kv_lora_rank=512, rope_head_dim=64, nope_head_dim=128, v_head_dim=128),
        moe=Moe(
            num_experts=256, experts_per_token=8, expert_width=2048, shared_width=2048, dense_layers=3,
            groups=8, group_limit=4,
        ),
        notes=("the multi-token prediction module (14B) is not loaded",),
    ),
)  # fmt: skip

MODELS: dict[str, Model] = {model.name: model for model in _BUILT_IN}
