"""Arrivals drawn anew: the same requests at the same mean, without bursts."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.requests import NONE
from kvbench.workload.retime import as_poisson, recorded_rate

from ..report.pictures.made import many_requests


@pytest.mark.parametrize("rate", [0.0, 50.0])
def test_poisson_keeps_requests_and_mean(rate):
    requests = many_requests(4000)
    assert recorded_rate(requests) == pytest.approx(200)
    found = as_poisson(requests, rate, 3)
    assert (found.prompt_tokens == requests.prompt_tokens).all()
    assert (np.diff(found.arrival_ns) >= 0).all()
    assert recorded_rate(found) == pytest.approx(rate or 200, rel=0.05)
    gaps = np.diff(found.arrival_ns)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.06)  # exponential
    assert as_poisson(requests, rate, 3).arrival_ns.tolist() == found.arrival_ns.tolist()
    assert as_poisson(requests, rate, 4).arrival_ns.tolist() != found.arrival_ns.tolist()
    assert (requests.after == NONE).all()
