"""How KV is stored: bytes of a token with its scales, layers that stay wide, and how attention computes with it.

Scales are 16-bit numbers beside the tokens (token-head, group*: symmetric, one for K and one for V) or 32-bit ones per
tensor or head that belong to the layer. Skipped layers stay at 16 bits.

Three ways to compute, of a decode step that reads n tokens with r times the bytes of 16 bits:

storage   dequantise into a workspace, then attend: reads r, writes and reads again 1 each; the workspace holds one
          layer of the longest sequence
fused     dequantise inside the kernel: r / FUSED_EFFICIENCY
native    products in the KV's own type: r; devices with units for it

Each also launches one kernel more per layer, which quantises what is written. In kind: vLLM's fp8 KV of an 8B model on
an H100 has a slope of 54 % of bf16 over the context and breaks even at about 7,000 tokens; .5 / .93 is 54 %, and 32
launches of 5.2 us are what 7,400 tokens save.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from ..core.keys import Key
from .models import KV_BYTES, WIDE_BYTES, Model, kv_elements_per_layer

FUSED_EFFICIENCY = 0.93

SCALES = ("auto", "none", "tensor", "head", "token-head", "group32", "group64", "group128")
WAYS = ("auto", "storage", "fused", "native")
_AUTO = {"int8": "token-head", "int4": "group32"}
_TOKEN_SCALE_BYTES, _LAYER_SCALE_BYTES = 2, 4

KV_KEYS: tuple[Key, ...] = (
    Key(
        "kv.scales",
        "choice",
        "auto",
        "",
        "of a quantised cache, one per; auto = tensor (fp8), token-head (int8), group32 (int4)",
        SCALES,
    ),
    Key("kv.skip_first", "int", 0, "layers", "first layers that stay at 16 bits", low=0),
    Key("kv.skip_last", "int", 0, "layers", "last layers that stay at 16 bits", low=0),
    Key(
        "kv.compute",
        "choice",
        "auto",
        "",
        "storage: dequantise first; fused: in the kernel; native: products in the type; auto = fused",
        WAYS,
    ),
)


@dataclass(frozen=True)
class KvFormat:
    """Values of KV_KEYS; each field is the key `kv.<field>`."""

    scales: str = "auto"
    skip_first: int = 0
    skip_last: int = 0
    compute: str = "auto"

    def scales_of(self, kv_dtype: str) -> str:
        if self.scales != "auto" or not is_quantised(kv_dtype):
            return self.scales if is_quantised(kv_dtype) else "none"
        return _AUTO.get(kv_dtype, "tensor")

    def wide_layers(self, model: Model) -> int:
        """Layers at 16 bits."""
        return min(self.skip_first + self.skip_last, model.num_layers)


PLAIN = KvFormat()


def is_quantised(kv_dtype: str) -> bool:
    return KV_BYTES[kv_dtype] < WIDE_BYTES


def token_bytes(model: Model, kv_dtype: str, tp: int = 1, kv: KvFormat = PLAIN) -> int:
    """KV bytes of a token on one rank, all layers, scales included; rounded up."""
    elements = kv_elements_per_layer(model, tp)
    if not is_quantised(kv_dtype):
        return model.num_layers * elements * WIDE_BYTES
    scales = kv.scales_of(kv_dtype)
    width = model.head_dim if model.mla is None else model.mla.cached_width
    vectors, per_vector = -(-elements // width), 0
    if scales == "token-head":
        per_vector = 1
    elif scales.startswith("group"):
        per_vector = -(-width // int(scales.removeprefix("group")))
    wide = kv.wide_layers(model)
    narrow = elements * KV_BYTES[kv_dtype] + vectors * per_vector * _TOKEN_SCALE_BYTES
    return wide * elements * WIDE_BYTES + -int(-(model.num_layers - wide) * narrow // 1)


def layer_scale_bytes(model: Model, kv_dtype: str, tp: int = 1, kv: KvFormat = PLAIN) -> int:
    """Bytes of scales that do not grow with the tokens."""
    vectors = -(-kv_elements_per_layer(model, tp) // (model.head_dim if model.mla is None else model.mla.cached_width))
    each = {"tensor": 2, "head": vectors}.get(kv.scales_of(kv_dtype), 0)
    return (model.num_layers - kv.wide_layers(model)) * each * _LAYER_SCALE_BYTES


def workspace_bytes(model: Model, kv_dtype: str, tp: int, kv: KvFormat, length: int) -> int:
    """Of kv.compute = storage: one layer of the longest sequence at 16 bits."""
    if kv.compute != "storage" or not is_quantised(kv_dtype):
        return 0
    return length * kv_elements_per_layer(model, tp) * WIDE_BYTES


def byte_share(model: Model, kv_dtype: str, tp: int = 1, kv: KvFormat = PLAIN) -> float:
    """Of the bytes at 16 bits."""
    return token_bytes(model, kv_dtype, tp, kv) / token_bytes(model, "bf16", tp)


def slope_share(model: Model, kv_dtype: str, tp: int = 1, kv: KvFormat = PLAIN) -> float:
    """Of the time that a decode step takes per cached token at 16 bits. Skipped layers take what they took."""
    if not is_quantised(kv_dtype):
        return 1.0
    wide = kv.wide_layers(model) / model.num_layers
    if wide == 1.0:
        return 1.0
    narrow = (byte_share(model, kv_dtype, tp, kv) - wide) / (1 - wide)
    ways = {"storage": narrow + 2, "native": narrow}
    return wide + (1 - wide) * ways.get(kv.compute, narrow / FUSED_EFFICIENCY)


def check_format(kv: KvFormat, kv_dtype: str, model: Model, has_units: bool, where: str) -> None:
    """UsageError: keys of a quantised cache for one that is none, more layers skipped than there are, no such units."""
    if kv != PLAIN and not is_quantised(kv_dtype):
        raise UsageError(f"{where}: kv.* describe a quantised cache; set kv_dtype to fp8, int8 or int4")
    if kv.skip_first + kv.skip_last > model.num_layers:
        raise UsageError(f"{where}: kv.skip_first + kv.skip_last is more than the {model.num_layers} layers")
    if kv.compute == "native" and (kv_dtype == "int4" or not has_units):
        raise UsageError(f"{where}: kv.compute = native needs units for {kv_dtype}; take fused")
