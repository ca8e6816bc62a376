"""The same model in `transformers`, float32 on the CPU: what parity is measured against. Needs the extra `parity`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbench.model.config import ModelConfig
from kvbench.model.weights import Weights


def build(config: ModelConfig, weights: Weights, attention: str = "eager") -> Any:
    """Its own class of the architecture, with these weights in it."""
    import torch
    import transformers

    fields = {
        "hidden_size": config.hidden, "intermediate_size": config.intermediate, "vocab_size": config.vocab,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads, "head_dim": config.head_dim,
        "num_key_value_heads": config.kv_heads, "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_positions, "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    if config.architecture == "mistral":
        fields["sliding_window"] = config.window or None
    kind = {"llama": "Llama", "mistral": "Mistral"}.get(config.architecture, config.architecture.capitalize())
    settings = getattr(transformers, f"{kind}Config")(**fields, attn_implementation=attention)
    model = getattr(transformers, f"{kind}ForCausalLM")(settings).to(torch.float32).eval()
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    if config.tied_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    return model


def greedy(model: Any, prompt: list[int], new: int) -> tuple[list[int], np.ndarray]:
    """Tokens after the prompt, and the logits that each was taken from, (new, vocab) float32."""
    import torch

    tokens, rows = [], []
    given, cache = torch.tensor([prompt]), None
    with torch.inference_mode():
        for _ in range(new):
            out = model(given, past_key_values=cache, use_cache=True)
            cache, row = out.past_key_values, out.logits[0, -1]
            rows.append(row.numpy().copy())
            tokens.append(int(row.argmax()))
            given = torch.tensor([tokens[-1:]])
    return tokens, np.array(rows)
