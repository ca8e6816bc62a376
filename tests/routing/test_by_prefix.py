"""Policies that look at prompts, against the reference: every decision, and what is believed, in random orders."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.prefix.keys import sequence_keys
from kvbench.routing import kv_aware
from kvbench.routing.own_file import find_choice
from kvbench.routing.router import BAD_CHOICE, IN_FLIGHT, LOST, NO_ENGINE, PENDING_TOKENS, SENT
from kvbench.routing.settings import RouterSettings, belief_of, load_of

from ..conftest import LONG
from .systems import Pair
from .test_holder_tree import check, reference_shape, shape

OPTIONS = {
    "prefix-hash": {"prefix_tokens": [4, 8, 256], "bound": [1.0, 1.25, 3.0]},
    "cache-aware": {
        "match_threshold": [0.0, 0.3, 0.5, 0.8, 1.0],
        "balance_abs": [0.0, 1.0, 2.0, 64.0],
        "balance_rel": [1.0, 1.1, 2.0],
    },
    "longest-prefix": {"min_match_tokens": [0, 4, 8]},
    "kv-aware": {
        "credit": [0.0, 0.5, 1.0],
        "credit_decay": [0.0, 0.0, 1.0],
        "prefill_scale": [0.0, 0.5, 1.0],
        "active_weight": [0.0, 0.25],
    },
    "scorers": {"weight_prefix": [0.0, 3.0], "weight_requests": [0.0, 1.0]},
    "predicted-ttft": {},
    "oracle": {},
}
HEADS = [(1,) * 8, (1,) * 4 + (2,) * 8, (3,) * 12]


def prompt(random):
    head = random.choice(HEADS)
    return head[: random.randint(1, len(head))] + tuple(random.choices((1, 2), k=random.randint(0, 9)))


def case(policy, random):
    options = {name: random.choice(values) for name, values in OPTIONS[policy].items()}
    options["seed"] = random.randint(0, 3)
    if policy in ("prefix-hash", "cache-aware", "longest-prefix"):
        options["load"] = random.choice(["own", "reported"])
    if policy == "prefix-hash":
        options["ring_points"] = 3
    elif policy != "oracle":
        options["belief"] = random.choice(["own", "own", "events", "truth"])
        if options["belief"] == "own":
            options["tree_tokens"] = random.choice([8, 24, 1 << 20])
            options["evict_interval_s"] = 1.0
            if policy != "cache-aware":
                options["ttl_s"] = random.choice([0.0, 2.0])
    settings = RouterSettings(policy=policy, **options)
    options |= {"belief": belief_of(settings), "load": load_of(settings)}
    return Pair(settings, random.randint(1, 4), [(prompt(random), None) for _ in range(30)], options)


def lead(pair, random):
    """Send every request; between two, anything happens."""
    waiting = {}
    for request in range(len(pair.asks)):
        pair.now += random.choice([0, 1, 700_000_000])
        got, wanted = pair.send(request)
        yield got, wanted
        if got is not None:
            waiting[request] = True
        for _ in range(random.randint(0, 4)):
            what = random.choice(["first", "end", "grow", "accept", "report", "block", "block", "restart"])
            engine = random.randrange(pair.num_engines)
            if what == "accept":
                pair.accept(engine, random.random() < 0.7)
            elif what == "report":
                pair.report(engine, *(random.randint(0, 5) for _ in range(4)), random.randint(5, 8))
                pair.truth(engine, 4 * random.randint(0, 3))
            elif what == "restart":
                pair.restart(engine)
            elif what == "block":
                one = random.randrange(len(pair.asks))
                blocks = len(pair.asks[one][0]) // 4
                if blocks:
                    pair.block_event(engine, one, random.randrange(blocks), random.random() < 0.7)
            elif waiting:
                one = random.choice(sorted(waiting))
                if what == "first" and waiting[one]:
                    pair.first_token(one)
                    waiting[one] = False
                elif what == "grow" and pair.settings.policy == "kv-aware":
                    pair.output_block(one)
                elif what == "end":
                    pair.end(one)
                    del waiting[one]


@pytest.mark.parametrize("seed", range(400 if LONG else 20))
@pytest.mark.parametrize("policy", OPTIONS)
def test_every_decision_is_the_reference_s(policy, seed):
    random = Random(seed)
    pair = case(policy, random)
    router = pair.router
    for got, wanted in lead(pair, random):
        assert got == wanted
        check(router.tree)
        check(router.live)
        if policy != "prefix-hash":
            assert got is None or router.cached.tolist() == pair.reference.cached
            assert shape(router.tree) == {(-1, *keys): v for (_, *keys), v in shape_by_keys(pair).items()}
        for number, engine in enumerate(pair.reference.engines):
            assert router.load[number, IN_FLIGHT] == len(engine.live)
            assert router.load[number, PENDING_TOKENS] == sum(v[1] for v in engine.live.values())
        if policy == "kv-aware" and got is not None:
            distinct = {
                tuple(v[2][: i + 1]) for v in pair.reference.engines[got].live.values() for i in range(len(v[2]))
            }
            assert router.live.held[got] == len(distinct)


def shape_by_keys(pair):
    """The reference's tree, its blocks of tokens as the product's keys."""
    key_of = {}
    for request, (prompt, _) in enumerate(pair.asks):
        blocks = pair.reference.blocks(prompt)
        key_of |= dict(zip(blocks, map(int, sequence_keys(pair.router.block_keys, request, len(blocks))), strict=True))
    return {(0, *(key_of[b] for b in path)): v for (_, *path), v in reference_shape(pair.reference.tree).items()}


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.sampled_from([0.1, 0.5, 2.0]))
def test_a_temperature_draws_by_weight(costs, temperature):
    pair = Pair(RouterSettings(policy="kv-aware", temperature=temperature), len(costs), [((1,), None)], {})
    router = pair.router
    router.cost[:] = costs
    spread = max(costs) - min(costs)
    weights = np.exp(-(np.array(costs) - min(costs)) / (max(spread, 1) * temperature))
    drawn = np.bincount([kv_aware._draw_soft(router) for _ in range(2000)], minlength=len(costs)) / 2000
    assert np.abs(drawn - weights / weights.sum()).max() < 0.05


def test_exp_without_libm():
    x = np.linspace(0, 20, 2001)
    got = np.array([kv_aware._exp_weight(float(v)) for v in x]) / (1 << 24)
    assert np.abs(got - np.exp(-x)).max() < 2e-6


def test_a_policy_of_one_s_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def last(load, cached, accepts, prompt_tokens, session, now):\n    return len(accepts) - 1\n"
        "def most(load, cached, accepts, prompt_tokens, session, now):\n    return cached.argmax()\n"
        "def half(load, cached, accepts, prompt_tokens, session, now):\n    return 0.5\n"
        "number = 3\n"
    )
    asks = [((1,) * 8, None)] * 4
    pair = Pair(RouterSettings(policy=f"{file}:last"), 3, asks, {})
    route = pair.verbs.route
    assert [route(pair.router, pair.seqs, i, 0) for i in range(4)] == [2] * 4
    pair.router.accepts[2] = 0
    assert route(pair.router, pair.seqs, 0, 0) == BAD_CHOICE
    pair.router.accepts[:] = 0
    assert route(pair.router, pair.seqs, 0, 0) == NO_ENGINE
    pair = Pair(RouterSettings(policy=f"{file}:most", belief="events"), 3, asks, {})
    pair.block_event(1, 0, 0, True)
    assert pair.verbs.route(pair.router, pair.seqs, 0, 0) == 1
    assert pair.router.predicted == 4
    for name, complaint in {
        f"{file}:half": "returns the number of an engine",
        f"{file}:number": "has no function number",
        f"{tmp_path}/none.py:x": "no such file",
        "nonsense": "is not known",
    }.items():
        with pytest.raises(UsageError, match=complaint):
            find_choice(name)


@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware"])
def test_who_does_not_hear_of_a_loss_believes_on(policy):
    asks = [((1,) * 8, None)] * 2
    for hears in (True, False):
        pair = Pair(RouterSettings(policy=policy, belief="own", hears_loss=hears), 2, asks, {})
        pair.verbs.hear(pair.router, pair.seqs, SENT, 0, 1, 0)
        pair.verbs.hear(pair.router, pair.seqs, LOST, np.int64(0), 1, 0)
        pair.verbs.route(pair.router, pair.seqs, 1, 0)
        assert pair.router.cached.tolist() == [0, 0 if hears else 8]
