"""Arrivals at a rate that changes: stages and ramps, on and off, and users who were there before."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.workload.build import build_workload
from kvbench.workload.draws import Seeds
from kvbench.workload.profile import on_off, stages


def built(text):
    return build_workload(tomllib.loads(text))[0]


# ------------------------------------------------------------------ stages

RAMP = "arrivals = {process = 'constant', stages = [%s]}"


def seconds(text, count=0):
    return built(f"num_prompts = {count}\n" + RAMP % text).arrival_ns / 1e9


def test_stages_follow_each_other_at_their_rates():
    times = seconds("{rate = 10, seconds = 4}, {rate = 0, seconds = 5}, {rate = 2, seconds = 3}")
    assert times.size == 46
    assert times[:40] == pytest.approx(np.arange(1, 41) / 10)
    assert times[40:] == pytest.approx(9 + np.arange(1, 7) / 2)


def test_a_linear_ramp_is_the_integral_of_its_rate():
    times = seconds("{rate = 0, to = 20, seconds = 10}")
    assert times.size == 100
    assert times**2 == pytest.approx(np.arange(1, 101), abs=1e-4)  # t * t requests by t
    down = seconds("{rate = 20, to = 0, seconds = 10}")
    assert 10 - down[:-1][::-1] == pytest.approx(times[:-1], abs=1e-5)


def test_an_exponential_ramp_doubles_in_equal_times():
    times = seconds("{rate = 1, to = 16, ramp = 'exponential', seconds = 40}")
    counts = [np.count_nonzero(times <= at) for at in (0, 10, 20, 30, 40)]
    assert np.diff(counts) == pytest.approx([14.4, 28.9, 57.7, 115.4], abs=1)


def test_the_last_rate_goes_on():
    times = seconds("{rate = 10, seconds = 1}, {rate = 1, to = 5, seconds = 2}", count=26)
    assert times[-10:] == pytest.approx(3 + np.arange(1, 11) / 5)


def test_gaps_of_stages_are_those_of_the_process():
    one = built("arrivals = {stages = [{rate = 50, seconds = 100}], burstiness = 0.25}\nnum_prompts = 5000")
    plain = built("arrivals = {rate = 50, burstiness = 0.25}\nnum_prompts = 5000")
    assert np.abs(one.arrival_ns - plain.arrival_ns).max() < 5_000_000  # each gap is rounded to a microsecond


@given(
    rows=st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0.1, 20), st.booleans()), max_size=5),
)
@settings(max_examples=60)
def test_times_come_by_the_amount_and_never_go_back(rows):
    tables = [
        {"rate": a, "to": b, "seconds": s, "ramp": "exponential" if e else "linear"}
        for a, b, s, e in [(1.0, 2.0, 3.0, False), *rows]
    ]
    profile = stages(tables)
    total = profile.amounts().sum()
    amounts = np.linspace(0.01, total * 1.5, 200)
    times = profile.times_ns(amounts) / 1e9
    assert (np.diff(times) >= 0).all()
    ends = np.cumsum(profile.seconds)
    for end, reached in zip(ends, np.cumsum(profile.amounts()), strict=True):
        assert np.count_nonzero(times <= end + 1e-5) == pytest.approx(np.count_nonzero(amounts <= reached), abs=1)


# ------------------------------------------------------------------ on and off


def test_on_and_off_keep_the_mean_rate_and_are_bursty():
    text = "num_prompts = 60000\narrivals = {process = 'on-off', rate = 20, off_rate = 2, on_s = 4, off_s = 12}"
    times = built(text).arrival_ns / 1e9
    assert times.size / times[-1] == pytest.approx(20, rel=0.15)
    counts = np.bincount(times.astype(np.int64))
    assert counts.var() / counts.mean() > 10  # Poisson has 1
    assert np.quantile(counts, 0.3) < 6 < 60 < np.quantile(counts, 0.9)


def test_times_on_and_off_are_exponential():
    profile = on_off(10, 0, 2.0, 6.0, 1e5, Seeds(arrivals=3), 0)
    on, off = profile.seconds[profile.start > 0], profile.seconds[profile.start == 0]
    assert (on.mean(), off.mean()) == (pytest.approx(2, rel=0.1), pytest.approx(6, rel=0.1))
    assert on.std() == pytest.approx(2, rel=0.15)


def test_draws_of_on_and_off_are_pinned():
    text = "num_prompts = 5\nseed = 1\narrivals = {process = 'on-off', rate = 5, on_s = 2, off_s = 3}"
    assert built(text).arrival_ns.tolist() == PINNED_ON_OFF


PINNED_ON_OFF = [32262000, 107981000, 164663000, 178260000, 308644000]


# ------------------------------------------------------------------ users

USERS = """
num_prompts = 6000
arrivals = {process = 'users', users = 200, response_s = 3}
sessions = {turns = {distribution='uniform', min=1, max=7}, think_s = {distribution='exponential', mean=12}}
lengths = {prompt = 10, output = 5}
"""


def test_a_user_waits_for_his_answer_and_thinks():
    requests = built(USERS)
    assert len(requests) == 6000
    openers = np.flatnonzero(requests.after == NONE)
    assert openers.size == 200
    others = np.setdiff1d(np.arange(6000), openers)
    assert (requests.after[others] == others - 1).all()
    assert requests.think_ns[others].mean() == pytest.approx(12e9, rel=0.05)
    assert np.diff(np.append(openers, 6000)).min() >= 29


def test_at_the_start_users_are_anywhere_in_their_work():
    requests = built(USERS)
    openers = np.flatnonzero(requests.after == NONE)
    # what is left of an exponential time is exponential; of the 3 s of an answer in 15 s nothing is left
    assert np.mean(requests.arrival_ns[openers]) == pytest.approx(12e9, rel=0.2)
    # a request in the middle of a session holds what was said before
    turns = requests.turn[openers]
    later = requests.turn[np.setdiff1d(np.arange(6000), openers)]
    assert turns.mean() == pytest.approx(later.mean(), abs=0.4)
    assert (requests.prompt_tokens == 10 + 15 * requests.turn).all()


def test_constant_users_are_spread_over_their_cycle():
    text = USERS.replace("{distribution='exponential', mean=12}", "12").replace(
        "{distribution='uniform', min=1, max=7}", "1"
    )
    requests = built(text)
    first = requests.arrival_ns[requests.after == NONE] / 1e9
    assert np.quantile(first, [0.1, 0.5, 0.9]) == pytest.approx([1.5, 7.5, 13.5], abs=1.2)
    assert first.max() < 15.1


# ------------------------------------------------------------------ bad input

WRONG = {
    "rate beside stages": ("arrivals = {rate = 3, stages = [{rate = 1, seconds = 2}]}", "remove one of the two"),
    "untimed": ("arrivals = {process='closed', concurrency=2, stages=[{rate=1, seconds=2}]}", "remove one of the two"),
    "no seconds": ("arrivals.stages = [{rate = 1}]", "arrivals.stages[0].seconds must be a number"),
    "zero seconds": ("arrivals.stages = [{rate = 1, seconds = 0}]", "seconds must be above 0"),
    "negative": ("arrivals.stages = [{rate = -1, seconds = 1}]", "arrivals.stages[0].rate must be a number"),
    "misspelt": ("arrivals.stages = [{rate = 1, second = 1}]", "no 'second'; the nearest is seconds"),
    "ramp": ("arrivals.stages = [{rate = 1, seconds = 1, ramp = 'cubic'}]", "ramp is one of linear, exponential"),
    "from nothing": ("arrivals.stages = [{rate=0, to=1, seconds=1, ramp='exponential'}]", "rates above 0 at both ends"),
    "nobody": ("arrivals.stages = [{rate = 0, seconds = 1}]", "bring no request at all"),
    "ends": ("num_prompts = 9\narrivals.stages = [{rate = 2, seconds = 1, to = 0}]", "end at a rate of 0"),
    "not a list": ("arrivals.stages = 3", "arrivals.stages is a list of tables"),
    "on-off": ("arrivals.process = 'on-off'", "needs a mean arrivals.rate"),
    "off above": ("arrivals = {process = 'on-off', rate = 3, off_rate = 4}", "above the mean arrivals.rate"),
    "off alone": ("arrivals = {rate = 3, off_rate = 1}", "arrivals.off_rate needs arrivals.process = on-off"),
    "bursty": ("arrivals = {process = 'on-off', rate = 3, burstiness = 2}", "set the process to gamma"),
    "no users": ("arrivals.process = 'users'", "needs arrivals.users of at least 1"),
    "users in phases": ("arrivals = {process='users', users=2}\n[[phase]]\n[[phase]]", "remove the other phases"),
    "calls of users": ("arrivals = {process='users', users=2}\nagents.calls = 2", "neither agents.calls nor"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrivals_are_explained(name):
    text, expected = WRONG[name]
    with pytest.raises(UsageError) as caught:
        built(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
