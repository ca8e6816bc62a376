"""The model over paged KV against the plain float64 one; exact numerics bit by bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.model.forward import Model
from kvbench.model.weights import random_weights
from tests.model.paged import SHAPES, SMALL, Paged, prompts
from tests.reference import transformer

LONG = os.environ.get("KVBENCH_LONG") == "1"


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
