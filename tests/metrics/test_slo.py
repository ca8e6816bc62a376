"""Goodput of the small journal, by hand: TTFT 11 and 22 ms, TPOT 10 ms and none, E2EL 41 and 22 ms."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.journal import CANCELLED, FINISHED
from kvbench.metrics.latency import summarise
from kvbench.metrics.slo import Slo
from tests.runs import counters, journal, requests


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft=11), 1),
        (Slo(ttft=10.999999), 0),
        (Slo(ttft=22), 2),
        (Slo(ttft=22, tpot=9.9), 1),  # the one with a single token keeps any bound on the others
        (Slo(e2el=30), 1),
        (Slo(e2el=41, tpot=10), 2),
    ],
)
def test_bounds_are_inclusive_and_all_must_hold(slo, good):
    summary = summarise(journal(), requests(), counters(), slo=slo)
    assert summary["goodput"] == pytest.approx(good / 0.041)
    assert summary["slo_share"] == good / 4  # refused and cut off ones kept no promise


def test_who_gave_up_does_not_count():
    one = journal(status=np.array([FINISHED, FINISHED, CANCELLED, CANCELLED]))
    assert summarise(one, requests(), counters(), slo=Slo(ttft=11))["slo_share"] == 0.5


def test_without_a_promise_there_is_no_goodput():
    summary = summarise(journal(), requests(), counters())
    assert summary["goodput"] is summary["slo_share"] is None
    assert str(Slo(ttft=200, tpot=50)) == "ttft:200 tpot:50"
