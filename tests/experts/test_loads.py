"""Popularity and draws: what a step's tokens choose."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.experts import draws
from kvbench.experts.keys import LoadSettings
from kvbench.experts.popularity import DECODE, PREFILL, Popularity, Routing, inclusion

from ..recordings import SHARED


def counts_of(weights, routing, tokens, seed=1):
    counts = np.zeros(weights.shape, np.int64)
    state = np.array([seed], np.uint64)
    sums = weights.reshape(weights.shape[0], routing.groups, -1).sum(-1)
    with np.errstate(over="ignore"):
        draws.draw_counts(
            state, tokens, routing.top_k, routing.group_limit, weights, sums, inclusion(weights, routing), counts
        )
    return counts


@st.composite
def routings(draw):
    groups = draw(st.sampled_from([1, 2, 4]))
    size = draw(st.integers(2, 6))
    limit = draw(st.integers(1, groups))
    return Routing(draw(st.integers(1, 3)), groups * size, draw(st.integers(1, limit * size)), groups, limit)


@settings(max_examples=80, deadline=None)
@given(routings(), st.integers(0, 70), st.floats(0, 3), st.integers(0, 99))
def test_every_token_chooses_top_k_experts_none_twice(routing, tokens, exponent, seed):
    weights = Popularity(LoadSettings(exponent=exponent), routing, seed).weights(0, DECODE)
    counts = counts_of(weights, routing, tokens, seed)
    assert np.all(counts.sum(1) == tokens * routing.top_k)
    assert np.all((counts >= 0) & (counts <= tokens))
    included = inclusion(weights, routing)
    assert included.sum(1) == pytest.approx(np.full(routing.layers, routing.top_k), rel=1e-9)


def test_one_token_stays_within_its_groups():
    routing = Routing(4, 16, 4, groups=4, group_limit=2)
    weights = Popularity(LoadSettings("uniform"), routing, 0).weights(0, DECODE)
    for seed in range(20):
        counts = counts_of(weights, routing, 1, seed)
        assert np.all((counts.reshape(4, 4, 4).sum(2) > 0).sum(1) <= 2)


def test_few_tokens_touch_few_experts_and_many_touch_all():
    routing = Routing(10, 256, 8)
    weights = Popularity(LoadSettings("uniform"), routing, 0).weights(0, DECODE)
    active = [np.count_nonzero(counts_of(weights, routing, tokens)) / 10 for tokens in (1, 4, 33, 2000)]
    assert active[0] == 8
    assert 26 <= active[1] <= 32
    assert active[1] < active[2] < active[3] == 256


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.2])
def test_both_ways_of_drawing_agree_in_the_mean(exponent):
    """One by one and at once: the same shares, to the noise of as many tokens."""
    routing = Routing(1, 16, 2)
    weights = Popularity(LoadSettings(exponent=exponent), routing, 3).weights(0, DECODE)
    few = sum(counts_of(weights, routing, 20, seed) for seed in range(150))[0] / 3000
    many = sum(counts_of(weights, routing, 300, seed) for seed in range(10))[0] / 3000
    assert many == pytest.approx(inclusion(weights, routing)[0], abs=0.02)
    assert few == pytest.approx(many, abs=0.03 + 0.06 * exponent)  # odds stand in for draws one after the other


def test_a_step_varies_as_much_as_independent_tokens_do():
    routing = Routing(1, 8, 1)
    weights = Popularity(LoadSettings("uniform"), routing, 0).weights(0, DECODE)
    rows = np.array([counts_of(weights, routing, 800, seed)[0] for seed in range(200)])
    assert rows.mean(0) == pytest.approx(np.full(8, 100.0), abs=3.0)
    assert rows.var(0).mean() == pytest.approx(800 / 8 * 7 / 8, rel=0.15)


def test_layers_and_phases_have_popularities_of_their_own():
    routing = Routing(3, 32, 4)
    popularity = Popularity(LoadSettings(exponent=1.0), routing, 5)
    prefill, decode = popularity.weights(0, PREFILL), popularity.weights(0, DECODE)
    assert not np.array_equal(prefill, decode)
    assert not np.array_equal(prefill[0], prefill[1])
    assert np.allclose(np.sort(prefill[0]), np.sort(decode[2]))
    same = Popularity(LoadSettings(exponent=1.0, phases_differ=False), routing, 5)
    assert np.array_equal(same.weights(0, PREFILL), same.weights(0, DECODE))


def test_drift_is_slow_or_sudden():
    routing = Routing(2, 16, 2)
    slow = Popularity(LoadSettings(drift="rotate", drift_steps=160), routing, 1)
    first, near, far = (slow.weights(slow.stage(step), DECODE) for step in (0, 10, 160))
    assert 0 < np.abs(near - first).sum() < np.abs(far - first).sum()
    assert far.sum(1) == pytest.approx([1.0, 1.0])
    sudden = Popularity(LoadSettings(drift="jump", drift_steps=100), routing, 1)
    assert sudden.stage(99) == sudden.stage(0) != sudden.stage(100)
    assert not np.array_equal(sudden.weights(0, DECODE), sudden.weights(1, DECODE))


def test_a_recorded_table_is_taken_as_it_is(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"m": {"domains": {"code": [[1, 2, 3, 4], [4, 3, 2, 1]]}}}))
    found = Popularity(LoadSettings("recorded", table=str(path), domain="m/code"), Routing(4, 4, 2), 0)
    assert found.weights(0, PREFILL).tolist() == [[0.1, 0.2, 0.3, 0.4]] * 2 + [[0.4, 0.3, 0.2, 0.1]] * 2


def test_domains_follow_each_other(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"m": {"domains": {"code": [[1, 3]], "prose": [[3, 1]]}}}))
    settings = LoadSettings("recorded", table=str(path), domain="m/code, m/prose", drift="jump", drift_steps=10)
    found = Popularity(settings, Routing(1, 2, 1), 0)
    seen = [found.weights(found.stage(step), DECODE).tolist() for step in (0, 9, 10, 25)]
    assert seen == [[[0.25, 0.75]], [[0.25, 0.75]], [[0.75, 0.25]], [[0.25, 0.75]]]


@pytest.mark.parametrize(
    ("text", "domain", "words"),
    [
        ("{", "", "cannot be read"),
        ('{"a": [[1, 2, 3, 4]]}', "b", "there are: a"),
        ("[[1, 2]]", "", "the model 4 experts"),
        ("[[0, 0, 0, 0]]", "", "not all of a layer 0"),
        ('{"a": 1}', "", "not rows of counts"),
    ],
)
def test_tables_that_are_none_are_told(tmp_path, text, domain, words):
    path = tmp_path / "counts.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        Popularity(LoadSettings("recorded", table=str(path), domain=domain), Routing(2, 4, 2), 0)


def test_public_counts_are_as_uneven_as_they_are():
    path = SHARED / "traces" / "olmoe-routing" / "expert_counts.json"
    if not path.exists():
        pytest.skip("needs ../shared")
    found = Popularity(LoadSettings("recorded", table=str(path), domain="olmoe/arxiv"), Routing(16, 64, 8), 0)
    weights = found.weights(0, PREFILL)
    assert (weights.max(1) * 64)[[0, 6, 15]] == pytest.approx([7.8, 6.3, 7.5], abs=0.1)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.8, 1.0, 2.5])
def test_powers_without_libm(exponent):
    weights = Popularity(LoadSettings(exponent=exponent), Routing(1, 9, 2), 0).weights(0, DECODE)[0]
    want = np.arange(1, 10.0) ** -exponent
    assert np.sort(weights)[::-1] == pytest.approx(want / want.sum(), rel=1e-5)
