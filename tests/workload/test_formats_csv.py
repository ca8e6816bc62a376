"""BurstGPT, length tables, TraceLab: columns by name, failures, deltas, and what is wrong with a row."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_MS, NS_PER_S

from .files import load

V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
V3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
LAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "x"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_burstgpt_failures_are_left_out_and_counted(tmp_path):
    rows = ["100000,GPT-4,5,7,12,API log", "100001,GPT-4,0,0,0,API log", "100002,GPT-4,9,0,9,API log",
            "100009,GPT-4,6,8,14,API log"]  # fmt: skip
    requests = load(table(tmp_path, V1, *rows))
    assert requests.prompt_tokens.tolist() == [5, 6]
    assert requests.arrival_ns.tolist() == [0, 9 * NS_PER_S]
    assert requests.notes == (
        "2 of 4 rows are failed requests (0 tokens): left out",
        "not read: Model, Total tokens, Log Type",
    )


def test_burstgpt_v3_inserts_columns_and_may_not_start_at_zero(tmp_path):
    rows = ["19440110.0,7,3.5,ChatGPT,5,7,12,Conversation log", "19440111.0,,0.5,GPT-4,6,8,14,API log",
            "19440112.5,7,1,ChatGPT,9,1,10,Conversation log"]  # fmt: skip
    requests = load(table(tmp_path, V3, *rows))
    assert requests.prompt_tokens.tolist() == [5, 6, 9]
    assert requests.output_tokens.tolist() == [7, 8, 1]
    assert requests.arrival_ns.tolist() == [0, NS_PER_S, 5 * NS_PER_S // 2]
    assert (requests.session_id.tolist(), requests.turn.tolist()) == ([0, NONE, 0], [0, 0, 1])
    assert (requests.after == NONE).all()  # every row has a time of its own
    assert requests.notes == ("not read: Elapsed time, Model, Total tokens, Log Type",)


def test_burstgpt_warns_of_its_head(tmp_path):
    head = load(table(tmp_path, V1, "5,GPT-4,5,7,12,API log", "90000,GPT-4,5,7,12,API log"))
    assert "a ramp-up" in head.notes[0]
    assert "trace.start_s" in head.notes[0]


def test_burstgpt_of_failures_alone(tmp_path):
    with pytest.raises(UsageError, match="all 1 rows are failed requests"):
        load(table(tmp_path, V1, "5,GPT-4,0,0,0,API log"))


def test_a_window_of_a_trace(tmp_path):
    path = table(tmp_path, V1, *(f"{100_000 + t},GPT-4,{t + 1},7,0,API log" for t in range(0, 100, 10)))
    requests = load(path, start_s=35.0, duration_s=30.0)
    assert requests.prompt_tokens.tolist() == [41, 51, 61]
    assert requests.arrival_ns.tolist() == [0, 10 * NS_PER_S, 20 * NS_PER_S]
    with pytest.raises(UsageError, match=r"nothing arrives from trace\.start_s 500"):
        load(path, start_s=500.0)


def test_length_tables_have_no_arrivals(tmp_path):
    rows = ["100,20,120,5.0", "1,4500,4501,0.0002", "7,3,10,2.3"]
    path = table(tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", *rows)
    requests = load(path)
    assert requests.prompt_tokens.tolist() == [100, 1, 7]
    assert requests.output_tokens.tolist() == [20, 4_500, 3]
    assert requests.arrival_ns.tolist() == [0, 0, 0]
    assert requests.notes[0] == "not read: num_total_tokens, pd_ratio"
    assert "the trace has no arrivals: all 3" in requests.notes[1]
    drawn = load(path, rate=2.0, arrival_seed=3)
    assert drawn.arrival_ns[0] == 0
    assert (np.diff(drawn.arrival_ns) > 0).all()
    assert "drawn at 2/s, burstiness 1, seed 3" in drawn.notes[1]
    assert load(path, rate=2.0, arrival_seed=3).fingerprint() == drawn.fingerprint()
    assert load(path, rate=2.0, arrival_seed=4).fingerprint() != drawn.fingerprint()
    assert load(path, rate=2.0, arrival_seed=3, burstiness=0.2).fingerprint() != drawn.fingerprint()


def test_vidur_times_are_seconds(tmp_path):
    requests = load(table(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens", "0.0,5,6", "0.052,7,8"))
    assert requests.arrival_ns.tolist() == [0, 52 * NS_PER_MS]
    assert requests.notes == ()


def test_azure_and_its_conversion_by_vidur_are_the_same(tmp_path):
    stamps = ["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600", "2023-11-16 18:17:04.0781490"]
    azure = load(
        table(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{s},{5 + i},7" for i, s in enumerate(stamps)))
    )
    rows = [f"{t},{5 + i},7" for i, t in enumerate(("0.0", "0.052", "0.098189"))]
    vidur = load(table(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens", *rows))
    assert vidur.fingerprint() == azure.fingerprint()


def test_a_window_of_drawn_arrivals(tmp_path):
    path = table(tmp_path, "num_prefill_tokens,num_decode_tokens", *(f"{i},7" for i in range(1, 50)))
    whole, late = load(path, rate=2.0), load(path, rate=2.0, start_s=10.0)
    assert len(late) == np.count_nonzero(whole.arrival_ns >= 10 * NS_PER_S) < 49


def test_tracelab_input_is_the_delta(tmp_path):
    requests = load(table(tmp_path, LAB, "0,0,0,0,512,64,100", "0,0,1,576,128,64,50", "0,0,2,640,10,1,0"))
    assert requests.prompt_tokens.tolist() == [512, 704, 650]
    assert requests.after.tolist() == [NONE, 0, 1]
    assert requests.think_ns.tolist() == [0, 100 * NS_PER_MS, 50 * NS_PER_MS]
    pieces = prompt_pieces(requests)
    assert pieces[1] == [*pieces[0], (int(requests.output_stream[0]), 0, 64), pieces[1][2]]  # the answer is cached too
    assert pieces[2][:3] == [*pieces[1][:2], (pieces[1][2][0], 0, 64)]  # a prefix shorter than the context


def test_tracelab_a_warm_prefix_is_the_sessions_own(tmp_path):
    requests = load(table(tmp_path, LAB, "0,0,0,1000,5,6,0", "1,9,0,1000,5,6,0"))
    assert requests.prompt_tokens.tolist() == [1_005, 1_005]
    assert np.unique(requests.segment_stream).size == 4


def test_tracelab_sessions_interleave_by_arrival(tmp_path):
    rows = ["b,500,0,0,10,1,7", "a,20,0,0,30,1,5", "b,500,1,11,10,1,0", "a,20,1,31,10,1,0"]
    requests = load(table(tmp_path, LAB, *rows))
    assert requests.prompt_tokens.tolist() == [30, 41, 10, 21]
    assert requests.arrival_ns.tolist() == [0, 0, 480 * NS_PER_MS, 0]
    assert requests.after.tolist() == [NONE, 0, NONE, 2]


def test_tracelab_alias_and_no_arrivals(tmp_path):
    assert (
        load(table(tmp_path, LAB.replace("time", "time(ms)"), "0,3,0,0,5,5,0", "1,9,0,0,6,5,0")).arrival_ns[1]
        == 6 * NS_PER_MS
    )
    header = LAB.replace("session_id", "id").replace("arrival_time,", "")
    requests = load(table(tmp_path, header, "0,0,0,5,5,0", "1,0,0,6,5,0"), rate=1.0)
    assert requests.prompt_tokens.tolist() == [5, 6]
    assert requests.arrival_ns[1] > 0


BAD = {
    "negative": (V1, "9,GPT-4,-5,7,2,API log", ":3: the prompt has -5 tokens"),
    "text": (V1, "9,GPT-4,five,7,2,API log", ":3: Request tokens is 'five', a whole number is wanted"),
    "NaN": (V1, "nan,GPT-4,5,7,2,API log", ":3: Timestamp is 'nan', a number is wanted"),
    "short": (V1, "9,GPT-4,5", ":3: has 3 fields, the header has 6"),
    "100 million tokens": (V1, "9,GPT-4,100000000,7,2,API log", ":3: the prompt has 100000000 tokens, the limit is"),
    "a round missing": (LAB, "0,0,2,0,5,5,0", ":3: round_idx is 2, wanted is 1"),
    "a negative prefix": (LAB, "0,0,1,-4,5,5,0", ":3: prefix_len is -4, which is negative"),
}
GOOD = {V1: "5,GPT-4,5,7,12,API log", LAB: "0,0,0,0,5,5,0"}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows(tmp_path, name):
    header, bad, said = BAD[name]
    path = table(tmp_path, header, GOOD[header], bad)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}{said}")
    assert len(load(path, skip_bad_rows=True)) == 1


def test_ten_million_tokens_are_a_prompt(tmp_path):
    assert load(table(tmp_path, V1, "5,GPT-4,10000000,7,2,API log")).prompt_tokens.tolist() == [10_000_000]


def prompt_pieces(requests):
    rows = np.stack([requests.segment_stream, requests.segment_start, requests.segment_length], axis=1).tolist()
    offset = requests.segment_offset.tolist()
    return [[tuple(piece) for piece in rows[a:b]] for a, b in pairwise(offset)]
