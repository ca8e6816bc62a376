"""The memory budget of one device: weights, reserve, metadata, and the KV blocks that the rest makes.

    memory * memory_utilization = weights + reserved + metadata + kv + less than one block

The reserve is an estimate: 1 GiB for the driver's context, captured graphs and workspaces (3/8 GiB more for
the collectives of tp > 1); the widest activations of a full step; the logits of every sequence once at 16
and twice at 32 bits. For Llama 3.1 8B under vLLM 0.19 on an RTX 4090 (2,048 tokens a step, 256 sequences)
it gives 2 % more blocks than the 2,588 that the engine found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.errors import UsageError
from .deployment import Deployment
from .devices import GIB
from .kv_format import layer_scale_bytes, token_bytes, workspace_bytes
from .models import WIDE_BYTES, divides, expert_matmuls, matmul_bytes, weight_bytes

_CONTEXT_BYTES = GIB
_COLLECTIVE_BYTES = 3 * GIB // 8
_LOGIT_BYTES = 2 + 4 + 4
_BLOCK_ID_BYTES = 4
_SLOT_BYTES = 8
_TRY_TP = (2, 4, 8, 16)


@dataclass(frozen=True)
class EngineLimits:
    """What the size of a step and of the memory pool depends on."""

    memory_utilization: float = 0.9
    """Share of the device memory that the engine may use."""
    max_batched_tokens: int = 8192
    max_num_seqs: int = 256
    graph_bytes: int = 0
    """Of captured graphs, beyond those that an engine captures by itself."""
    moves_experts: bool = False
    """Experts that come are put beside those that serve: as many as a device has of one layer (vLLM's buffer)."""


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes on one device.

    usable_bytes     device memory * memory_utilization
    metadata_bytes   block tables (4 bytes a block, max_num_seqs rows of the longest sequence) and the slot
                     of each token of a step (8 bytes)
    kv_bytes         num_blocks * block_bytes
    """

    usable_bytes: int
    weights_bytes: int
    reserved_bytes: int
    metadata_bytes: int
    kv_bytes: int
    block_bytes: int
    num_blocks: int


def memory_budget(deployment: Deployment, limits: EngineLimits = EngineLimits()) -> MemoryBudget:
    """The budget of each device. Raises UsageError that says what would fit when not one block does."""
    budget = _budget(deployment, limits)
    if budget.num_blocks < 1:
        raise UsageError(_does_not_fit(deployment, limits, budget))
    return budget


def _budget(deployment: Deployment, limits: EngineLimits) -> MemoryBudget:
    """As memory_budget; num_blocks is 0 where nothing is left."""
    model = deployment.model
    usable = int(deployment.device.memory_bytes * limits.memory_utilization)
    weights = weight_bytes(model, deployment.dtype, deployment.tp, deployment.ep, deployment.redundant)
    reserved = _reserved_bytes(deployment, limits)
    metadata = _metadata_bytes(deployment, limits)
    block = token_bytes(model, deployment.kv_dtype, deployment.tp, deployment.kv) * deployment.block_tokens
    num_blocks = max(0, usable - weights - reserved - metadata) // block
    return MemoryBudget(usable, weights, reserved, metadata, num_blocks * block, block, num_blocks)


def _reserved_bytes(deployment: Deployment, limits: EngineLimits) -> int:
    model, tp = deployment.model, deployment.tp
    width = model.mlp_width
    if model.moe is not None:
        width = max(width, model.moe.experts_per_token * model.moe.expert_width)
    # Gate, up and their product; the residual and the normed input beside them.
    activations = limits.max_batched_tokens * (3 * width // tp + 2 * model.hidden) * WIDE_BYTES
    logits = limits.max_num_seqs * model.vocab * _LOGIT_BYTES
    kv = layer_scale_bytes(model, deployment.kv_dtype, tp, deployment.kv)
    kv += workspace_bytes(model, deployment.kv_dtype, tp, deployment.kv, deployment.length)
    own = _CONTEXT_BYTES + (_COLLECTIVE_BYTES if tp > 1 else 0) + limits.graph_bytes
    return own + activations + logits + kv + (_staging_bytes(deployment) if limits.moves_experts else 0)


def _staging_bytes(deployment: Deployment) -> int:
    """Of one layer's experts on a device."""
    matmuls = expert_matmuls(deployment.model, deployment.tp, deployment.ep, deployment.redundant)
    return round(sum(m.inputs * m.outputs * m.experts * matmul_bytes(m, deployment.dtype) for m in matmuls))


def _metadata_bytes(deployment: Deployment, limits: EngineLimits) -> int:
    blocks = -(-deployment.length // deployment.block_tokens)
    return limits.max_num_seqs * blocks * _BLOCK_ID_BYTES + limits.max_batched_tokens * _SLOT_BYTES


def _does_not_fit(deployment: Deployment, limits: EngineLimits, budget: MemoryBudget) -> str:
    need = budget.weights_bytes + budget.reserved_bytes + budget.metadata_bytes
    return (
        f"{deployment.model.name} does not fit {deployment.device.name}: weights of "
        f"{budget.weights_bytes / GIB:.1f} GiB ({deployment.dtype}, tp {deployment.tp}{_spread(deployment)}) and "
        f"{(need - budget.weights_bytes) / GIB:.1f} GiB of reserve leave no KV block in "
        f"{budget.usable_bytes / GIB:.1f} GiB (memory_utilization {limits.memory_utilization:g}); "
        f"{_what_fits(deployment, limits)}"
    )


def _spread(deployment: Deployment) -> str:
    if deployment.ep == 1:
        return ""
    return f", ep {deployment.ep}" + (f", {deployment.redundant} redundant experts" if deployment.redundant else "")


def _what_fits(deployment: Deployment, limits: EngineLimits) -> str:
    """The smallest tp as it is, and the smallest with fp8 weights where that is smaller."""
    ways = []
    as_is = _smallest_tp(deployment, limits)
    if as_is:
        ways.append(f"tp {as_is}")
    if deployment.dtype in ("bf16", "fp16"):
        fp8 = replace(deployment, dtype="fp8")
        tp = deployment.tp if _holds_a_step(fp8, limits) else _smallest_tp(fp8, limits)
        if tp and (not as_is or tp < as_is):
            ways.append("dtype fp8" if tp == deployment.tp else f"dtype fp8 with tp {tp}")
    if not ways:
        return f"no tp up to {_TRY_TP[-1]} helps: try a device with more memory or a smaller model"
    return "try " + " or ".join(ways)


def _smallest_tp(deployment: Deployment, limits: EngineLimits) -> int:
    """The smallest larger tp with room for the KV of a full step; 0 if none of those tried has it."""
    for tp in _TRY_TP:
        larger = tp > deployment.tp and divides(deployment.model, tp)
        if larger and _holds_a_step(replace(deployment, tp=tp), limits):
            return tp
    return 0


def _holds_a_step(deployment: Deployment, limits: EngineLimits) -> bool:
    return _budget(deployment, limits).num_blocks * deployment.block_tokens >= limits.max_batched_tokens
