"""What is put on which device: the combination that the cost tables and the memory budget are made for."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from .devices import Device
from .kv_format import PLAIN, KvFormat
from .models import KV_BYTES, WEIGHT_BYTES, Model, divides


@dataclass(frozen=True)
class Deployment:
    """One model on a tensor-parallel group of equal devices. UsageError for a combination no engine takes."""

    device: Device
    model: Model
    dtype: str = "bf16"
    """Of weights and matrix products, a key of WEIGHT_BYTES."""
    kv_dtype: str = "bf16"
    """A key of KV_BYTES."""
    tp: int = 1
    ep: int = 1
    """Devices that routed experts are spread over, each expert whole on one of them; 1: they divide as all else."""
    redundant: int = 0
    """Replicas of experts beyond one each, in every layer, on all ep devices together."""
    block_tokens: int = 16
    max_model_len: int = 0
    """Longest prompt plus output; 0: what the model declares."""
    kv: KvFormat = PLAIN
    """Scales, wide layers and way to compute of a quantised cache."""

    def __post_init__(self) -> None:
        for name, known in (("dtype", WEIGHT_BYTES), ("kv_dtype", KV_BYTES)):
            value = getattr(self, name)
            if value not in known:
                raise UsageError(f"{name} {value!r} is not known; try one of {', '.join(known)}")
        if self.block_tokens < 1:
            raise UsageError(f"block_tokens must be at least 1, is {self.block_tokens}")
        held = self.model.moe.num_experts + self.redundant if self.model.moe is not None else 0
        if self.ep > 1 and (held == 0 or held % self.ep):
            raise UsageError(
                f"{held} experts of {self.model.name} ({self.redundant} of them redundant) do not divide among "
                f"ep {self.ep} devices; change ep or eplb.redundant"
            )
        if self.tp < 1 or not divides(self.model, self.tp):
            raise UsageError(_why_not(self.model, self.tp))

    @property
    def length(self) -> int:
        """The longest sequence in tokens."""
        return self.max_model_len or self.model.max_positions


def _why_not(model: Model, tp: int) -> str:
    valid = ", ".join(str(n) for n in (1, 2, 4, 8, 16, 32) if divides(model, n))
    return (
        f"tp {tp} does not divide {model.name} ({model.num_heads} attention heads, {model.num_kv_heads} KV "
        f"heads, MLP width {model.mlp_width}); try tp {valid}"
    )
