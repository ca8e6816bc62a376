"""A budget in time: what it holds to, how deep chunks shrink, what it does not go with. The reference is elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import Result, run
from kvbench.bench.system import build_system
from kvbench.core.errors import UsageError
from kvbench.core.journal import STEP_COLUMNS

_MIXED = (
    *("num_prompts=40", "arrivals.rate=6", "lengths.output=60", "preset=vllm-0.12", "block_tokens=16"),
    'lengths.prompt={distribution="mixture", parts=[64, 9000], weights=[0.8, 0.2]}',
)


def run_with(*changes: str) -> Result:
    return run(configure(None, changes=[("test", text) for text in changes]), None, True)


def column(result: Result, name: str) -> np.ndarray:
    return result.journal.steps[:, STEP_COLUMNS.index(name)]


def test_steps_that_decode_keep_to_the_target():
    """But for the block that is computed in any case, and more than one prompt in a step."""
    free, held = run_with(*_MIXED), run_with(*_MIXED, "scheduler.step_target_ms=30")
    mixed = (column(held, "decode_seqs") > 0) & (column(held, "prefill_seqs") == 1)
    assert mixed.sum() > 20
    over = column(held, "duration_ns")[mixed] > 30e6
    assert (column(held, "prefill_tokens")[mixed][over] <= 16).all()
    assert (column(free, "duration_ns") > 100e6).any()
    p99 = [one.record.summary.latencies["itl"].p99 for one in (free, held)]
    assert p99[1] < 31 < 100 < p99[0]


def test_chunks_shrink_as_the_context_grows():
    one = ("num_prompts=1", "lengths.prompt=60000", "lengths.output=1", "preset=vllm-0.12", "max_model_len=70000")
    even, shrinking = (run_with(*one, f"scheduler.equal_chunks={on}") for on in ("false", "true"))
    tokens, times = column(shrinking, "prefill_tokens"), column(shrinking, "duration_ns")
    assert tokens.sum() == column(even, "prefill_tokens").sum() == 60000
    assert (np.diff(tokens) <= 0).all()
    assert tokens[-2] < 0.7 * tokens[0]
    assert times.max() <= times[0]
    assert column(even, "duration_ns").max() > 1.4 * times[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("scheduler.enable_chunked_prefill=false",), "cuts prompts"),
        (("cache.copy_on_write=true", "overlap=false"), "needs continuous batching"),
        (("scheduler.prefill_schedule_interval=2",), "set one of them"),
        (("pd.prefill=1", "pd.decode=1"), "engines that step alone"),
        (("clock=measured",), "asks the modelled step times"),
        (("preset=sglang",), "is a rule of scheduler.discipline = token-budget"),
    ],
)
def test_what_it_does_not_go_with_is_one_line(changes, says):
    with pytest.raises(UsageError, match=says):
        build_system(configure(None, changes=[("test", t) for t in ("scheduler.step_target_ms=20", *changes)]).config)
