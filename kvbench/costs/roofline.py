"""Cost tables from a datasheet: the larger of compute time and memory time, matrix by matrix.

The closed forms are methods of `Rank`, one device of a tensor-parallel group; `roofline` samples them.
Every form takes float64 arrays (broadcast) and returns ns of the whole step on that device.

What is priced
- linear part: every weight matrix of the layers is read once per step. Of the experts those are read that
  `tokens` tokens touch under uniform routing, the expected number.
- attention of a prefill chunk: causal, KV of context and chunk read once; MLA also decompresses the context.
- attention of decode: KV and block tables read once; MLA attends in the latent space.
- tp: weights, compute and KV heads divide (MLA KV does not); two ring all-reduces per layer.
What is not: see tables.UNREAD; attention runs at the 16-bit rate for every KV type; ranks are even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.errors import UsageError
from .axes import F64, Grid, axis_points, sample_line
from .classes import fitted
from .deployment import Deployment
from .keys import DEFAULTS, CostSettings
from .kv_format import token_bytes
from .models import (
    WIDE_BYTES,
    Matmul,
    head,
    matmul_bytes,
    matmuls,
)
from .step_times import Costs, Origin, StepTimes, costs_of, shape_of

MAX_STEP_TOKENS = 1 << 17
MAX_SEQUENCES = 1 << 13
_LINE_BITS = 5
"""A kink off by at most 0.8 %."""
_SQUARE_BITS = 3
"""A square off by at most 0.4 %."""
_BLOCK_ID_BYTES = 4
_SMALL_KERNELS_PER_LAYER = 5
"""Two norms, rotary embedding with the KV write, attention, activation."""
_SMALL_KERNELS_PER_STEP = 4
"""Embedding, last norm, head, sampling."""


@dataclass(frozen=True)
class Rank:
    """One device of a group and its share of the model; rates after efficiency, per ns.

    flops_per_ns        matrix products of the model's dtype
    wide_flops_per_ns   at 16 bits: attention, head, router
    bytes_per_ns        device memory
    link_bytes_per_ns   to the other ranks, per direction
    """

    deployment: Deployment
    flops_per_ns: float
    wide_flops_per_ns: float
    bytes_per_ns: float
    link_bytes_per_ns: float
    allreduce_ns: float

    def matmul_ns(self, matmul: Matmul, tokens: F64) -> F64:
        """One weight matrix (all its layers): products against weights and activations moved."""
        products, moved = self._bounds(matmul, tokens)
        return np.maximum(products, moved)

    def _bounds(self, matmul: Matmul, tokens: F64) -> tuple[F64, F64]:
        """ns by products, ns by bytes."""
        one = matmul.inputs * matmul.outputs
        passes = tokens * matmul.experts_per_token
        moved = _experts_touched(matmul, tokens) * (one * matmul_bytes(matmul, self.deployment.dtype))
        moved = moved + passes * ((matmul.inputs + matmul.outputs) * WIDE_BYTES)
        rate = self.wide_flops_per_ns if matmul.wide else self.flops_per_ns
        return matmul.layers * (2.0 * one * passes / rate), matmul.layers * (moved / self.bytes_per_ns)

    def matmul_bounds(self, tokens: float) -> list[tuple[str, int, float, float]]:
        """(name, layers, ns by products, ns by bytes) of every matrix that depends on tokens."""
        at, found = np.array(float(tokens)), []
        for matmul in matmuls(self.deployment.model, self.deployment.tp):
            products, moved = self._bounds(matmul, at)
            found.append((matmul.name, matmul.layers, float(products), float(moved)))
        return found

    def linear_ns(self, tokens: F64) -> F64:
        """All matrices that depend on tokens alone: routed experts that are spread over ranks do not."""
        total = np.zeros_like(tokens)
        for matmul in matmuls(self.deployment.model, self.deployment.tp):
            if self.deployment.ep == 1 or not matmul.name.startswith("expert_"):
                total = total + self.matmul_ns(matmul, tokens)
        return total

    def head_ns(self, sequences: F64) -> F64:
        return self.matmul_ns(head(self.deployment.model, self.deployment.tp), sequences)

    def communication_ns(self, tokens: F64) -> F64:
        """Two all-reduces per layer: a fixed time and 2 (tp - 1) / tp of the activations over the link."""
        model, tp = self.deployment.model, self.deployment.tp
        if tp == 1:
            return np.zeros_like(tokens)
        moved = tokens * (model.hidden * WIDE_BYTES * 2.0 * (tp - 1) / tp)
        return 2 * model.num_layers * (self.allreduce_ns + moved / self.link_bytes_per_ns)

    def exchange_ns(self, tokens: F64, replicas: int) -> F64:
        """Between replicas that share experts: in every such layer all tokens are gathered and results scattered."""
        model = self.deployment.model
        if replicas == 1 or model.moe is None:
            return np.zeros_like(tokens)
        moved = tokens * (model.hidden * WIDE_BYTES * (replicas - 1.0))
        return 2 * (model.num_layers - model.moe.dense_layers) * (self.allreduce_ns + moved / self.link_bytes_per_ns)

    @property
    def _heads(self) -> int:
        return self.deployment.model.num_heads // self.deployment.tp

    @property
    def _kv_token_bytes(self) -> float:
        """Read per cached token and layer: its KV and its share of the block table."""
        deployment = self.deployment
        own = token_bytes(deployment.model, deployment.kv_dtype, deployment.tp, deployment.kv)
        return own / deployment.model.num_layers + _BLOCK_ID_BYTES / deployment.block_tokens

    def _head_widths(self) -> tuple[int, int]:
        """Width of a key and of a value per head, as prefill computes them."""
        model, mla = self.deployment.model, self.deployment.model.mla
        if mla is None:
            return model.head_dim, model.head_dim
        return mla.nope_head_dim + mla.rope_head_dim, mla.v_head_dim

    def prefill_compute_ns(self, new: F64, context: F64) -> F64:
        """Products of `new` tokens with themselves (causal) and with `context` cached ones (0 or more)."""
        model, heads = self.deployment.model, self._heads
        key, value = self._head_widths()
        flops = (new * context + new * (new + 1.0) / 2.0) * (2.0 * heads * (key + value))
        if model.mla is not None:
            expanded = heads * (model.mla.nope_head_dim + value)
            flops = flops + context * (2.0 * model.mla.kv_lora_rank * expanded)
        return flops * (model.num_layers / self.wide_flops_per_ns)

    def prefill_memory_ns(self, new: F64, context: F64) -> F64:
        """KV of both read once; queries and outputs of the new tokens."""
        key, value = self._head_widths()
        moved = (context + new) * self._kv_token_bytes + new * (self._heads * (key + value) * WIDE_BYTES)
        return moved * (self.deployment.model.num_layers / self.bytes_per_ns)

    def _query_widths(self) -> tuple[int, int]:
        """Width of a query and of an output per head, as decode computes them."""
        model, mla = self.deployment.model, self.deployment.model.mla
        if mla is None:
            return model.head_dim, model.head_dim
        return mla.cached_width, mla.kv_lora_rank

    def decode_compute_ns(self, batch: F64, context_sum: F64) -> F64:
        """Products of one query per sequence with context_sum cached tokens, all sequences together."""
        query, out = self._query_widths()
        flops = context_sum * (2.0 * self._heads * (query + out)) + batch * 0.0
        return flops * (self.deployment.model.num_layers / self.wide_flops_per_ns)

    def decode_memory_ns(self, batch: F64, context_sum: F64) -> F64:
        """KV read once; queries and outputs of `batch` sequences."""
        query, out = self._query_widths()
        moved = context_sum * self._kv_token_bytes + batch * (self._heads * (query + out) * WIDE_BYTES)
        return moved * (self.deployment.model.num_layers / self.bytes_per_ns)


def _experts_touched(matmul: Matmul, tokens: F64) -> F64:
    """Expected number of experts that `tokens` tokens use: E (1 - (1 - k / E)^tokens); 1 without experts."""
    if matmul.experts == 1:
        return np.ones_like(tokens)
    idle = 1.0 - matmul.experts_per_token / matmul.experts
    return matmul.experts * (1.0 - _power(idle, tokens))


def _power(base: float, exponent: F64) -> F64:
    """base ** exponent by squaring, so without libm; linear between whole exponents."""
    whole = np.floor(exponent).astype(np.int64)
    result = np.ones_like(exponent)
    square = base
    for bit in range(int(whole.max(initial=0)).bit_length()):
        result = np.where((whole >> bit) & 1 == 1, result * square, result)
        square = square * square
    return result * (1.0 - (exponent - whole) * (1.0 - base))


def make_rank(deployment: Deployment, settings: CostSettings = DEFAULTS) -> Rank:
    """One rank with its effective rates."""
    device = deployment.device
    wide = fitted(settings, device, "bf16")
    settings = fitted(settings, device, deployment.dtype)
    flops = device.flops(deployment.dtype) or device.flops_bf16
    link = device.scale_up or device.host_link
    if deployment.tp > 1 and not link:
        raise UsageError(f"{device.name} has no link to another device: try tp 1")
    return Rank(
        deployment=deployment,
        flops_per_ns=flops * settings.flops_efficiency / 1e9,
        wide_flops_per_ns=device.flops_bf16 * wide.flops_efficiency / 1e9,
        bytes_per_ns=device.memory_bandwidth * settings.bandwidth_efficiency / 1e9,
        link_bytes_per_ns=link * settings.link_efficiency / 1e9,
        allreduce_ns=settings.allreduce_latency_us * 1e3,
    )


def roofline_times(deployment: Deployment, settings: CostSettings = DEFAULTS) -> StepTimes:
    """Step times of this combination, for sequences up to deployment.length."""
    rank, device = make_rank(deployment, settings), deployment.device
    settings = fitted(settings, device, deployment.dtype)
    decode = _decode_grid(rank)
    source = (
        f"roofline of {device.title}: datasheet, uncalibrated ({settings.flops_efficiency:g} of FLOP/s, "
        f"{settings.bandwidth_efficiency:g} of bandwidth); datasheet confidence {device.confidence}"
    )
    origin = Origin(
        kind="roofline",
        source=source,
        device=device,
        model=deployment.model.name,
        shape=shape_of(deployment.model),
        dtype=deployment.dtype,
        kv_dtype=deployment.kv_dtype,
        tp=deployment.tp,
        measured=0.0,
        notes=_notes(deployment),
    )
    return StepTimes(
        origin,
        linear=sample_line(rank.linear_ns, _LINE_BITS, MAX_STEP_TOKENS),
        communication=sample_line(rank.communication_ns, 0, MAX_STEP_TOKENS),
        head=sample_line(rank.head_ns, _LINE_BITS, MAX_SEQUENCES),
        prefill=_prefill_grid(rank),
        decode=decode,
        mixed=decode,
        launch_ns=kernels_of_step(deployment) * settings.launch_us * 1e3,
        floor_ns=settings.floor_us * 1e3,
    )


def roofline(deployment: Deployment, settings: CostSettings = DEFAULTS) -> Costs:
    """Cost tables of this combination, without graphs."""
    return costs_of(roofline_times(deployment, settings), settings)


def _prefill_grid(rank: Rank) -> Grid:
    """Compute grows with the square of new tokens, everything is straight in the context."""
    new = axis_points(_SQUARE_BITS, rank.deployment.length)[:, None]
    context = axis_points(0, rank.deployment.length + 1)[None, :] - 1.0
    return Grid(_SQUARE_BITS, 0, rank.prefill_compute_ns(new, context), rank.prefill_memory_ns(new, context))


def _decode_grid(rank: Rank) -> Grid:
    """Both bounds are straight in both counts."""
    batch = axis_points(0, MAX_SEQUENCES)[:, None]
    context_sum = axis_points(0, MAX_SEQUENCES * rank.deployment.length)[None, :]
    return Grid(0, 0, rank.decode_compute_ns(batch, context_sum), rank.decode_memory_ns(batch, context_sum))


def kernels_of_step(deployment: Deployment) -> int:
    """Kernels of a step."""
    model = deployment.model
    products = sum(m.layers for m in matmuls(model, deployment.tp))
    return products + model.num_layers * _SMALL_KERNELS_PER_LAYER + _SMALL_KERNELS_PER_STEP


def _notes(deployment: Deployment) -> tuple[str, ...]:
    device, dtype = deployment.device, deployment.dtype
    notes = list(deployment.model.notes)
    if not device.flops(dtype):
        notes.append(f"{device.title} has no {dtype} units: {dtype} weights, products at the bf16 rate")
    if deployment.tp > 1 and not device.scale_up:
        notes.append(f"{device.title} has no scale-up link: all-reduces go over the host link")
    return tuple(notes)
