"""Policies that do not look at a prompt, against the reference, in random orders of everything that can happen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.routing.router import HELD_TOKENS, IN_FLIGHT, PENDING_TOKENS
from kvbench.routing.settings import ROUTER_KEYS, RouterSettings, check_router

from .systems import Pair

LOADS = [(load, by) for load in ("own", "reported") for by in ("requests", "queued-tokens", "kv")]
LOADS.append(("own", "rate"))


@st.composite
def cases(draw, policies):
    policy = draw(st.sampled_from(policies))
    load, by = draw(st.sampled_from(LOADS))
    assign = draw(st.sampled_from(["ring", "modulo", "sticky", "sticky-fewest"]))
    seed = draw(st.integers(0, 5))
    num = draw(st.integers(1, 5))
    asks = [((1,) * draw(st.integers(1, 30)), draw(st.sampled_from([None, 3, 7, 8, 9, 12]))) for _ in range(25)]
    options = {"seed": seed, "load": load, "load_by": by, "assign": assign, "ring_points": draw(st.integers(1, 9))}
    options |= {"counter": draw(st.sampled_from(["one", "each-set"])), "window_s": draw(st.sampled_from([2e-9, 1.0]))}
    return Pair(RouterSettings(policy=policy, **options), num, asks, options), draw(st.data())


def events(pair, data):
    """Send every request; in between, what runs gets its first token or ends, engines come, go and report."""
    waiting = {}
    for request in range(len(pair.asks)):
        pair.now += data.draw(st.integers(0, 2))
        got, wanted = pair.send(request)
        yield got, wanted
        if got is not None:
            waiting[request] = True
        for _ in range(data.draw(st.integers(0, 3))):
            what = data.draw(st.sampled_from(["first", "end", "accept", "report"]))
            engine = data.draw(st.integers(0, pair.num_engines - 1))
            if what == "accept":
                pair.accept(engine, data.draw(st.booleans()))
            elif what == "report":
                pair.report(engine, *(data.draw(st.integers(0, 9)) for _ in range(4)), data.draw(st.integers(9, 12)))
            elif waiting:
                one = data.draw(st.sampled_from(sorted(waiting)))
                if what == "first" and waiting[one]:
                    pair.first_token(one)
                    waiting[one] = False
                elif what == "end":
                    pair.end(one)
                    del waiting[one]


@given(cases(["round-robin", "random", "least-loaded", "power-of-two", "session"]))
def test_every_decision_is_the_reference_s(case):
    pair, data = case
    for got, wanted in events(pair, data):
        assert got == wanted
        for number, engine in enumerate(pair.reference.engines):
            assert pair.router.load[number, IN_FLIGHT] == len(engine.live)
            assert pair.router.load[number, PENDING_TOKENS] == sum(v[1] for v in engine.live.values())
            assert pair.router.load[number, HELD_TOKENS] == sum(v[0] for v in engine.live.values())


def test_a_ring_moves_only_the_keys_of_the_engine_that_went():
    asks = [((1,), session) for session in range(400)]
    pair = Pair(RouterSettings(policy="session"), 5, asks)
    before = [pair.send(i)[0] for i in range(400)]
    pair.accept(2, False)
    after = [pair.send(i)[0] for i in range(400)]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != 2)
    assert 2 in before
    assert 2 not in after
    assert np.bincount(before, minlength=5).min() > 400 / 5 / 2


@pytest.mark.parametrize("seed", range(3))
def test_two_choices_are_better_than_one(seed):
    """Balls into bins: the fullest of two choices is far below that of one."""
    fullest = {}
    for policy in ("random", "power-of-two"):
        pair = Pair(RouterSettings(policy=policy, seed=seed), 50, [((1,), None)] * 500, {"seed": seed})
        for i in range(500):
            pair.send(i)
        fullest[policy] = pair.router.load[:, IN_FLIGHT].max()
    assert fullest["power-of-two"] <= 13 < fullest["random"]


def test_every_field_is_a_key():
    assert {key.name for key in ROUTER_KEYS} == {f"router.{name}" for name in RouterSettings.__dataclass_fields__}
    assert all(len(f"{key.meaning}") < 110 for key in ROUTER_KEYS)


def test_a_key_of_another_policy_is_named():
    with pytest.raises(UsageError, match=r"--set: router\.assign has no effect under router\.policy = random"):
        check_router(RouterSettings(policy="random", assign="modulo"), {"assign": "--set"})
    with pytest.raises(UsageError, match="needs requests of sessions"):
        check_router(RouterSettings(policy="session"), {}, has_sessions=False)
    check_router(RouterSettings(policy="session", assign="modulo"), {"assign": "--set"})
    with pytest.raises(UsageError, match=r"router\.window_s has no effect while router\.load_by is requests"):
        check_router(RouterSettings(policy="least-loaded", window_s=3.0), {"window_s": "--set"})
    with pytest.raises(UsageError, match=r"set router\.load = own"):
        check_router(RouterSettings(policy="least-loaded", load="reported", load_by="rate"), {"load": "--set"})
