"""Sequences in a paged cache with shuffled blocks, and batches of them, as the executor makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvbench.model.config import ModelConfig
from kvbench.model.forward import Model, StepBatch, StepResult

# Small enough for plain Python; two heads a KV head, two layers.
SMALL = ModelConfig("llama", 2, 64, 2, 1, 64, 96, 211, max_positions=512)
SHAPES = {
    "llama": SMALL,
    "tied": replace(SMALL, tied_embeddings=True, heads=4, kv_heads=4),
    "qwen2": replace(SMALL, architecture="qwen2", qkv_bias=True, rope_theta=1e6),
    "qwen3": replace(SMALL, architecture="qwen3", qk_norm=True, heads=4, kv_heads=2, head_dim=128, rms_eps=1e-6),
    "mistral": replace(SMALL, architecture="mistral", window=9),
}


class Paged:
    """Sequences that share one cache. What is not written yet is NaN, so that no kernel may read it."""

    def __init__(
        self, model: Model, prompts: list[list[int]], most: int, block_tokens: int = 4, layout: str = "NHD",
        kv_dtype: str = "float32", seed: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.size = model, block_tokens
        blocks = -(-most // block_tokens)
        self.cache = model.kv_shape(len(prompts) * blocks + 1, block_tokens, layout, kv_dtype).allocate()
        if kv_dtype == "float32":
            self.cache.data[:] = np.nan
        ids = np.random.default_rng(seed).permutation(len(prompts) * blocks) + 1
        self.tables = ids.reshape(len(prompts), blocks).astype(np.int32)
        self.tokens = [list(p) for p in prompts]
        self.computed = [0] * len(prompts)

    def step(self, counts: dict[int, int], temperature: float = 0.0) -> StepResult:
        """Compute so many next tokens of each sequence; one whose tokens are all computed gets the sampled one."""
        batch = self.batch(counts, temperature)
        result = self.model.step(self.cache, batch)
        for row, (sequence, count) in enumerate(counts.items()):
            self.computed[sequence] += count
            if self.computed[sequence] == len(self.tokens[sequence]):
                self.tokens[sequence].append(int(result.next_tokens[row]))
        return result

    def batch(self, counts: dict[int, int], temperature: float = 0.0) -> StepBatch:
        done = [self.computed[s] for s in counts]
        positions = [np.arange(d, d + n) for d, n in zip(done, counts.values(), strict=True)]
        tokens = [np.array(self.tokens[s])[p] for s, p in zip(counts, positions, strict=True)]
        slots = [
            self.tables[s, p // self.size].astype(np.int64) * self.size + p % self.size
            for s, p in zip(counts, positions, strict=True)
        ]
        keys = [s * 1000 + d + n for (s, n), d in zip(counts.items(), done, strict=True)]
        return StepBatch(
            np.concatenate(tokens), np.concatenate(positions), np.concatenate(slots),
            np.cumsum([0, *counts.values()]), np.array(done, np.int64), self.tables[list(counts)],
            np.array(keys, np.uint64), temperature,
        )  # fmt: skip

    def greedy(self, new: int) -> list[list[int]]:
        """Prompts whole in one step, then all sequences together, one token a step."""
        starts = [len(t) for t in self.tokens]
        self.step(dict(enumerate(starts)))
        for _ in range(new - 1):
            self.step(dict.fromkeys(range(len(starts)), 1))
        return [t[n:] for t, n in zip(self.tokens, starts, strict=True)]


def prompts(lengths: list[int], vocab: int, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n).tolist() for n in lengths]
