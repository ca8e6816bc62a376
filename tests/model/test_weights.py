"""Weights from a seed, and from safetensors on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.model.config import named
from kvbench.model.forward import Model
from kvbench.model.weights import random_weights, read_weights
from tests.model.paged import SHAPES, SMALL, Paged, prompts

pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'kvbench[weights]'")


def stored(x, kind):
    """Bytes of a float32 array in a type of safetensors."""
    if kind == "BF16":
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[kind]).tobytes()


def save(path, weights, kind="F32"):
    """The format by hand: length of the header, where each tensor lies, the tensors."""
    header, data = {}, b""
    for name, x in weights.items():
        start, data = len(data), data + stored(x, kind)
        header[name] = {"dtype": kind, "shape": x.shape, "data_offsets": (start, len(data))}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_the_same_seed_is_the_same_weights_for_ever():
    weights = random_weights(SHAPES["qwen2"], 7)
    assert {name: w.shape for name, w in weights.items()} == SHAPES["qwen2"].weight_shapes()
    assert all(w.dtype == np.float32 and w.flags.c_contiguous for w in weights.values())
    digest = hashlib.sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest()
    assert digest[:16] == "754cab1f8997548e"
    assert not np.array_equal(weights["lm_head.weight"], random_weights(SHAPES["qwen2"], 8)["lm_head.weight"])


def test_a_tensor_has_the_spread_that_it_is_given():
    weights = random_weights(named("nano"), 0)
    assert weights["model.embed_tokens.weight"].std() == pytest.approx(1.0, rel=0.01)
    assert weights["model.layers.1.mlp.up_proj.weight"].std() == pytest.approx(256**-0.5, rel=0.02)
    assert abs(weights["lm_head.weight"].mean()) < 1e-3
    assert weights["model.norm.weight"].mean() == pytest.approx(1, abs=0.02)


def test_greedy_tokens_vary_and_hang_on_the_whole_prompt():
    """A wrong block far back must show, or no test of tokens is worth anything."""
    config = replace(SMALL, vocab=997)
    first = prompts([40], config.vocab)[0]
    second = [first[0] ^ 1, *first[1:]]
    new = 12
    one, other = Paged(Model(config, random_weights(config, 1)), [first, second], 40 + new).greedy(new)
    assert len(set(one)) > new * 0.7
    assert one != other


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_folder_is_read_as_float32(tmp_path, kind):
    weights = random_weights(SMALL, 1)
    save(tmp_path / "model.safetensors", weights, kind)
    read = read_weights(tmp_path, SMALL)
    assert list(read) == list(weights)
    for name, wanted in weights.items():
        rounded = {
            "F32": wanted,
            "F16": wanted.astype(np.float16).astype(np.float32),
            "BF16": (wanted.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
        }[kind]
        assert np.array_equal(read[name], rounded), name


def test_several_files_with_an_index(tmp_path):
    weights = random_weights(SMALL, 1)
    names = list(weights)
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save(tmp_path / file, {name: weights[name] for name in names if places[name] == file})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    read = read_weights(tmp_path, SMALL)
    assert all(np.array_equal(read[name], weights[name]) for name in names)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {names[0]: "x"}}))
    with pytest.raises(UsageError, match="is missing; is the download complete"):
        read_weights(tmp_path, SMALL)
    (tmp_path / "model.safetensors.index.json").write_text("[")
    with pytest.raises(UsageError, match="is not a readable index"):
        read_weights(tmp_path, SMALL)


def test_what_cannot_be_read_is_one_line(tmp_path):
    weights, file = random_weights(SMALL, 1), tmp_path / "model.safetensors"
    with pytest.raises(UsageError, match="no such file"):
        read_weights(tmp_path, SMALL)
    file.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        read_weights(tmp_path, SMALL)
    save(file, weights)
    with pytest.raises(UsageError, match=r"'model\.embed_tokens\.weight' has shape \(211, 64\), config.json says"):
        read_weights(tmp_path, replace(SMALL, vocab=300))
    with pytest.raises(UsageError, match=r"'model\.layers\.2\..*' is missing"):
        read_weights(tmp_path, replace(SMALL, layers=3))
    save(file, weights, "F64")
    with pytest.raises(UsageError, match="is F64; only F32, F16 and BF16"):
        read_weights(tmp_path, SMALL)
