"""What an engine would not start with, would not take, cuts short or gives up is told: what, how many, why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.refusals import failures
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.core.errors import UsageError
from kvbench.core.journal import FAILED, FINISHED, REFUSED

CHUNKLESS = "scheduler.enable_chunked_prefill=false"


def configured(*texts: str):
    return configure("chat", None, [("here", text) for text in ("num_prompts=30", *texts)])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            ["scheduler.max_num_batched_tokens=100", "scheduler.max_num_seqs=256"],
            "less than scheduler.max_num_seqs = 256",
        ),
        ([CHUNKLESS, "scheduler.max_num_batched_tokens=2048"], "less than max_model_len = 131072, and without chunks"),
        (["preset=vllm-0.33", "scheduler.long_prefill_token_threshold=200000"], "more than max_model_len = 131072"),
        (["scheduler.max_num_seqs=8", "scheduler.max_num_active_seqs=9"], "more than scheduler.max_num_seqs = 8"),
        (["preset=sglang", "scheduler.chunked_prefill_size=8", "block_tokens=16"], "less than a block of 16 tokens"),
    ],
)
def test_sizes_that_no_server_starts_with_are_refused(changes, why):
    with pytest.raises(UsageError, match=f"^here: scheduler.*{why}"):
        build_system(configured(*changes).config)


@pytest.mark.parametrize(
    "changes",
    [
        ["preset=vllm-0.19", "scheduler.long_prefill_token_threshold=200000"],  # 0.19 does not look
        [CHUNKLESS, "scheduler.max_num_batched_tokens=2048", "max_model_len=2048"],
        [CHUNKLESS],  # sizes that are left open follow
        ["scheduler.max_num_batched_tokens=100"],
        ["batching=static", "scheduler.max_num_batched_tokens=100", "scheduler.max_num_seqs=256"],
    ],
)
def test_these_start(changes):
    build_system(configured(*changes).config)


def test_open_sizes_fit_each_other():
    config = build_system(configured(CHUNKLESS).config).config
    assert config["scheduler.max_num_batched_tokens"] == config["max_model_len"] == 131072
    config = build_system(configured("scheduler.max_num_batched_tokens=100").config).config
    assert config["scheduler.max_num_seqs"] == 100


def test_refused_and_clipped_requests_are_counted_with_the_reason(tmp_path):
    result = run(configured("max_model_len=1500"))
    refused = result.record.summary.statuses["refused"]
    (told,) = result.warnings
    assert told == (
        f"{refused} of 30 sequences were refused at arrival: {refused} exceed max_model_len (1500) with prompt + "
        "max_tokens"
    )
    (tmp_path / "even.toml").write_text("num_prompts = 30\n[lengths]\nprompt = 1000\noutput = 24\n")
    changes = [("here", "preset=sglang"), ("here", "max_model_len=1024")]
    result = run(configure(str(tmp_path / "even.toml"), None, changes))
    assert result.warnings == ()
    assert result.record.summary.statuses == {"finished": 30}
    assert set(result.journal.output_tokens) == {22}
    assert any(
        "max_tokens of 30 requests was clipped" in n and "60 output tokens fewer" in n for n in result.record.notes
    )


def test_sequences_that_failed_are_told_with_the_reason():
    journal = run(configured()).journal
    assert failures(journal) == ()
    status = journal.status.copy()
    status[:3] = FAILED
    scheduled = np.where(np.arange(status.size) < 1, -1, journal.scheduled_ns)
    (told,) = failures(replace(journal, status=status, scheduled_ns=scheduled))
    assert told.startswith(
        "3 of 30 sequences FAILED: 2 ran out of memory with nobody left to make room, 1 could not be"
    )
    (told,) = failures(replace(journal, status=status, scheduled_ns=scheduled), several=True)
    assert told.endswith("2 had begun when their engine or a transfer failed, 1 found no engine that could run them")


PUSH = ("preset=sglang", "block_tokens=1", "pd.prefill=1", "pd.decode={engines=1, cache.blocks=1400}")


@pytest.mark.parametrize("until", ["connection", "memory"])
def test_what_never_fits_beside_the_reserve_is_refused_and_keeps_nobody_waiting(until):
    result = run(configured(*PUSH, f"pd.bootstrap_until={until}"))
    (told,) = result.warnings
    assert "sequences were refused at arrival" in told
    assert "exceed the decode side's cache with pd.reserved_decode_tokens beside the prompt" in told
    refused = result.journal.status == REFUSED
    prompt = result.requests.prompt_tokens[result.journal.request_index]
    np.testing.assert_array_equal(refused, prompt + 512 > 1400)
    assert (result.journal.status[~refused] == FINISHED).all()
