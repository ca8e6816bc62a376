"""Files that are no trace, and changes to the times of one."""

from __future__ import annotations

import gzip
import math
import os

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_MS, NS_PER_S
from kvbench.workload.trace import load_trace

from .files import csv, info, jsonl, load, row

NOT_TRACES = {
    "empty": (b"", "the trace is empty"),
    "blank": (b" \r\n\n", "the trace is empty"),
    "binary": (b"\x7fELF\x02\x01\x00\x00", "is a binary file"),
    "gzip": (gzip.compress(b"{}")[:-3], "is a damaged gzip file"),
    "latin-1": (b'{"a": 1}\n{"a": "\xe4"}\n', ":2: is not UTF-8 text"),
    "prose": (b"hello\nworld\n", ":1: 'hello' begins neither JSON nor a CSV"),
    "JSON array": (b'[{"timestamp": 0}]', ":1: an object of 'timestamp' is of no known format; the nearest is"),
    "numbers": (b"[1, 2]", ":1: is a JSON array that holds no objects"),
}


@pytest.mark.parametrize("name", NOT_TRACES)
def test_not_a_trace(tmp_path, name):
    data, text = NOT_TRACES[name]
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert text in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        load(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="everything may be read here")
def test_unreadable(tmp_path):
    path = jsonl(tmp_path, row())
    path.chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        load(path)


def test_asking_for_more_than_there_is(tmp_path):
    requests = load(jsonl(tmp_path, row(), row()), num_prompts=5)
    assert len(requests) == 2
    assert requests.notes == ("num_prompts asks for 5 requests, the trace has 2",)


def test_first_rows_spare_later_faults(tmp_path):
    assert len(load(jsonl(tmp_path, row(), "", row(), "{"), num_prompts=2)) == 2


def test_sha256_is_of_the_whole_file(tmp_path):
    path = jsonl(tmp_path, row(), row())
    assert info(path, num_prompts=1).sha256 == info(path).sha256
    assert load_trace(path)[1].path == str(path)


def test_a_window_is_of_scaled_times(tmp_path):
    path = jsonl(tmp_path, *(row(1_000_000 * k) for k in range(10)))  # us, in a format of ms
    seen = load(path, time_scale=0.001, start_s=2.0, duration_s=3.0)
    assert seen.arrival_ns.tolist() == [0, NS_PER_S, 2 * NS_PER_S]


def test_time_scale_moves_arrivals_and_delays(tmp_path):
    rows = (row(0, session_id="a"), row(None, session_id="a", delay=100), row(1_000))
    requests = load(jsonl(tmp_path, *rows), time_scale=0.5)
    assert requests.arrival_ns.tolist() == [0, 0, 500 * NS_PER_MS]
    assert requests.think_ns.tolist() == [0, 50 * NS_PER_MS, 0]


def test_rate_moves_arrivals_only(tmp_path):
    rows = (row(0, session_id="a"), row(None, session_id="a", delay=100), row(1_000), row(3_000))
    requests = load(jsonl(tmp_path, *rows), rate=4.0)
    assert requests.think_ns[1] == 100 * NS_PER_MS
    assert requests.arrival_ns[3] == 0.5 * NS_PER_S  # two gaps of 1 / 4 s
    assert requests.arrival_ns[2] == pytest.approx(requests.arrival_ns[3] / 3, abs=1)


def test_infinite_rate_is_all_at_once(tmp_path):
    assert load(jsonl(tmp_path, row(0), row(9)), rate=math.inf).arrival_ns.tolist() == [0, 0]


def test_rate_of_a_single_moment(tmp_path):
    with pytest.raises(UsageError, match=r"trace\.rate cannot stretch"):
        load(jsonl(tmp_path, row(), row()), rate=2.0)
    assert load(jsonl(tmp_path, row()), rate=2.0).arrival_ns.tolist() == [0]


def test_times_beyond_the_clock(tmp_path):
    with pytest.raises(UsageError, match="70 years"):
        load(jsonl(tmp_path, row(0), row(10**9)), time_scale=1e6)


def test_jitter_spreads_within_half_a_tick_and_says_so(tmp_path):
    path = jsonl(tmp_path, *(row(3_000 * (i // 25)) for i in range(500)))
    coarse, spread = load(path), load(path, jitter_ms=3_000.0, arrival_seed=7)
    assert "trace.jitter_ms=3000 spreads them" in coarse.notes[0]
    assert "up to 1500 ms either way" in spread.notes[0]
    assert spread.arrival_ns[0] == 0
    assert np.unique(spread.arrival_ns).size > 490
    gap = spread.arrival_ns - coarse.arrival_ns  # compared in order: neighbours may have changed places
    assert np.ptp(gap) <= 3_000 * NS_PER_MS
    assert np.ptp(spread.arrival_ns) == pytest.approx(np.ptp(coarse.arrival_ns), rel=0.06)
    assert load(path, jitter_ms=3_000.0, arrival_seed=7).fingerprint() == spread.fingerprint()
    assert load(path, jitter_ms=3_000.0, arrival_seed=8).fingerprint() != spread.fingerprint()


def test_jitter_keeps_each_row_with_its_prompt_and_session(tmp_path):
    rows = [row(0, 500 + i, 1 + i, session_id=f"s{i}") for i in range(40)]
    rows += [row(None, 700 + i, 50 + i, session_id=f"s{i}", delay=i) for i in range(40)]
    path = jsonl(tmp_path, *rows)
    plain, spread = load(path), load(path, jitter_ms=100.0)
    assert spread.prompt_tokens.tolist() != plain.prompt_tokens.tolist()

    def table(r):
        cells = zip(r.prompt_tokens, r.output_tokens, r.session_id, r.turn, r.think_ns, strict=True)
        pieces = [
            tuple(r.segment_length[a:b]) for a, b in zip(r.segment_offset[:-1], r.segment_offset[1:], strict=True)
        ]
        ahead = [None if a == NONE else int(r.prompt_tokens[a]) for a in r.after]
        return sorted(zip(cells, pieces, ahead, strict=True), key=str)

    assert table(spread) == table(plain)
    spread.check()


def test_max_tokens_of_a_trace(tmp_path):
    path = csv(tmp_path, "2023-11-16 18:17:04,5,10", "2023-11-16 18:17:05,5,100")
    assert load(path, max_tokens="1.5x").max_tokens.tolist() == [15, 150]
    capped = load(path, max_tokens=64)
    assert capped.max_tokens.tolist() == [64, 64]
    assert capped.output_tokens.tolist() == [10, 64]
    assert capped.notes == ("lengths.max_tokens ends 1 of 2 outputs early",)
