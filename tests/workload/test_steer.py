"""sharing.hit_rate reaches the asked rate or says why not; arrivals.exact_rate rescales gaps as vLLM does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.workload.build import build_workload
from kvbench.workload.steer import infinite_hit_rate

from .test_formats_text import tokens


def made(**tables: Any) -> Any:
    return build_workload({"num_prompts": 200, **tables})[0]


def plain_hit_rate(requests: Any, block: int) -> float:
    """Token by token: whole leading blocks among all prompts, and answers but their last token, of requests before."""
    known: set[tuple[Any, ...]] = set()
    hits = 0
    for i in range(len(requests)):
        prompt = tokens(requests, i)
        blocks = [tuple(prompt[: (k + 1) * block]) for k in range((len(prompt) - 1) // block)]
        found = next((k for k, b in enumerate(blocks) if b not in known), len(blocks))
        hits += found * block
        said = [(int(requests.output_stream[i]), k) for k in range(int(requests.output_tokens[i]) - 1)]
        whole = prompt + said
        known |= {tuple(whole[: (k + 1) * block]) for k in range(len(whole) // block)}
    return hits / int(requests.prompt_tokens.sum())


SHARED = {"lengths": {"prompt": {"distribution": "uniform", "min": 20, "max": 90}, "output": 12},
          "sharing": {"groups": 5, "prefix": 40, "zipf": 1.0}}  # fmt: skip


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("turns", [1, 3])
def test_the_rate_is_that_of_a_plain_reading(block, turns):
    requests = build_workload({"num_prompts": 60, **SHARED, "sessions": {"turns": turns}})[0]
    assert infinite_hit_rate(requests, block) == pytest.approx(plain_hit_rate(requests, block), abs=1e-12)


@pytest.mark.parametrize("asked", [0.1, 0.35, 0.6, 0.85])
@pytest.mark.parametrize("block", [1, 16, 64])
def test_the_asked_rate_is_reached(asked, block):
    sharing = {**SHARED["sharing"], "hit_rate": asked}
    requests = made(**{**SHARED, "sharing": sharing}, block_tokens=block)
    assert infinite_hit_rate(requests, block) == pytest.approx(asked, abs=0.01)
    assert f"sharing.hit_rate = {asked:g}: sharing.prefix is drawn times" in requests.notes[-1]
    again = made(**{**SHARED, "sharing": sharing}, block_tokens=block)
    assert again.fingerprint() == requests.fingerprint()


def test_what_cannot_be_reached_is_told():
    many = made(sharing={"groups": 400, "prefix": 50, "hit_rate": 0.95})
    assert "is out of reach, so nothing is steered: other prefixes give" in many.notes[-1]
    assert many.fingerprint() == made(sharing={"groups": 400, "prefix": 50}).fingerprint()
    turns = made(sharing={"groups": 4, "hit_rate": 0.05}, sessions={"turns": 9}, lengths={"prompt": 50, "output": 50})
    assert "is out of reach" in turns.notes[-1]
    with pytest.raises(UsageError, match=r"sharing\.hit_rate steers shared prefixes; set sharing\.groups"):
        made(sharing={"hit_rate": 0.5})


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_exact_rate(burstiness):
    rated = {"rate": 8.0, "burstiness": burstiness}
    drawn, exact = made(arrivals=rated), made(arrivals={**rated, "exact_rate": True})
    assert exact.arrival_ns[-1] == 200 / 8 * 1e9
    assert drawn.arrival_ns[-1] != exact.arrival_ns[-1]
    factor = exact.arrival_ns[-1] / drawn.arrival_ns[-1]
    assert np.abs(exact.arrival_ns - drawn.arrival_ns * factor).max() <= 1_000  # whole microseconds
    assert "gaps of arrivals are rescaled: 200 requests in 25 s" in exact.notes[0]
    assert made(arrivals={"exact_rate": True}).arrival_ns.tolist() == [0] * 200


def test_a_drawn_rate_that_is_off_is_told():
    off = made(arrivals={"rate": 8.0, "burstiness": 0.05})
    assert "requests/s where 8 were asked; arrivals.exact_rate=true rescales them" in off.notes[0]
    with pytest.raises(UsageError, match=r"arrivals\.exact_rate rescales to one rate"):
        made(arrivals={"exact_rate": True, "stages": [{"rate": 5, "seconds": 10}]})
