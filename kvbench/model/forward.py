"""One step of the model over paged KV: logits and the next token of every row.

A row is one sequence's tokens of this step: one while it decodes, a chunk of its prompt before. All tokens pass the
products and norms together; attention takes rows of one token and longer ones apart.

Numerics. In "exact" the bits of a row's logits depend on the tokens before it alone: products and norms sum in one
order for every row, and attention of a prompt's positions takes the order of decode. In "fast" long rows take
tiles, whose order depends on where the chunk begins: logits differ in the last digits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import elementwise, linear, sampling
from ..kernels.decode import paged_decode
from ..kernels.kv_write import write
from ..kernels.layout import KvCache, KvShape
from ..kernels.prefill import paged_prefill
from .config import ModelConfig
from .weights import F32, Weights

I64 = NDArray[np.int64]

NUMERICS = ("fast", "exact")
KINDS = ("linear", "attention_decode", "attention_prefill", "kv_write", "elementwise", "sampling")
"""What a step spends its time on."""


@dataclass(frozen=True, eq=False)
class StepBatch:
    """What one step computes: rows of tokens, laid end to end."""

    tokens: I64
    """(tokens,) ids."""
    positions: I64
    """(tokens,) from 0 in each sequence."""
    slots: I64
    """(tokens,) where the KV of each goes."""
    row_starts: I64
    """(rows + 1,) first token of each row, and the number of tokens; rows are not empty."""
    contexts: I64
    """(rows,) tokens of the sequence before the row's first."""
    tables: NDArray[np.int32]
    """(rows, blocks) block ids, as many as the row's last token needs; beyond those anything."""
    sample_keys: NDArray[np.uint64]
    """(rows,) what a draw depends on beside the logits; not read where temperature is 0."""
    temperature: float = 0.0
    """0: the greatest logit."""


@dataclass(frozen=True, eq=False)
class StepResult:
    next_tokens: I64
    """(rows,) after each row's last token."""
    logits: F32
    """(rows, vocab) of each row's last token; a view that the next step overwrites."""
    kernel_ns: dict[str, int]
    """Wall time by kind, see KINDS."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """Weights of one layer, products packed: queries, keys and values are one, and so are gate and up."""

    norm: F32
    qkv: F32
    qkv_bias: F32 | None
    head_norms: F32
    """(2, head_dim) of queries and keys, or (0, head_dim)."""
    output: F32
    mlp_norm: F32
    gate_up: F32
    down: F32


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one length class: which they are, and which tokens they hold."""

    tokens: I64
    starts: I64
    contexts: I64
    tables: NDArray[np.int32]


class Model:
    """A model whose weights are packed for this machine. One step at a time: it owns its scratch memory."""

    def __init__(self, config: ModelConfig, weights: Weights, numerics: str = "fast", threads: int = 1) -> None:
        if numerics not in NUMERICS:
            raise ValueError(f"numerics {numerics!r}; there are {', '.join(NUMERICS)}")
        self.config, self.numerics, self.threads = config, numerics, threads
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [_layer(config, weights, f"model.layers.{i}.") for i in range(config.layers)]
        self._norm = weights["model.norm.weight"]
        self._head = linear.pack(self._embedding if config.tied_embeddings else weights["lm_head.weight"])
        pairs = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
        self._turns = (1.0 / config.rope_theta ** pairs.astype(np.float64)).astype(np.float32)
        self._scratch: dict[str, F32] = {}

    def kv_shape(self, num_blocks: int, block_tokens: int, layout: str = "NHD", kv_dtype: str = "float32") -> KvShape:
        """The paged cache that this model needs for so many blocks."""
        c = self.config
        return KvShape(c.layers, num_blocks, c.kv_heads, block_tokens, c.head_dim, layout, kv_dtype)

    def step(self, cache: KvCache, batch: StepBatch) -> StepResult:
        """Write the KV of the batch's tokens and return what follows each row."""
        _check(self.config, cache, batch)
        watch = _Stopwatch()
        x = self._residual(cache, batch, watch)
        last = x[batch.row_starts[1:] - 1]
        normal = self._memory("last", len(last), self.config.hidden)
        elementwise.rms_norm(last, self._norm, self.config.rms_eps, normal)
        watch.lap("elementwise")
        logits = self._memory("logits", len(last), self.config.vocab)
        linear.multiply(normal, self._head, logits, self.threads)
        watch.lap("linear")
        if batch.temperature > 0:
            tokens = sampling.draw(logits, batch.temperature, batch.sample_keys)
        else:
            tokens = sampling.greatest(logits)
        watch.lap("sampling")
        return StepResult(tokens, logits, watch.ns)

    def _residual(self, cache: KvCache, batch: StepBatch, watch: _Stopwatch) -> F32:
        """(tokens, hidden) after the last layer."""
        c, tokens, eps = self.config, len(batch.tokens), self.config.rms_eps
        x = self._embedding[batch.tokens]
        cos, sin = self._angles(batch.positions)
        rows = _split_rows(batch)
        normal, change = self._memory("normal", tokens, c.hidden), self._memory("change", tokens, c.hidden)
        gate_up = self._memory("gate_up", tokens, 2 * c.intermediate)
        inner = self._memory("inner", tokens, c.intermediate)
        for number, layer in enumerate(self._layers):
            if number == 0:
                elementwise.rms_norm(x, layer.norm, eps, normal)
            else:
                elementwise.add_rms_norm(x, change, layer.norm, eps, normal)
            watch.lap("elementwise")
            attended = self._attention(cache, batch, rows, number, normal, cos, sin, watch)
            linear.multiply(attended, layer.output, change, self.threads)
            watch.lap("linear")
            elementwise.add_rms_norm(x, change, layer.mlp_norm, eps, normal)
            watch.lap("elementwise")
            linear.multiply(normal, layer.gate_up, gate_up, self.threads)
            watch.lap("linear")
            elementwise.swiglu(gate_up, inner)
            watch.lap("elementwise")
            linear.multiply(inner, layer.down, change, self.threads)
            watch.lap("linear")
        x += change
        return x

    def _attention(
        self, cache: KvCache, batch: StepBatch, rows: tuple[_Rows, _Rows], number: int, normal: F32, cos: F32, sin: F32,
        watch: _Stopwatch,
    ) -> F32:  # fmt: skip
        """(tokens, heads x head_dim): what each token takes from the tokens before it, which include itself."""
        c, layer, tokens = self.config, self._layers[number], len(normal)
        qkv = self._memory("qkv", tokens, (c.heads + 2 * c.kv_heads) * c.head_dim)
        q, out = (self._memory(name, tokens, c.heads, c.head_dim) for name in ("q", "out"))
        k, v = (self._memory(name, tokens, c.kv_heads, c.head_dim) for name in ("k", "v"))
        linear.multiply(normal, layer.qkv, qkv, self.threads)
        watch.lap("linear")
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        elementwise.split_heads(qkv, layer.head_norms, c.rms_eps, cos, sin, q, k, v)
        watch.lap("elementwise")
        write(k, v, cache, number, batch.slots)
        watch.lap("kv_write")
        single, longer = rows
        if len(longer.tokens) == 0:
            self._decode(cache, number, single, q, out)
            watch.lap("attention_decode")
        elif len(single.tokens) == 0:
            self._prefill(cache, number, longer, q, out)
            watch.lap("attention_prefill")
        else:
            for part, attend, kind in (
                (single, self._decode, "attention_decode"),
                (longer, self._prefill, "attention_prefill"),
            ):
                part_out = np.empty((len(part.tokens), c.heads, c.head_dim), np.float32)
                attend(cache, number, part, q[part.tokens], part_out)
                out[part.tokens] = part_out
                watch.lap(kind)
        return out.reshape(tokens, -1)

    def _decode(self, cache: KvCache, number: int, rows: _Rows, q: F32, out: F32) -> None:
        window = self.config.window
        paged_decode(q, cache, number, rows.tables, rows.contexts + 1, out, window=window, threads=self.threads)

    def _prefill(self, cache: KvCache, number: int, rows: _Rows, q: F32, out: F32) -> None:
        paged_prefill(
            q, cache, number, rows.tables, rows.starts, rows.contexts, out,
            window=self.config.window, exact=self.numerics == "exact", threads=self.threads,
        )  # fmt: skip

    def _angles(self, positions: I64) -> tuple[F32, F32]:
        """(tokens, head_dim / 2) cosines and sines. The angle itself is float32, as in the published models."""
        angles = (positions[:, None].astype(np.float32) * self._turns).astype(np.float64)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _memory(self, name: str, rows: int, *shape: int) -> F32:
        """Scratch that grows to the largest step so far: fresh pages cost more than some kernels."""
        if name not in self._scratch or len(self._scratch[name]) < rows:
            self._scratch[name] = np.empty((rows, *shape), np.float32)
        return self._scratch[name][:rows]


class _Stopwatch:
    """Adds the time since the last lap to a kind."""

    def __init__(self) -> None:
        self.ns = dict.fromkeys(KINDS, 0)
        self._last = time.perf_counter_ns()

    def lap(self, kind: str) -> None:
        now = time.perf_counter_ns()
        self.ns[kind] += now - self._last
        self._last = now


def _layer(config: ModelConfig, weights: Weights, prefix: str) -> _Layer:
    def joined(*names: str) -> Any:
        return np.concatenate([weights[prefix + name] for name in names])

    heads = [f"self_attn.{name}_proj." for name in "qkv"]
    if config.qk_norm:
        norms = np.stack([weights[f"{prefix}self_attn.{name}_norm.weight"] for name in "qk"])
    else:
        norms = np.empty((0, config.head_dim), np.float32)
    return _Layer(
        norm=weights[prefix + "input_layernorm.weight"],
        qkv=linear.pack(joined(*(h + "weight" for h in heads))),
        qkv_bias=joined(*(h + "bias" for h in heads)) if config.qkv_bias else None,
        head_norms=norms,
        output=linear.pack(weights[prefix + "self_attn.o_proj.weight"]),
        mlp_norm=weights[prefix + "post_attention_layernorm.weight"],
        gate_up=linear.pack(joined("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        down=linear.pack(weights[prefix + "mlp.down_proj.weight"]),
    )


def _split_rows(batch: StepBatch) -> tuple[_Rows, _Rows]:
    """Rows of one token, and longer ones; each in the order of the batch."""
    lengths = np.diff(batch.row_starts)
    return _rows(batch, lengths, lengths == 1), _rows(batch, lengths, lengths > 1)


def _rows(batch: StepBatch, lengths: I64, chosen: NDArray[np.bool_]) -> _Rows:
    starts = np.concatenate(([0], np.cumsum(lengths[chosen])))
    tokens = np.flatnonzero(np.repeat(chosen, lengths))
    return _Rows(tokens, starts, batch.contexts[chosen], np.ascontiguousarray(batch.tables[chosen]))


def _check(config: ModelConfig, cache: KvCache, batch: StepBatch) -> None:
    """Ranges and lengths: kernels index by them unchecked."""
    tokens, rows = len(batch.tokens), len(batch.contexts)
    shape = cache.shape
    if (shape.num_layers, shape.num_kv_heads, shape.head_dim) != (config.layers, config.kv_heads, config.head_dim):
        raise ValueError(f"step: the cache is for another model: {shape}")
    lengths = {"positions": tokens, "slots": tokens, "row_starts": rows + 1, "tables": rows}
    for name, length in lengths.items():
        if len(getattr(batch, name)) != length:
            raise ValueError(f"step: {name} has {len(getattr(batch, name))} entries, wanted {length}")
    if rows == 0 or batch.row_starts[0] != 0 or batch.row_starts[-1] != tokens or np.diff(batch.row_starts).min() < 1:
        raise ValueError("step: row_starts must rise from 0 to the number of tokens")
    for name, top in (("tokens", config.vocab), ("positions", config.max_positions)):
        values = getattr(batch, name)
        if values.min() < 0 or values.max() >= top:
            raise ValueError(f"step: {name} must lie in 0..{top - 1}, are {values.min()}..{values.max()}")
