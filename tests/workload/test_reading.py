"""Input is never silently read as something else: sessions of deltas, units of time, order, columns, outputs, formats.

Small inputs with the values that are right for them, counted by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_MS, NS_PER_S
from kvbench.workload.clock import NS_OF_UNIT
from kvbench.workload.format import all_formats
from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import load_trace

from .examples import ANSWER, EXAMPLES, MORE, QUESTION, example, lines, options_for, weka
from .files import info, jsonl, load, row
from .test_formats_text import common, put, tokenizer, tokens  # noqa: F401

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


def text_file(folder: Path, *rows: str) -> Path:
    path = folder / "x"
    path.write_text("\n".join(rows) + "\n")
    return path


def hits(requests: Any, block: int) -> list[int]:
    """Leading tokens in whole blocks that were computed before: prompts and answers of requests that follow each other.

    An answer's last token has no KV, and a prompt's last token is computed again.
    """
    seen: set[tuple[Any, ...]] = set()
    found = []
    for i in range(len(requests)):
        prompt = tokens(requests, i)
        whole = 0
        while (whole + 1) * block < len(prompt) and tuple(prompt[: (whole + 1) * block]) in seen:
            whole += 1
        found.append(whole * block)
        made = [(int(requests.output_stream[i]), k) for k in range(int(requests.output_tokens[i]) - 1)]
        known = [*prompt, *made]
        seen |= {tuple(known[: k * block]) for k in range(1, len(known) // block + 1)}
    return found


# ---------------------------------------------------------------- sessions


def session(*ids: list[int], **changed: Any) -> list[dict[str, Any]]:
    rows = []
    for k, own in enumerate(ids):
        time: dict[str, Any] = {"timestamp": 0.0} if k == 0 else {"delay": 100.0}
        rows.append({"session_id": "a", "input_length": 32 * len(own), "output_length": 8, "hash_ids": own, **time})
    return [{**r, **changed} for r in rows]


def test_rows_that_are_new_are_put_behind_what_was_said(tmp_path):
    path = jsonl(tmp_path, *session([1, 2], [3], [4]))
    requests = load(path, block_tokens=32)
    assert requests.prompt_tokens.tolist() == [64, 64 + 8 + 32, 64 + 8 + 32 + 8 + 32]
    first, second, third = (tokens(requests, i) for i in range(3))
    assert second[:64] == first
    assert second[64:72] == [(int(requests.output_stream[0]), k) for k in range(8)]
    assert third[:104] == second
    assert requests.after.tolist() == [NONE, 0, 1]
    assert info(path, block_tokens=32).turns.startswith("delta: a row is what is new")


def test_rows_that_begin_as_the_one_before_are_whole(tmp_path):
    path = jsonl(tmp_path, *session([1, 2], [1, 2, 3], [1, 2, 3, 4]))
    assert load(path, block_tokens=32).prompt_tokens.tolist() == [64, 96, 128]
    assert info(path, block_tokens=32).turns == "whole: a row is all of its prompt (rows begin as the one before)"


def test_the_user_decides(tmp_path):
    path = jsonl(tmp_path, *session([1, 2], [3], [4]))
    assert load(path, block_tokens=32, turns="whole").prompt_tokens.tolist() == [64, 32, 32]
    assert info(path, block_tokens=32, turns="whole").turns.endswith("(trace.turns)")
    path = jsonl(tmp_path, *session([1, 2], [1, 2, 3]))
    assert load(path, block_tokens=32, turns="delta").prompt_tokens.tolist() == [64, 64 + 8 + 96]


def test_rows_without_a_session_have_no_turns(tmp_path):
    assert info(jsonl(tmp_path, row(0), row(7))).turns == ""


def test_deltas_of_several_sessions_by_a_plain_reading(tmp_path):
    rng = np.random.Generator(np.random.PCG64(5))
    rows, said, expected = [], {}, []
    for i in range(60):
        name = int(rng.integers(4))
        length, output = int(rng.integers(1, 90)), int(rng.integers(0, 9))
        rows.append(
            row(
                10.0 * i,
                length,
                output,
                session_id=f"s{name}",
                hash_ids=[1000 * i + k for k in range(-(-length // 32))],
            )
        )
        expected.append(said.get(name, 0) + length)
        said[name] = expected[-1] + output
    requests = load(jsonl(tmp_path, *rows), block_tokens=32)
    assert requests.prompt_tokens.tolist() == expected
    assert np.add.reduceat(requests.segment_length, requests.segment_offset[:-1]).tolist() == expected


def test_lengths_alone_of_a_session_accumulate_too(tmp_path):
    rows = [{k: v for k, v in r.items() if k != "hash_ids"} for r in session([1, 2], [3])]
    assert load(jsonl(tmp_path, *rows)).prompt_tokens.tolist() == [64, 104]


def test_bailian_rows_are_whole_unless_the_user_says(tmp_path):
    path = example(tmp_path, "bailian")
    assert load(path).prompt_tokens.tolist() == [33, 64]
    assert load(path, turns="delta").prompt_tokens.tolist() == [33, 33 + 4 + 64]
    assert info(path).turns == "whole: a row is all of its prompt (of the format)"


def test_aiperf_texts_of_mooncake_rows(tmp_path, tokenizer):  # noqa: F811
    rows = [{"session_id": "a", "text_input": "aa", "output_length": 3, "timestamp": 0},
            {"session_id": "a", "text_input": "bb", "output_length": 3, "delay": 50}]  # fmt: skip
    requests = load(put(tmp_path, *rows), tokenizer=tokenizer)
    first, second = tokens(requests, 0), tokens(requests, 1)
    assert second[: len(first) + 3] == [*first, *((int(requests.output_stream[0]), k) for k in range(3))]
    assert requests.think_ns.tolist() == [0, 50 * NS_PER_MS]


def test_aiperf_messages_are_whole_unless_answers_are_live(tmp_path, tokenizer):  # noqa: F811
    rows = [{"session_id": "a", "messages": [QUESTION], "output_length": 5, "timestamp": 0},
            {"session_id": "a", "messages": [QUESTION, ANSWER, MORE], "output_length": 5, "delay": 50}]  # fmt: skip
    whole = load(put(tmp_path, *rows), tokenizer=tokenizer)
    assert common(tokens(whole, 0), tokens(whole, 1)) == whole.prompt_tokens[0]
    live = [{**r, "assistant_responses": "live"} for r in (rows[0], {**rows[1], "messages": [MORE]})]
    requests = load(put(tmp_path, *live), tokenizer=tokenizer)
    assert common(tokens(requests, 0), tokens(requests, 1)) == requests.prompt_tokens[0]
    assert tokens(requests, 1)[int(requests.prompt_tokens[0])] == (int(requests.output_stream[0]), 0)


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("unit", NS_OF_UNIT)
def test_times_since_1970_are_told_by_their_size(tmp_path, unit):
    ns = NS_OF_UNIT[unit]
    path = jsonl(tmp_path, *(row((1_700_000_000 + t) * NS_PER_S // ns) for t in (0, 2, 5)))
    requests = load(path)
    assert np.allclose(requests.arrival_ns, [0, 2e9, 5e9], atol=1_000)  # floats hold 1.7e18 to 256
    assert info(path).time_unit.startswith(f"{unit}, ")
    assert ("timestamps are read as" in "".join(requests.notes)) == (unit != "ms")


@pytest.mark.parametrize("unit", NS_OF_UNIT)
def test_a_stated_unit_is_taken(tmp_path, unit):
    path = jsonl(tmp_path, *(row(1_000 * t) for t in range(3)))
    assert load(path, time_unit=unit).arrival_ns.tolist() == [0, 1_000 * NS_OF_UNIT[unit], 2_000 * NS_OF_UNIT[unit]]


def test_a_scale_that_makes_the_format_s_unit_is_no_speed(tmp_path):
    path = jsonl(tmp_path, *(row(1_700_000_000_000_000 + 500_000 * k) for k in range(3)))
    assert load(path, time_scale=0.001).arrival_ns.tolist() == [0, NS_PER_S // 2, NS_PER_S]
    assert load(path, time_scale=0.5).arrival_ns.tolist() == [0, NS_PER_S // 4, NS_PER_S // 2]


def test_seconds_in_a_format_of_ms_are_asked_about(tmp_path):
    path = jsonl(tmp_path, *(row(round(1.37 * k, 2)) for k in range(20)))
    with pytest.raises(UsageError, match=r"729\.9 requests/s as ms or 0\.7299 requests/s as s; set trace\.time_unit=s"):
        load(path)
    assert load(path, time_unit="s").arrival_ns[-1] == 26_030_000_000
    assert load(path, rate=3.0).arrival_ns[-1] == pytest.approx(19 / 3 * 1e9)  # the unit does not matter


def test_microseconds_in_a_format_of_ms_are_asked_about(tmp_path):
    with pytest.raises(UsageError, match=r"as ms or 0\.5 requests/s as us"):
        load(jsonl(tmp_path, *(row(2_000_000 * k) for k in range(20))))


def test_a_plain_trace_of_ms_is_not(tmp_path):
    for gap in (20, 300, 3_000, 60_000):
        assert info(jsonl(tmp_path, *(row(gap * k) for k in range(20)))).time_unit == "ms, of the format"


@pytest.mark.parametrize(
    ("times", "unit"), [((0.0, 1.0), "s"), ((0, 500), "ms"), ((0, 700_000), "us"), ((0, 1_500_000_000), "ns")]
)
def test_a_format_without_a_unit_takes_the_only_one_that_makes_sense(tmp_path, times, unit):
    path = text_file(tmp_path, "timestamp,input_tokens,output_tokens", *(f"{t},100,10" for t in times))
    assert load(path).arrival_ns[-1] == pytest.approx(times[-1] * NS_OF_UNIT[unit])
    assert info(path).time_unit.startswith(f"{unit}, by the rate that it makes")


def test_a_format_without_a_unit_asks_between_two(tmp_path):
    path = text_file(tmp_path, "timestamp,input_tokens,output_tokens", "0,100,10", "20,100,10")
    with pytest.raises(UsageError, match=r"0\.05 requests/s as s or 50 requests/s as ms; set trace\.time_unit"):
        load(path)


@pytest.mark.parametrize(
    ("name", "unit"),
    [("timestamp_ms", "ms"), ("arrival_time_s", "s"), ("timestamp_ns", "ns"), ("time_s", "s"), ("arrival_ms", "ms")],
)
def test_a_name_that_says_its_unit(tmp_path, name, unit):
    path = text_file(tmp_path, f"{name},input_tokens,output_tokens", "0,100,10", "20,100,10")
    assert load(path).arrival_ns[-1] == 20 * NS_OF_UNIT[unit]


def test_stamps_as_times(tmp_path):
    stamps = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:01.5+01:00")
    path = text_file(tmp_path, "created_at,prompt_tokens,completion_tokens", *(f"{s},100,10" for s in stamps))
    assert load(path).arrival_ns.tolist() == [0, 1_500_000_000]
    rows = [{"timestamp": s, "prompt_tokens": 100, "completion_tokens": 10} for s in stamps]
    assert load(jsonl(tmp_path, *rows)).arrival_ns.tolist() == [0, 1_500_000_000]


def test_times_that_are_centuries_apart_are_one_line(tmp_path):
    """As seconds these make more nanoseconds than an int64 holds."""
    rows = [row(0), row(1_700_000_000_000), row(1_700_000_000_500)]
    with pytest.raises(UsageError, match=r"as s the times are more than a century apart .*; check trace\.time_unit"):
        load(jsonl(tmp_path, *rows), time_unit="s")
    assert load(jsonl(tmp_path, *rows[1:]), time_unit="s").arrival_ns.tolist() == [0, 500 * NS_PER_S]


@pytest.mark.parametrize(
    ("name", "key"), [("bench-result", "start_times"), ("otel", "end_time"), ("otel", "start_time")]
)
def test_no_time_is_too_large_to_be_refused(tmp_path, name, key):
    document = json.loads(EXAMPLES[name])
    if name == "otel":
        span = document["spans"][0] if isinstance(document, dict) else document[0]
        span[key] = 10**30
    else:
        document[key][0] = 10**30
    path = tmp_path / "x"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError):
        load(path, format=name, **options_for(name))


# ---------------------------------------------------------------- order


UNSORTED = {
    "mooncake": lines(*(row(t, output=t // 100, hash_ids=[t, t + 1]) for t in (1_000, 0, 500))),
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0,10,10\n2023-11-16 18:17:03.0,10,0\n"
    b"2023-11-16 18:17:03.5,10,5\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"100010,G,9,10,0,x\n100000,G,9,1,0,x\n100005,G,9,5,0,x\n",
    "lengths": b"arrived_at,num_prefill_tokens,num_decode_tokens\n10,9,10\n0,9,1\n5,9,5\n",
    "bailian": lines(*({"chat_id": t, "parent_chat_id": -1, "timestamp": t, "input_length": 9, "output_length": t,
                        "hash_ids": [t]} for t in (10, 1, 5))),
    "blis": b"arrival_time_us,input_tokens,output_tokens\n1000,9,10\n0,9,1\n500,9,5\n",
}  # fmt: skip


@pytest.mark.parametrize("name", UNSORTED)
@pytest.mark.parametrize("skip", [False, True])
def test_rows_out_of_order_are_refused_or_sorted_but_never_dropped(tmp_path, name, skip):
    path = tmp_path / "x"
    path.write_bytes(UNSORTED[name])
    with pytest.raises(UsageError, match=r"its time is before that of an earlier row \(as .*; trace\.sort=true"):
        load(path, skip_bad_rows=skip)
    requests = load(path, sort=True, skip_bad_rows=skip)
    assert len(requests) == 3
    assert (np.diff(requests.arrival_ns) > 0).all()
    assert (np.diff(requests.output_tokens) > 0).all()  # each output stayed with its row
    assert any("2 of 3 rows came after one that is later: sorted by time" in note for note in requests.notes)
    assert load(path, sort=True, num_prompts=2).output_tokens.tolist() == requests.output_tokens[:2].tolist()


def test_sorting_keeps_a_waiting_row_behind_its_session(tmp_path):
    rows = [row(900, 500, session_id="a"), row(None, 501, session_id="a", delay=5), row(100, 502, session_id="b"),
            row(None, 503, session_id="b", delay=6)]  # fmt: skip
    requests = load(jsonl(tmp_path, *rows), sort=True, turns="whole")
    assert requests.prompt_tokens.tolist() == [502, 503, 500, 501]
    assert requests.after.tolist() == [NONE, 0, NONE, 2]


# ---------------------------------------------------------------- columns and outputs


def test_columns_by_name(tmp_path):
    path = text_file(tmp_path, "when,in,out,who,extra", "0,5,6,a,1", "1,7,8,b,1", "2.5,30,9,a,1")
    requests = load(path, columns="timestamp=when,input=in, output=out,session=who")
    assert requests.arrival_ns.tolist() == [0, NS_PER_S, 5 * NS_PER_S // 2]
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([5, 7, 30], [6, 8, 9])
    assert (requests.session_id.tolist(), requests.turn.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert "not read: extra" in requests.notes
    rows = [{"when": 0, "in": 5, "out": 6}, {"when": 1, "in": 7, "out": 8}]
    named = load(jsonl(tmp_path, *rows), columns="timestamp=when,input=in,output=out")
    assert named.prompt_tokens.tolist() == [5, 7]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("input=inn,output=out", "there is no column 'inn' (input); the nearest is in"),
        ("prompt=in", "'prompt=in' is none of timestamp=NAME"),
        ("input", "'input' is none of"),
        ("input=in,input=out", "'input=out' is none of"),
        ("output=out", "has no column of prompt tokens"),
    ],
)
def test_wrong_columns(tmp_path, columns, said):
    with pytest.raises(UsageError) as caught:
        load(text_file(tmp_path, "when,in,out", "0,5,6"), columns=columns)
    assert said in str(caught.value)


def test_columns_belong_to_lengths(tmp_path):
    with pytest.raises(UsageError, match=r"trace\.columns names the columns of trace\.format = lengths; it is azure"):
        load(example(tmp_path, "azure"), format="azure", columns="input=ContextTokens")


def test_columns_that_are_not_read_are_named(tmp_path):
    requests = load(jsonl(tmp_path, row(request_id="r", model="m"), row(tool_events=[])))
    assert requests.notes == ("not read: request_id, model, tool_events",)
    many = {f"c{i}": i for i in range(20)}
    assert load(jsonl(tmp_path, row(**many))).notes[0].endswith("c11 and 8 more")


def test_a_header_with_a_column_twice_is_an_error(tmp_path):
    path = text_file(tmp_path, "timestamp,input_tokens,output_tokens,input_tokens", "0,1,2,3")
    with pytest.raises(UsageError, match=":1: the header has 'input_tokens' twice"):
        load(path)


def test_quoted_cells(tmp_path):
    path = text_file(tmp_path, '"timestamp","input_tokens","output_tokens","model"', '0,5,6,"a, b"', '1,7,8,"c"')
    assert load(path).prompt_tokens.tolist() == [5, 7]


@pytest.mark.parametrize(
    "rows",
    [
        [{"timestamp": t, "input_length": 9} for t in (0, 700)],
        [{"timestamp": t, "prompt_tokens": 9, "completion_tokens": None} for t in (0, 700)],
        [{"prompt": "x"}, {"prompt": "y"}],
        [{"messages": [QUESTION]}, {"messages": [QUESTION]}],
        [{"custom_id": "a", "body": {"messages": [QUESTION]}}] * 2,
        [{"text_input": "x", "timestamp": t} for t in (0, 700)],
    ],
)
def test_outputs_that_are_not_stated(tmp_path, rows):
    path = jsonl(tmp_path, *rows)
    with pytest.raises(UsageError, match=r":1: .*has no .*; trace\.default_output=128"):
        load(path, chars_per_token=4.0)
    fixed = load(path, chars_per_token=4.0, default_output=77)
    assert fixed.output_tokens.tolist() == [77, 77]
    assert any("2 of 2 rows state no output: drawn by trace.default_output" in note for note in fixed.notes)
    spec = {"distribution": "uniform", "min": 10, "max": 1_000}
    drawn = [load(path, chars_per_token=4.0, default_output=spec, length_seed=seed) for seed in (1, 1, 2)]
    first, again, other = (requests.output_tokens.tolist() for requests in drawn)
    assert first == again != other


def test_only_the_rows_that_need_it_are_filled(tmp_path):
    rows = [{"prompt": "x", "output_tokens": 3}, {"prompt": "y"}]
    assert load(jsonl(tmp_path, *rows), chars_per_token=4.0, default_output=9).output_tokens.tolist() == [3, 9]


# ---------------------------------------------------------------- forms


@pytest.mark.parametrize("name", ["mooncake", "bailian", "sharegpt", "openai", "aiperf", "litellm"])
def test_an_array_is_read_as_lines_are(tmp_path, name):
    data = EXAMPLES[name]
    rows = json.loads(data) if data.startswith(b"[") else [json.loads(line) for line in data.splitlines()]
    as_lines, as_array = tmp_path / "a", tmp_path / "b"
    as_lines.write_bytes(lines(*rows))
    as_array.write_text(json.dumps(rows, indent=1))
    found = [load_trace(path, TraceOptions(**options_for(name))) for path in (as_lines, as_array)]
    assert found[0][0].fingerprint() == found[1][0].fingerprint()
    assert [source.format for _, source in found] == [name, name]


def test_sessions_one_a_line(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(lines(weka(), weka()))
    requests = load(path)
    assert len(requests) == 10
    assert np.intersect1d(requests.segment_stream[:10], requests.segment_stream[-10:]).size == 0  # ids are local
    path.write_bytes(lines(weka()) + b'{"requests": []}\n')
    with pytest.raises(UsageError, match=":2: is no session"):
        load(path)


def test_weka_with_an_id_for_the_tail_and_ids_from_0(tmp_path):
    session = {"block_size": 4, "requests": [{"t": 0, "in": 9, "out": 1, "hash_ids": [0, 1, 2]},
                                            {"t": 5, "in": 9, "out": 1, "hash_ids": [0, 1, 2]}]}  # fmt: skip
    requests = load(jsonl(tmp_path, session))
    assert requests.segment_length.tolist() == [4, 4, 1] * 2
    assert requests.segment_stream[:3].tolist() == requests.segment_stream[3:].tolist()  # the tail comes again too
    bare = {**session, "requests": [{**r, "hash_ids": [0, 1]} for r in session["requests"]]}
    assert np.unique(load(jsonl(tmp_path, bare)).segment_stream).size == 4


def test_mooncake_without_times(tmp_path):
    rows = [{"input_length": 9, "output_length": 2}] * 3
    assert "the trace has no arrivals" in "".join(load(jsonl(tmp_path, *rows)).notes)
    assert (np.diff(load(jsonl(tmp_path, *rows), rate=2.0).arrival_ns) > 0).all()
    chain = [{**rows[0], "session_id": "a"}, {**rows[0], "session_id": "a", "delay": 30}]
    assert load(jsonl(tmp_path, *chain)).think_ns.tolist() == [0, 30 * NS_PER_MS]


def test_bailian_without_ids(tmp_path):
    rows = [json.loads(line) for line in EXAMPLES["bailian"].splitlines()]
    requests = load(jsonl(tmp_path, *({k: v for k, v in r.items() if k != "hash_ids"} for r in rows)))
    assert requests.prompt_tokens.tolist() == [33, 64]
    assert "no row has hash_ids: lengths alone, so no prompts are shared" in requests.notes


@pytest.mark.parametrize("key", ["conversations", "conversation"])
def test_conversations_of_roles(tmp_path, key):
    rows = [{key: [QUESTION, ANSWER, MORE, ANSWER], "model": "m"}]
    requests = load(jsonl(tmp_path, *rows), chars_per_token=4.0)
    assert requests.after.tolist() == [NONE, 0]
    assert "not read: model" in requests.notes


def test_images_of_azure_are_noted(tmp_path):
    path = text_file(tmp_path, "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
                     "2025-05-10 00:00:00.5,2,700,10", "2025-05-10 00:00:01.5,0,50,10")  # fmt: skip
    requests = load(path)
    assert requests.notes == ("1 of 2 requests have images, 2 in all: encoding takes no time",)


def test_splitwise_sim(tmp_path):
    path = text_file(tmp_path, "request_id,request_type,arrival_timestamp,batch_size,prompt_size,token_size",
                     "0,2,0.0,1,100,5", "1,2,3.5,1,200,6")  # fmt: skip
    requests = load(path)
    assert requests.arrival_ns.tolist() == [0, 3_500_000_000]
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([100, 200], [5, 6])


def test_blis_prefixes_are_shared_and_what_failed_is_left_out(tmp_path):
    requests = load(example(tmp_path, "blis"))
    assert requests.prompt_tokens.tolist() == [74, 76]
    assert common(tokens(requests, 0), tokens(requests, 1)) == 64
    assert requests.arrival_ns.tolist() == [0, 250 * NS_PER_MS]
    assert "1 of 3 rows were not served: left out" in requests.notes


def test_rounds_of_an_agent(tmp_path):
    requests = load(example(tmp_path, "tracelab-rounds"))
    assert requests.prompt_tokens.tolist() == [150, 190]
    assert common(tokens(requests, 0), tokens(requests, 1)) == 150
    assert requests.after.tolist() == [NONE, 0]
    assert requests.think_ns.tolist() == [0, 1_500 * NS_PER_MS]


def test_results_as_workloads(tmp_path):
    requests = load(example(tmp_path, "bench-result"))
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([10, 30], [5, 7])
    assert requests.arrival_ns.tolist() == [0, 250 * NS_PER_MS]
    assert "1 of 3 requests failed: left out" in requests.notes
    profile = load(example(tmp_path, "aiperf-profile"))
    assert (profile.prompt_tokens.tolist(), profile.arrival_ns.tolist()) == ([35, 60], [0, 2 * NS_PER_MS])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"output_lens": [5]}, "output_lens has 1 values for 3 requests"),
        ({"input_lens": [5, "x", 1]}, "input_lens is [5, 'x', 1], a list of numbers is wanted"),
        ({"input_lens": [5, 1.5, 1]}, "input_lens holds what is no number of tokens"),
        ({"errors": ["e"] * 3}, "none of the 3 requests was served"),
        ({"errors": ["e"]}, "errors is no list of 3 texts"),
    ],
)
def test_wrong_results(tmp_path, changed, said):
    path = jsonl(tmp_path, json.loads(EXAMPLES["bench-result"]) | changed)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:1: {said}")


def test_a_result_without_its_requests(tmp_path):
    summary = {"request_throughput": 1.0, "output_throughput": 9.0, "total_input_tokens": 99}
    with pytest.raises(UsageError, match="save it with --save-detailed"):
        load(jsonl(tmp_path, summary))


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}


def otlp_span(name: str, start_s: int, parent: str = "", tokens: bool = True) -> dict[str, Any]:
    counts = {"gen_ai.usage.input_tokens": "1200", "gen_ai.usage.output_tokens": "300"} if tokens else {}
    return {
        "traceId": "t", "spanId": name, "parentSpanId": parent,
        "startTimeUnixNano": str((1_700_000_000 + start_s) * 10**9),
        "endTimeUnixNano": str((1_700_000_001 + start_s) * 10**9),
        "attributes": [{"key": key, "value": {"intValue": value}} for key, value in counts.items()],
    }  # fmt: skip


def test_otlp(tmp_path):
    spans = [otlp_span("agent", 0), otlp_span("a", 0, "agent"), otlp_span("tool", 2, "agent", tokens=False),
             otlp_span("b", 5, "agent")]  # fmt: skip
    requests = load(jsonl(tmp_path, otlp(*spans)))
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([1200, 1200], [300, 300])
    assert requests.after.tolist() == [NONE, 0]
    assert requests.think_ns.tolist() == [0, 4 * NS_PER_S]
    assert "2 spans are no calls of a model: left out" in requests.notes  # the agent's own is the sum of its calls
    assert len(load(jsonl(tmp_path, otlp(spans[1]), otlp(spans[3])))) == 2  # one export a line


def test_litellm_messages_are_read_where_there_are_some(tmp_path, tokenizer):  # noqa: F811
    path = example(tmp_path, "litellm")
    lengths = load(path)
    assert (lengths.prompt_tokens.tolist(), lengths.output_tokens.tolist()) == ([35, 60], [169, 9])
    assert lengths.arrival_ns.tolist() == [0, 1_250 * NS_PER_MS]  # sorted: a log is in order of ends
    told = load(path, tokenizer=tokenizer)
    assert common(tokens(told, 0), tokens(told, 1)) > len("What is the capital of Peru?")
    assert told.output_tokens.tolist() == [169, 9]


# ---------------------------------------------------------------- recognition


@pytest.mark.parametrize("name", [n for n in EXAMPLES if EXAMPLES[n][:1] in b"{["])
def test_one_format_alone_claims_each_example(name):
    """The largest set of keys decides: no other format has one as large."""
    data = EXAMPLES[name]
    try:
        document = json.loads(data)
    except ValueError:
        document = json.loads(data.splitlines()[0])
    found = document[0] if isinstance(document, list) else document
    sizes = {n: max((len(k) for k in f.keys if k <= found.keys()), default=0) for n, f in all_formats().items()}
    assert [n for n, size in sizes.items() if size == max(sizes.values())] == [name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timestamp,ContextTokens,GeneratedTokens\n1,2,3\n", "the nearest is azure, which has TIMESTAMP too"),
        ("Timestamp,Request tokens,Model\n1,2,3\n", "the nearest is burstgpt, which has Response tokens too"),
        ("when,in,out\n1,2,3\n", "trace.columns=timestamp=...,input=...,output=..."),
        ("when;input_tokens;output_tokens\n1;2;3\n", "is it cut by ';'? Wanted are commas"),
        ('{"timestamp": 0, "output_tokens": 5}\n', "the nearest is lengths, which has input_tokens too"),
        ('{"chat_id": 1, "input_length_": 5, "hash_ids_": []}\n', "the nearest is bailian"),
        ('{"custom_id": "a"}\n', "the nearest is openai-batch, which has body too"),
        ('{"conversatoins": []}\n', "the nearest is sharegpt, which has conversations too"),
    ],
)
def test_the_nearest_format_and_what_it_has_too(tmp_path, text, said):
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:1: ")


def test_a_first_row_that_is_wrong_does_not_hide_the_format(tmp_path):
    path = jsonl(tmp_path, "{", {"a": 1}, row(0), row(9))
    assert len(load(path, skip_bad_rows=True)) == 2


# ---------------------------------------------------------------- folders


def test_a_nested_folder_is_read(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/x.json", "a/b/y.json"):
        (tmp_path / name).write_text(json.dumps(weka()))
    assert len(load(tmp_path)) == 10
    (tmp_path / "z.json").write_text(json.dumps(weka()))
    requests = load(tmp_path)
    assert len(requests) == 5
    assert "2 files in sub-folders (a, ...) are not read; name one of them to read it" in requests.notes


# ---------------------------------------------------------------- what others reported


RIGHT = {
    "aiperf-delta-session.jsonl": ({}, [1024, 1600, 2176], [64, 64, 64], [0, 0, 0]),
    "seconds.jsonl": ({"time_unit": "s"}, [100] * 20, [5] * 20, None),
    "epoch-us.jsonl": ({"time_scale": 0.001}, [100] * 3, [3] * 3, [0, 500, 1000]),
    "unsorted.jsonl": ({"sort": True}, [100] * 3, [3] * 3, [0, 500, 1000]),
    "sharegpt-lines.jsonl": ({"chars_per_token": 4.0}, [9, 9], [2, 2], [0, 0]),
    "no-hash-ids.jsonl": ({}, [100, 101, 102], [10] * 3, [0, 500, 1000]),
    "generic.csv": ({}, [100, 200], [10, 20], [0, 1000]),
    "litellm-log.jsonl": ({}, [35, 35], [169, 169], [0, 1000]),
    "otlp.json": ({}, [1200], [300], [0]),
    "openai-batch.jsonl": ({"chars_per_token": 4.0}, [8, 8], [10, 10], [0, 0]),
    "usage-log.jsonl": ({}, [100, 100], [10, 10], [0, 500]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_reported_inputs(name):
    if not CASES.exists():
        pytest.skip("the reported inputs are not beside this checkout")
    options, prompt, output, times_ms = RIGHT[name]
    requests = load(CASES / name, **options)
    assert requests.prompt_tokens.tolist() == prompt
    assert requests.output_tokens.tolist() == output
    if times_ms:
        assert np.allclose(requests.arrival_ns / NS_PER_MS, times_ms, atol=0.001)


def test_reported_session_hits():
    if not CASES.exists():
        pytest.skip("the reported inputs are not beside this checkout")
    assert hits(load(CASES / "aiperf-delta-session.jsonl"), 16) == [0, 1072, 1648]


def test_hits_of_a_session_of_deltas(tmp_path):
    requests = load(jsonl(tmp_path, *session([1, 2], [3], [4])), block_tokens=32)
    assert hits(requests, 16) == [0, 64, 96]
