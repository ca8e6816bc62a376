"""Mooncake rows: fields, aliases, sessions, ids, and every way a row can be wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_MS

from .files import info, jsonl, load, row


def test_a_row_becomes_one_segment_per_id(tmp_path):
    requests = load(jsonl(tmp_path, row(length=1_100, hash_ids=[0, 7, 3])))
    assert requests.segment_stream.tolist() == [1, 8, 4]
    assert requests.segment_length.tolist() == [512, 512, 76]
    assert requests.segment_start.tolist() == [0, 0, 0]
    assert requests.output_stream.tolist() == [9]


def test_equal_ids_are_equal_streams(tmp_path):
    requests = load(jsonl(tmp_path, row(hash_ids=[5, 6]), row(hash_ids=[5, 9]), row(hash_ids=[5, 6])))
    assert requests.segment_stream.tolist() == [6, 7, 6, 10, 6, 7]


def test_huge_ids_keep_their_identity(tmp_path):
    big = [2**64 - 1, 2**63, 2**40, 1]
    rows = [row(length=512 * 4, hash_ids=big), row(length=512 * 2, hash_ids=big[:2])]
    streams = load(jsonl(tmp_path, *rows)).segment_stream
    assert len(set(streams[:4].tolist())) == 4
    assert streams[:2].tolist() == streams[4:].tolist()
    assert streams.min() >= 1
    assert streams.max() <= 4


def test_aliases(tmp_path):
    plain = row(1_000, 600, 20, hash_ids=[1, 2])
    renamed = {"created_time": 1_000, "input_tokens": 600, "output_tokens": 20, "hash_ids": [1, 2]}
    mixed = jsonl(tmp_path, plain, renamed, {**plain, "request_id": "r-3"})
    requests = load(mixed)
    assert requests.prompt_tokens.tolist() == [600] * 3
    assert requests.output_tokens.tolist() == [20] * 3
    assert requests.arrival_ns.tolist() == [0] * 3


def test_times_count_from_the_first_row_in_ms(tmp_path):
    requests = load(jsonl(tmp_path, row(1_700_000_000_000), row(1_700_000_000_003), row(1_700_000_000_003.25)))
    assert requests.arrival_ns.tolist() == [0, 3 * NS_PER_MS, 3_250_000]


def test_higher_priority_is_more_urgent(tmp_path):
    requests = load(jsonl(tmp_path, row(priority=5), row(), row(priority=-2)))
    assert requests.priority.tolist() == [-5, 0, 2]


def test_sessions_wait_for_their_predecessor(tmp_path):
    rows = [
        row(0, session_id="a"),
        row(10, session_id="b"),
        row(None, session_id="a", delay=250),
        row(20),
        row(None, session_id="a", delay_ms=0.5),
        row(30, session_id="b", delay=99),
    ]
    requests = load(jsonl(tmp_path, *rows))
    assert requests.session_id.tolist() == [0, 1, 0, NONE, 0, 1]
    assert requests.turn.tolist() == [0, 0, 1, 0, 2, 1]
    assert requests.after.tolist() == [NONE, NONE, 0, NONE, 2, NONE]  # a row with a timestamp keeps it
    assert requests.think_ns.tolist() == [0, 0, 250 * NS_PER_MS, 0, 500_000, 0]
    assert requests.arrival_ns.tolist() == [0, 10 * NS_PER_MS, 0, 20 * NS_PER_MS, 0, 30 * NS_PER_MS]


def test_output_of_zero_is_left_to_the_engine(tmp_path):
    requests = load(jsonl(tmp_path, row(output=0), row(output=3)))
    assert requests.output_tokens.tolist() == [0, 3]


@pytest.mark.parametrize("spacing", ["[1,2]", "[1, 2]", "[ 1,  2 ]", "[1 ,2]", "[1,\t2]"])
def test_spacing_of_ids_does_not_matter(tmp_path, spacing):
    text = f'{{"hash_ids" : {spacing}, "timestamp":0,"input_length":600,"output_length":1}}'
    assert load(jsonl(tmp_path, text)).segment_stream.tolist() == [2, 3]


def test_ids_are_found_only_where_they_are(tmp_path):
    tricky = json.dumps({**row(hash_ids=[1, 2]), "request_id": '"hash_ids": [8, 9]', "extra": {"hash_ids": [4]}})
    assert load(jsonl(tmp_path, tricky)).segment_stream.tolist() == [2, 3]
    nested = '{"extra": {"hash_ids": [4, 5]}, "timestamp": 0, "input_length": 600, "output_length": 1}'
    bare = load(jsonl(tmp_path, nested))
    assert bare.segment_length.tolist() == [600]
    with pytest.raises(UsageError, match=":2: has no hash_ids"):
        load(jsonl(tmp_path, tricky, nested))


def test_line_separators_inside_strings_and_blank_lines(tmp_path):
    text = json.dumps(row(request_id="a\u2028b"), ensure_ascii=False)
    assert len(load(jsonl(tmp_path, "", text, "   ", text))) == 2


def test_byte_order_mark(tmp_path):
    path = jsonl(tmp_path, row())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load(path)) == 1


GOOD = row(5, hash_ids=[1, 2])

BAD_ROWS = {
    "not JSON": ('{"timestamp": 0,', "is not JSON"),
    "cut off": (json.dumps(GOOD)[:-1], "is not JSON"),
    "two objects": (json.dumps(GOOD) * 2, "is not one JSON object"),
    "a list": ("[1, 2]", "is not one JSON object"),
    "deep": ("[" * 100_000, "is not JSON: nested too deeply"),
    "long number": ('{"timestamp": ' + "9" * 5_000 + "}", "is not JSON"),
    "no length": ({**GOOD, "input_length": None}, "has no input_length or input_tokens"),
    "no output": ({**GOOD, "output_length": None}, "has no output_length; trace.default_output=128"),
    "no ids": ({**GOOD, "hash_ids": None}, "has no hash_ids"),
    "no time": ({**GOOD, "timestamp": None}, "has no timestamp or created_time"),
    "delay without a session": ({**GOOD, "timestamp": None, "delay": 5}, "has no timestamp"),
    "text for a number": ({**GOOD, "input_length": "600"}, "input_length is '600', a number is wanted"),
    "true for a number": ({**GOOD, "output_length": True}, "output_length is True, a number is wanted"),
    "a fraction": ({**GOOD, "input_length": 600.5}, "input_length is 600.5, a whole number"),
    "NaN": ({**GOOD, "timestamp": math.nan}, "timestamp is nan, a number is wanted"),
    "infinite": ({**GOOD, "timestamp": math.inf}, "timestamp is inf, a number is wanted"),
    "huge": ({**GOOD, "timestamp": 10**400}, "a number is wanted"),
    "negative time": ({**GOOD, "timestamp": -1}, "timestamp is -1, which is negative"),
    "negative length": ({**GOOD, "output_length": -3}, "output_length is -3, which is negative"),
    "negative delay": ({**GOOD, "delay": -3}, "delay is -3, which is negative"),
    "empty prompt": ({**GOOD, "input_length": 0, "hash_ids": []}, "the prompt has 0 tokens"),
    "endless prompt": ({**GOOD, "input_length": 10**9}, "the limit is"),
    "too few ids": ({**GOOD, "input_length": 2_000}, "2000 tokens are 4 blocks of 512, not 2 ids"),
    "too many ids": ({**GOOD, "input_length": 512}, "512 tokens are 1 blocks of 512, not 2 ids"),
    "negative id": ({**GOOD, "hash_ids": [1, -2]}, "hash_ids is no list of whole numbers"),
    "id beyond 64 bits": ({**GOOD, "hash_ids": [1, 2**64]}, "hash_ids is no list of whole numbers"),
    "fractional id": ({**GOOD, "hash_ids": [1, 2.5]}, "hash_ids is no list of whole numbers"),
    "ids as text": ({**GOOD, "hash_ids": "1, 2"}, "hash_ids is no list of whole numbers"),
    "leading zero": (json.dumps(GOOD).replace("[1, 2]", "[01, 2]"), "hash_ids is no list of whole numbers"),
    "missing comma": (json.dumps(GOOD).replace("[1, 2]", "[1 2]"), "hash_ids is no list of whole numbers"),
    "trailing comma": (json.dumps(GOOD).replace("[1, 2]", "[1, 2, ]"), "hash_ids is no list"),
    "wrong session": ({**GOOD, "session_id": ["a"]}, "session_id is ['a'], a string is wanted"),
    "orphan": ({**GOOD, "timestamp": None, "session_id": "x", "delay": 1}, "waits for an earlier row"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_names_line_and_fault(tmp_path, name):
    bad, text = BAD_ROWS[name]
    if isinstance(bad, dict):
        bad = {k: v for k, v in bad.items() if v is not None}
    path = jsonl(tmp_path, row(2), row(3), bad, row(6))
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ")
    assert text in message
    assert "--skip-bad-rows" in message
    assert "\n" not in message
    assert len(message) < 300

    requests = load(path, skip_bad_rows=True)
    assert len(requests) == 3
    assert any(note.startswith("left out 1 of 4 rows; the first: ") and text in note for note in requests.notes)


def test_line_numbers_count_blank_lines(tmp_path):
    path = jsonl(tmp_path, row(), "", "", {"timestamp": 1})
    with pytest.raises(UsageError, match=r":4: has no input_length"):
        load(path)


def test_the_first_of_several_faults_is_named(tmp_path):
    path = jsonl(tmp_path, row(9), row(9, output=-1), row(length=0, hash_ids=[]), "{")
    with pytest.raises(UsageError, match=r":2: output_length is -1.* \(and 2 more\)"):
        load(path)


def test_nothing_left_to_skip_to(tmp_path):
    with pytest.raises(UsageError, match="none of the 2 rows is usable"):
        load(jsonl(tmp_path, "{", "["), skip_bad_rows=True, format="mooncake")


def test_skipped_rows_leave_sessions_whole(tmp_path):
    rows = [
        row(0, session_id="a"),
        row(None, length=0, hash_ids=[], session_id="a", delay=1),
        row(None, session_id="a", delay=2),
        row(length=0, hash_ids=[], session_id="b"),
        row(None, session_id="b", delay=3),
    ]
    requests = load(jsonl(tmp_path, *rows), skip_bad_rows=True)
    assert requests.after.tolist() == [NONE, 0]
    assert requests.turn.tolist() == [0, 1]


@pytest.mark.parametrize("block", [16, 64, 128, 1_024])
def test_another_block_size_is_recognised(tmp_path, block):
    rng = np.random.default_rng(block)
    lengths = rng.integers(1, 5_000, 40).tolist()
    rows = [row(length=length, hash_ids=list(range(-(-length // block)))) for length in lengths]
    path = jsonl(tmp_path, *rows)
    with pytest.raises(UsageError, match=rf"trace\.block_tokens={block} fits all rows"):
        load(path)
    requests = load(path, block_tokens=block)
    assert requests.block_hint == block
    assert info(path, block_tokens=block).block_tokens == block


def test_mixed_block_sizes(tmp_path):
    rows = [row(length=1_024, hash_ids=[1, 2]), row(length=1_024, hash_ids=list(range(64)))]
    with pytest.raises(UsageError, match=r":2: 1024 tokens are 2 blocks of 512, not 64 ids; mend"):
        load(jsonl(tmp_path, *rows))


def test_fractional_seconds_are_not_taken_for_ms(tmp_path):
    path = jsonl(tmp_path, *(row(i * 0.3) for i in range(40)))
    with pytest.raises(UsageError, match=r"3,333 requests/s as ms or 3.333 requests/s as s; set trace\.time_unit=s"):
        load(path)
    assert load(path, time_unit="s").arrival_ns[-1] == 11_700_000_000
    requests = load(path, time_scale=1_000.0)
    assert requests.arrival_ns[-1] == 11_700_000_000
    at_rate = load(path, rate=2.0)
    assert at_rate.arrival_ns[-1] == pytest.approx(39 / 2.0 * 1e9)


def test_fractional_ms_are_fine(tmp_path):
    requests = load(jsonl(tmp_path, *(row(i * 250.5) for i in range(40))))
    assert requests.arrival_ns[1] == 250_500_000


def test_whole_seconds_are_asked_about_too(tmp_path):
    path = jsonl(tmp_path, *(row(i // 3) for i in range(60)))
    with pytest.raises(UsageError, match="in which unit are the timestamps"):
        load(path)
    assert load(path, time_unit="ms").arrival_ns[-1] == 19 * NS_PER_MS


def test_a_burst_of_one_time_is_no_matter_of_units(tmp_path):
    assert load(jsonl(tmp_path, *(row(0) for _ in range(60)))).notes == ()
