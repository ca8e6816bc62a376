"""The model over paged KV against the plain float64 one; exact numerics bit by bit."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.model.forward import KINDS, Model
from kvbench.model.weights import random_weights
from tests.model.paged import SHAPES, Paged, prompts
from tests.reference import transformer

LONG = os.environ.get("KVBENCH_LONG") == "1"
LENGTHS = [14, 3, 9]


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_prompts_and_decodes_are_those_of_the_plain_model(shape, numerics):
    config = SHAPES[shape]
    weights = random_weights(config, 3)
    paged = Paged(Model(config, weights, numerics), prompts([13, 1, 22], config.vocab), 32)
    for counts in ({0: 13, 1: 1, 2: 7}, {2: 8, 0: 1, 1: 1}, {0: 1, 2: 7, 1: 1}, {1: 1, 0: 1, 2: 1}):
        result = paged.step(counts)
        for row, sequence in enumerate(counts):
            wanted = transformer.logits(config, weights, paged.tokens[sequence][: paged.computed[sequence]])[-1]
            np.testing.assert_allclose(result.logits[row], wanted, rtol=0, atol=1e-4)
            assert result.next_tokens[row] == wanted.argmax()


def run(paged: Paged, new: int, draws: np.random.Generator | None = None) -> list[list[bytes]]:
    """Logits before each new token of each sequence: one sequence after the other, or any that the draws choose."""
    ends = [len(t) + new - 1 for t in paged.tokens]
    starts = [len(t) for t in paged.tokens]
    found: list[list[bytes]] = [[] for _ in ends]
    while left := [s for s in range(len(ends)) if paged.computed[s] < ends[s]]:
        if draws is None:
            counts = {left[0]: len(paged.tokens[left[0]]) - paged.computed[left[0]]}
        else:
            chosen = draws.permutation(left)[: draws.integers(1, len(left) + 1)]
            most = {int(s): len(paged.tokens[s]) - paged.computed[s] for s in chosen}
            counts = {s: int(draws.integers(1, n + 1)) for s, n in most.items()}
        result = paged.step(counts)
        for row, sequence in enumerate(counts):
            if paged.computed[sequence] >= starts[sequence]:
                found[sequence].append(result.logits[row].tobytes())
    return found


@settings(max_examples=40 if LONG else 6)
@given(
    seed=st.integers(0, 2**32), block_tokens=st.sampled_from([1, 4, 16]), layout=st.sampled_from(["NHD", "HND"]),
    threads=st.integers(1, 2),
)  # fmt: skip
@pytest.mark.parametrize(("shape", "kv_dtype"), [("llama", "float32"), ("mistral", "bf16"), ("llama", "int8")])
def test_exact_logits_are_the_same_bits_in_any_batch_chunk_and_layout(
    shape, kv_dtype, seed, block_tokens, layout, threads
):
    config, weights = SHAPES[shape], random_weights(SHAPES[shape], 3)
    plain = Paged(Model(config, weights, "exact"), prompts(LENGTHS, config.vocab), 20, kv_dtype=kv_dtype)
    wild = Paged(
        Model(config, weights, "exact", threads),
        prompts(LENGTHS, config.vocab),
        20,
        block_tokens,
        layout,
        kv_dtype,
        seed,
    )
    assert run(wild, 4, np.random.default_rng(seed)) == run(plain, 4)
    assert wild.tokens == plain.tokens


def test_a_prefix_that_another_computed_gives_the_same_bits():
    config, weights = SHAPES["llama"], random_weights(SHAPES["llama"], 3)
    given_prompts = prompts([12, 12], config.vocab)
    given_prompts[1][:8] = given_prompts[0][:8]
    cold, warm = (Paged(Model(config, weights, "exact"), given_prompts, 20) for _ in range(2))
    wanted = run(cold, 3)
    warm.step({0: 12})
    warm.tables[1, :2] = warm.tables[0, :2]
    warm.computed[1] = 8
    assert run(warm, 3)[1] == wanted[1]


def test_fast_is_near_exact():
    config, weights = SHAPES["llama"], random_weights(SHAPES["llama"], 3)
    fast, exact = (Paged(Model(config, weights, n), prompts([30, 5], config.vocab), 40) for n in ("fast", "exact"))
    for counts in ({0: 11, 1: 5}, {0: 19, 1: 1}, {0: 1, 1: 1}):
        np.testing.assert_allclose(fast.step(counts).logits, exact.step(counts).logits, rtol=0, atol=1e-4)
    assert fast.tokens == exact.tokens


def test_draws_depend_on_the_key_not_on_the_batch():
    config, weights = SHAPES["llama"], random_weights(SHAPES["llama"], 3)
    together, alone = (Paged(Model(config, weights, "exact"), prompts([5, 9], config.vocab), 20) for _ in range(2))
    for _ in range(3):
        together.step({s: len(together.tokens[s]) - together.computed[s] for s in (1, 0)}, temperature=1.0)
    for sequence in (0, 1):
        for _ in range(3):
            alone.step({sequence: len(alone.tokens[sequence]) - alone.computed[sequence]}, temperature=1.0)
    assert together.tokens == alone.tokens
    greedy = Paged(Model(config, weights, "exact"), prompts([5, 9], config.vocab), 20).greedy(3)
    assert [t[-3:] for t in alone.tokens] != greedy


def test_time_is_told_by_kind():
    model = Model(SHAPES["llama"], random_weights(SHAPES["llama"], 3))
    paged = Paged(model, prompts([5, 1], 211), 8)
    spent = paged.step({0: 5, 1: 1}).kernel_ns
    assert tuple(spent) == KINDS
    assert all(isinstance(ns, int) and ns > 0 for ns in spent.values())
    assert paged.step({0: 1, 1: 1}).kernel_ns["attention_prefill"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", np.array([0, 211])), ("tokens", np.array([-1, 0])), ("positions", np.array([0, 512])),
        ("slots", np.array([0])), ("row_starts", np.array([0, 1])), ("row_starts", np.array([0, 0])),
        ("contexts", np.array([0, 0])),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_fit_is_refused(field, value):
    paged = Paged(Model(SHAPES["llama"], random_weights(SHAPES["llama"], 3)), prompts([2], 211), 8)
    with pytest.raises(ValueError, match="step: "):
        paged.model.step(paged.cache, replace(paged.batch({0: 2}), **{field: value}))
