"""WEKA, Bailian, LLMServingSim: ids and sessions, and the mistakes that are made with them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import EXPLICIT, NONE
from kvbench.core.units import NS_PER_S

from .examples import lines, weka
from .files import load


def session(folder, name="a.json", **changed):
    path = folder / name
    path.write_text(json.dumps(weka(**changed)))
    return path


def streams(requests):
    return [s.tolist() for s in np.split(requests.segment_stream, requests.segment_offset[1:-1])]


def test_weka_ids_cover_whole_blocks_and_the_rest_is_nobody_elses(tmp_path):
    requests = load(session(tmp_path))
    assert requests.prompt_tokens.tolist() == [9, 14, 8, 12, 3]
    assert requests.block_hint == 4
    found = streams(requests)
    assert [len(row) for row in found] == [3, 4, 2, 3, 1]
    assert found[0][:2] == found[1][:2]
    tails = [found[0][2], found[1][3], found[4][0]]
    assert len(set(tails) | {s for row in found for s in row[:2]}) == len(tails) + 4


def test_weka_turns_follow_by_think_time_and_subagents_run_beside(tmp_path):
    requests = load(session(tmp_path))
    assert requests.after.tolist() == [NONE, 0, 1, 2, 1]
    # think_time; t - duration = 15 is where the request before ended; think_time; think_time, from the same request
    assert (requests.think_ns / NS_PER_S).tolist() == [0, 10, 0, 2, 6]
    assert requests.session_id.tolist() == [0, 0, 1, 1, 0]
    assert requests.turn.tolist() == [0, 1, 0, 1, 2]


def test_weka_without_think_time_takes_what_the_clock_leaves(tmp_path):
    rows = weka()["requests"][:2]
    del rows[1]["think_time"]
    assert (load(session(tmp_path, requests=rows)).think_ns / NS_PER_S).tolist() == [0, 10]
    del rows[0]["api_time"]
    assert (load(session(tmp_path, requests=rows)).think_ns / NS_PER_S).tolist() == [0, 12]


def test_weka_subagent_times_of_the_session_clock(tmp_path):
    """Newer captures count a subagent's t from the session's start."""
    rows = weka()["requests"]
    for inner, t in zip(rows[2]["requests"], (16.5, 19.5), strict=True):
        inner["t"] = t
    assert load(session(tmp_path, requests=rows)).think_ns[2] == 1.5 * NS_PER_S


def test_weka_ids_are_local_to_a_file_unless_they_say_otherwise(tmp_path):
    for name in ("a.json", "b.json"):
        session(tmp_path, name)
    apart = streams(load(tmp_path))
    assert not set(apart[0]) & set(apart[5])
    assert "ids are local to a file" in load(tmp_path).notes[0]
    for name in ("a.json", "b.json"):
        session(tmp_path, name, hash_id_scope="global")
    common = streams(load(tmp_path))
    assert common[0][:2] == common[5][:2]


def test_weka_arrivals_between_sessions_are_drawn(tmp_path):
    for name in ("a.json", "b.json", "c.json"):
        session(tmp_path, name)
    still = load(tmp_path)
    assert not still.arrival_ns.any()
    assert "all 3 sessions or requests start at once" in still.notes[-1]
    drawn = load(tmp_path, rate=0.5)
    starts = drawn.arrival_ns[drawn.after == NONE]
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()


def test_weka_forks_are_told(tmp_path):
    for name in ("a.json", "b.json"):
        session(tmp_path, name)
    session(tmp_path, "c.json", requests=weka()["requests"][1:])
    assert "2 of 3 sessions begin with the same two requests as another" in load(tmp_path).notes[1]


def test_weka_mixed_block_sizes(tmp_path):
    session(tmp_path, "a.json")
    session(tmp_path, "b.json", block_size=64)
    with pytest.raises(UsageError, match=r"mixed block sizes: 4 in .*a\.json, 64 in .*b\.json"):
        load(tmp_path)


WEKA_FAULTS = {
    "too many": ({"in": 9, "hash_ids": [1, 2, 3, 4]}, "9 tokens are 2 whole blocks of 4, not 4 ids"),
    "no ids": ({"hash_ids": None}, "has no list of ids in hash_ids"),
    "wrong ids": ({"hash_ids": [1, "x"]}, "has no list of ids in hash_ids"),
    "negative": ({"in": -9}, "in is -9, which is negative"),
    "NaN": ({"out": float("nan")}, "out is nan, a number is wanted"),
    "text": ({"t": "soon"}, "t is 'soon', a number is wanted"),
}


@pytest.mark.parametrize("name", WEKA_FAULTS)
def test_weka_faults_name_file_and_request(tmp_path, name):
    changed, said = WEKA_FAULTS[name]
    rows = weka()["requests"]
    rows[1] |= changed
    path = session(tmp_path, requests=rows)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: requests[1]: {said}")
    requests = load(path, skip_bad_rows=True)
    assert requests.after.tolist() == [NONE, NONE, 1, 0]  # the subagent's parent is gone: it comes by itself


def bailian(**changed):
    return {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 20, "output_length": 4,
            "hash_ids": [1, 2]} | changed  # fmt: skip


def write(folder, *rows):
    path = folder / "x"
    path.write_bytes(lines(*rows))
    return path


def test_bailian_times_are_seconds_and_blocks_16_tokens(tmp_path):
    rows = [bailian(), bailian(chat_id=2, timestamp=1.5, parent_chat_id=1), bailian(chat_id=3, timestamp=2)]
    requests = load(write(tmp_path, *rows))
    assert requests.arrival_ns.tolist() == [0, 3 * NS_PER_S // 2, 2 * NS_PER_S]
    assert requests.segment_length.tolist() == [16, 4] * 3
    assert requests.block_hint == 16
    assert requests.session_id.tolist() == [0, 0, 1]
    assert requests.turn.tolist() == [0, 1, 0]


def test_bailian_a_chat_goes_on_from_its_root_and_may_lack_it(tmp_path):
    rows = [bailian(chat_id=5, parent_chat_id=4), bailian(chat_id=6, parent_chat_id=5),
            bailian(chat_id=7, parent_chat_id=5)]  # fmt: skip
    assert load(write(tmp_path, *rows)).session_id.tolist() == [0, 0, 0]


def test_bailian_a_child_need_not_extend_its_parent(tmp_path):
    rows = [bailian(), bailian(chat_id=2, parent_chat_id=1, timestamp=1, input_length=33, hash_ids=[1, 8, 9])]
    assert streams(load(write(tmp_path, *rows))) == [[2, 3], [2, 9, 10]]


def test_bailian_wrong_ids(tmp_path):
    with pytest.raises(UsageError, match=r":1: 40 tokens are 3 blocks of 16, not 2 ids"):
        load(write(tmp_path, bailian(input_length=40)))


def test_llmservingsim_both_kinds_in_one_file_and_nanoseconds(tmp_path):
    chain = {"session_id": "a", "arrival_time_ns": 10, "sub_requests": [
        {"input_toks": 8, "output_toks": 2, "tool_duration_ns": 99}, {"input_toks": 12, "output_toks": 1}]}  # fmt: skip
    flat = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 40}
    requests = load(write(tmp_path, flat, chain))
    assert requests.arrival_ns.tolist() == [0, 0, 30]
    assert requests.prompt_tokens.tolist() == [8, 12, 3]
    assert requests.after.tolist() == [NONE, 0, NONE]
    assert requests.think_ns.tolist() == [0, 99, 0]
    assert requests.session_id.tolist() == [0, 0, NONE]
    assert "3 of 3 prompts have no token ids" in requests.notes[0]


def test_llmservingsim_token_ids_are_what_is_shared(tmp_path):
    rows = [{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [7, 8, 9],
             "output_tok_ids": [1, 2]},
            {"input_toks": 2, "output_toks": 1, "arrival_time_ns": 1, "input_tok_ids": [7, 8]}]  # fmt: skip
    requests = load(write(tmp_path, *rows))
    assert requests.segment_stream.tolist() == [EXPLICIT, EXPLICIT]
    at = requests.segment_start
    assert requests.token_ids[at[0] : at[0] + 3].tolist() == [7, 8, 9]
    assert requests.token_ids[at[1] : at[1] + 2].tolist() == [7, 8]
    assert requests.output_stream[0] == EXPLICIT
    assert requests.token_ids[requests.output_start[0] :][:2].tolist() == [1, 2]
    assert requests.notes == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_tok_ids": [1, 2]}, "input_tok_ids has 2 ids for 3 tokens"),
        ({"input_tok_ids": [1, -2, 3]}, "input_tok_ids is no list of token ids"),
        ({"input_toks": 0}, "input_toks is 0, a whole number from 1"),
        ({"arrival_time_ns": None}, "arrival_time_ns is None, a whole number"),
        ({"sub_requests": []}, "session_id is None, a string is wanted"),
        ({"sub_requests": [], "session_id": "s"}, "sub_requests is no list of requests"),
        ({"sub_requests": [{"input_toks": 1}], "session_id": "s"}, "sub_requests[0].output_toks is None"),
    ],
)
def test_llmservingsim_faults(tmp_path, changed, said):
    good = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}
    path = write(tmp_path, good, good | changed)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:2: {said}")
