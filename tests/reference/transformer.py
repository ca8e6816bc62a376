"""The whole model in plain NumPy float64: one sequence, no cache, no tiles. Weights by their Hugging Face names."""

from __future__ import annotations

import numpy as np


def logits(config, weights, tokens):
    """(tokens, vocab) float64 for a list of token ids."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["model.embed_tokens.weight"][np.asarray(tokens)]
    for i in range(config.layers):
        layer = {n.removeprefix(f"model.layers.{i}."): v for n, v in w.items() if n.startswith(f"model.layers.{i}.")}
        x = x + attention(config, layer, rms_norm(x, layer["input_layernorm.weight"], config.rms_eps))
        y = rms_norm(x, layer["post_attention_layernorm.weight"], config.rms_eps)
        gate, up = y @ layer["mlp.gate_proj.weight"].T, y @ layer["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"]
    return rms_norm(x, w["model.norm.weight"], config.rms_eps) @ head.T


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """(tokens, heads, dim) turned by position: pair (j, j + dim / 2) by position / theta^(2 j / dim)."""
    tokens, _, dim = x.shape
    angle = np.arange(tokens)[:, None] / theta ** (np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def attention(config, layer, x):
    tokens = len(x)

    def heads(name):
        y = x @ layer[f"self_attn.{name}_proj.weight"].T + layer.get(f"self_attn.{name}_proj.bias", 0.0)
        return y.reshape(tokens, -1, config.head_dim)

    q, k, v = heads("q"), heads("k"), heads("v")
    if config.qk_norm:
        q = rms_norm(q, layer["self_attn.q_norm.weight"], config.rms_eps)
        k = rms_norm(k, layer["self_attn.k_norm.weight"], config.rms_eps)
    q, k = rotate(q, config.rope_theta), rotate(k, config.rope_theta)
    behind = np.arange(tokens)[:, None] - np.arange(tokens)
    seen = (behind >= 0) & ((behind < config.window) if config.window else True)
    out = np.empty_like(q)
    for h in range(config.heads):
        kv = h // (config.heads // config.kv_heads)
        scores = np.where(seen, q[:, h] @ k[:, kv].T / np.sqrt(config.head_dim), -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h] = p @ v[:, kv] / p.sum(axis=1, keepdims=True)
    return out.reshape(tokens, -1) @ layer["self_attn.o_proj.weight"].T
