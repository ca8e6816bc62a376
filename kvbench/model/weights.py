"""Weights by their Hugging Face names, float32: drawn from a seed, or read from a local folder.

A model of random weights is no language model, but it must not be a trivial one either: its tokens have to depend on
the whole context, or a wrong KV cache would go unseen.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from .config import ModelConfig

F32 = NDArray[np.float32]
Weights = dict[str, F32]

_GAIN = {"q_proj": 2.0, "k_proj": 2.0, "o_proj": 2.0, "down_proj": 2.0, "lm_head": 3.0}
"""Standard deviation of a matrix is gain / sqrt(inputs), 1 where none is named. Queries and keys are wide so that
attention picks single tokens instead of averaging all; outputs, so that layers outweigh the embedding that they are
added to. Otherwise the next token hangs on the last one alone and greedy output runs in a short circle."""


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Uniform weights of zero mean (norms: around 1), the same under every NumPy version."""
    shapes = config.weight_shapes()
    return {name: _draw(name, shapes[name], seed, number) for number, name in enumerate(shapes)}


def _draw(name: str, shape: tuple[int, ...], seed: int, number: int) -> F32:
    """One tensor from a stream of its own: raw output of PCG64, whose bits NumPy keeps for ever."""
    size = math.prod(shape)
    raw = np.random.PCG64(np.random.SeedSequence([seed, number])).random_raw((size + 1) // 2)
    centred = raw.astype("<u8").view("<i4")[:size].astype(np.float32) * np.float32(2.0**-31)
    if len(shape) == 1:
        centred *= np.float32(0.1)
        return centred + np.float32(1) if name.endswith("norm.weight") else centred
    gain = next((gain for part, gain in _GAIN.items() if part in name), 1.0)
    deviation = 1.0 if "embed_tokens" in name else gain / math.sqrt(shape[1])
    return (centred * np.float32(deviation * math.sqrt(3.0))).reshape(shape)


def read_weights(folder: str | Path, config: ModelConfig) -> Weights:
    """The safetensors of a Hugging Face folder, one file or several with an index; 16-bit floats become float32.

    Raises UsageError where a file is missing or not readable, or a tensor is missing or of another shape.
    """
    shapes = config.weight_shapes()
    weights: Weights = {}
    for file, names in _files(Path(folder), shapes).items():
        weights |= _read_file(file, names)
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise UsageError(f"{folder}: tensor {name!r} has shape {weights[name].shape}, config.json says {shape}")
    return weights


def _files(folder: Path, shapes: dict[str, Any]) -> dict[Path, list[str]]:
    """Which file holds which of the tensors."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {folder / "model.safetensors": list(shapes)}
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files: dict[Path, list[str]] = {}
        for name in shapes:
            files.setdefault(folder / places[name], []).append(name)
    except KeyError as error:
        raise UsageError(f"{index}: {error} is missing; is the download complete?") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{index} is not a readable index: {error}") from None
    return files


def _read_file(file: Path, names: list[str]) -> Weights:
    try:
        import safetensors
    except ImportError:
        raise UsageError("reading weights needs safetensors: pip install 'kvbench[weights]'") from None
    if not file.exists():
        raise UsageError(f"{file}: no such file; a model needs its safetensors beside config.json")
    try:
        tensors = dict(safetensors.deserialize(file.read_bytes()))
    except (OSError, safetensors.SafetensorError) as error:
        raise UsageError(f"{file} is not a readable safetensors file: {error}") from None
    return {name: _to_float32(file, name, tensors) for name in names}


def _to_float32(file: Path, name: str, tensors: dict[str, Any]) -> F32:
    """NumPy has no bf16: its bits are the upper half of a float32."""
    if name not in tensors:
        raise UsageError(f"{file}: tensor {name!r} is missing; is the download complete?")
    tensor = tensors[name]
    kind, data = tensor["dtype"], tensor["data"]
    if kind == "BF16":
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif kind in ("F16", "F32"):
        values = np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[kind]).astype(np.float32)
    else:
        raise UsageError(f"{file}: tensor {name!r} is {kind}; only F32, F16 and BF16 are supported")
    return values.reshape(tensor["shape"])
