"""Text: tokens by a local tokenizer, or an estimate that never hits; and the formats that hold it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import EXPLICIT, NONE
from kvbench.core.units import NS_PER_MS, NS_PER_S, NS_PER_US

from .examples import ANSWER, EXAMPLES, MORE, QUESTION, TEXTS, US, example, lines, span
from .files import load

ESTIMATE = {"chars_per_token": 4.0}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A token for every byte: lengths and shared beginnings can be counted by hand."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(sorted(alphabet))}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def put(folder: Path, *rows: object) -> Path:
    path = folder / "x"
    path.write_bytes(lines(*rows))
    return path


def tokens(requests, i: int) -> list[tuple[int, int]]:
    """Identities of a prompt's tokens: the id, or stream and index."""
    found = []
    for k in range(requests.segment_offset[i], requests.segment_offset[i + 1]):
        stream, start, length = (
            int(c[k]) for c in (requests.segment_stream, requests.segment_start, requests.segment_length)
        )
        for at in range(start, start + length):
            found.append((stream, int(requests.token_ids[at]) if stream == EXPLICIT else at))  # noqa: PERF401
    return found


def common(one: list, other: list) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("name", TEXTS)
def test_text_needs_a_tokenizer_or_an_estimate(tmp_path, name):
    with pytest.raises(UsageError, match=r"holds text: set trace\.tokenizer .* or trace\.chars_per_token=4"):
        load(example(tmp_path, name))


@pytest.mark.parametrize("name", TEXTS)
def test_an_estimate_shares_nothing_and_says_so(tmp_path, name):
    requests = load(example(tmp_path, name), **ESTIMATE)
    assert np.unique(requests.segment_stream).size == len(requests)
    assert (requests.segment_stream != EXPLICIT).all()
    assert any(note.startswith("LENGTHS ARE AN ESTIMATE: 4 characters a token") for note in requests.notes)


def test_estimated_lengths(tmp_path):
    requests = load(put(tmp_path, {"prompt": "x" * 41, "output_tokens": 3}), **ESTIMATE)
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([11], [3])
    halved = load(put(tmp_path, {"prompt": "x" * 41, "output_tokens": 3}), chars_per_token=8.0)
    assert halved.prompt_tokens.tolist() == [6]


@pytest.mark.parametrize("name", TEXTS)
def test_tokenized_examples(tmp_path, name, tokenizer):
    requests = load(example(tmp_path, name), tokenizer=tokenizer)
    assert any("no chat template" in note for note in requests.notes)
    assert (requests.segment_stream == EXPLICIT).any()


def test_equal_beginnings_are_equal_tokens(tmp_path, tokenizer):
    rows = [
        {"prompt": "Write a poem on rain.", "output_tokens": 3},
        {"prompt": "Write a poem on snow.", "output_tokens": 3},
    ]
    requests = load(put(tmp_path, *rows), tokenizer=tokenizer)
    assert requests.prompt_tokens.tolist() == [21, 21]
    assert common(tokens(requests, 0), tokens(requests, 1)) == len("Write a poem on ")


def test_bytes_of_characters_count(tmp_path, tokenizer):
    assert load(put(tmp_path, {"prompt": "ä€", "output_tokens": 3}), tokenizer=tokenizer).prompt_tokens.tolist() == [5]


def test_an_answer_comes_back_as_what_was_generated(tmp_path, tokenizer):
    path = tmp_path / "x"
    path.write_bytes(EXAMPLES["sharegpt"])
    requests = load(path, tokenizer=tokenizer)
    assert requests.after.tolist() == [NONE, 0]
    assert requests.output_tokens.tolist() == [len("Hello!"), len("See you.")]
    first, second = tokens(requests, 0), tokens(requests, 1)
    start = int(requests.output_start[0])
    said = [(EXPLICIT, int(i)) for i in requests.token_ids[start : start + 6]]
    assert second[: len(first) + 6] == first + said
    assert len(second) > len(first) + 6


def test_the_same_text_is_stored_once(tmp_path, tokenizer):
    rows = [{"prompt": "again " * 50, "output_tokens": 3}] * 4
    assert load(put(tmp_path, *rows), tokenizer=tokenizer).token_ids.size == 300


def test_an_empty_prompt_has_a_token(tmp_path, tokenizer):
    path = put(tmp_path, {"prompt": "", "output_tokens": 3})
    assert load(path, tokenizer=tokenizer).prompt_tokens.tolist() == [1]
    assert load(path, **ESTIMATE).prompt_tokens.tolist() == [1]


def test_wrong_tokenizers(tmp_path, monkeypatch):
    path = example(tmp_path, "openai")
    pytest.importorskip("tokenizers")
    with pytest.raises(UsageError, match="no such file; wanted is a model's tokenizer"):
        load(path, tokenizer=str(tmp_path / "missing.json"))
    with pytest.raises(UsageError, match="is no tokenizer"):
        load(path, tokenizer=str(path))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'kvbench\[tokenizers\]'"):
        load(path, tokenizer=str(path))


def test_openai_last_answer_is_the_output(tmp_path, tokenizer):
    rows = [{"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION], "max_completion_tokens": 7},
            {"messages": [QUESTION], "max_tokens": 8, "tools": [{"name": "f"}]}]  # fmt: skip
    requests = load(put(tmp_path, *rows), tokenizer=tokenizer)
    assert requests.output_tokens.tolist() == [len("Lima."), 7, 8]
    assert tokens(requests, 0) == tokens(requests, 1)
    assert common(tokens(requests, 1), tokens(requests, 2)) < 5  # tools come first


def test_parts_of_a_message(tmp_path, tokenizer):
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": " of Peru?"}]
    rows = [
        {"messages": [QUESTION], "max_tokens": 7},
        {"messages": [{"role": "user", "content": parts}], "max_tokens": 7},
    ]
    requests = load(put(tmp_path, *rows), tokenizer=tokenizer)
    assert tokens(requests, 0) == tokens(requests, 1)


CHAT_FAULTS = {
    "no limit": ({"messages": [QUESTION]}, "has no max_tokens; trace.default_output=128"),
    "no messages": ({"messages": [], "max_tokens": 5}, "messages are [], a list of messages"),
    "no role": ({"messages": [{"content": "x"}], "max_tokens": 5}, "message 0 is"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "max_tokens": 5},
        "the content of",
    ),
}


@pytest.mark.parametrize("name", CHAT_FAULTS)
def test_openai_faults(tmp_path, name):
    bad, said = CHAT_FAULTS[name]
    good = {"messages": [QUESTION], "max_tokens": 5}
    path = put(tmp_path, good, bad)
    with pytest.raises(UsageError) as caught:
        load(path, **ESTIMATE)
    assert str(caught.value).startswith(f"{path}:2: {said}")
    assert len(load(path, skip_bad_rows=True, **ESTIMATE)) == 1


def test_sharegpt_without_answers(tmp_path):
    path = tmp_path / "x"
    path.write_text(json.dumps([{"conversations": [{"from": "human", "value": "Hi"}]}]))
    with pytest.raises(UsageError, match="no conversation has an answer"):
        load(path, **ESTIMATE)


def test_aiperf_turns_hold_what_was_said(tmp_path, tokenizer):
    requests = load(example(tmp_path, "aiperf"), tokenizer=tokenizer)
    assert requests.arrival_ns.tolist() == [0, 100 * NS_PER_MS, 0]
    assert requests.think_ns.tolist() == [0, 0, 250 * NS_PER_MS]
    assert requests.after.tolist() == [NONE, NONE, 1]
    second, third = tokens(requests, 1), tokens(requests, 2)
    answer = [(int(requests.output_stream[1]), k) for k in range(3)]
    assert third[: len(second) + 3] == second + answer


def test_aiperf_single_turns_of_a_session(tmp_path):
    rows = [{"text": "a", "output_length": 1, "session_id": "s", "timestamp": 5},
            {"texts": ["b", "c"], "output_length": 2, "session_id": "s", "delay": 40}]  # fmt: skip
    requests = load(put(tmp_path, *rows), **ESTIMATE)
    assert requests.after.tolist() == [NONE, 0]
    assert requests.think_ns.tolist() == [0, 40 * NS_PER_MS]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a"}, "has no output_length; trace.default_output=128"),
        ({"text": 5, "output_length": 1}, "text is 5, a text is wanted"),
        ({"turns": []}, "turns is no list of turns"),
        ({"turns": [{"text": "a", "output_length": 1, "delay": -5}]}, "turns[0].delay is -5, milliseconds"),
    ],
)
def test_aiperf_faults(tmp_path, row, said):
    path = put(tmp_path, row)
    with pytest.raises(UsageError) as caught:
        load(path, **ESTIMATE)
    assert str(caught.value).startswith(f"{path}:1: {said}")


def test_lmcache_is_sorted_by_time(tmp_path, tokenizer):
    requests = load(example(tmp_path, "lmcache"), tokenizer=tokenizer)
    assert requests.arrival_ns.tolist() == [0, 2_000 * NS_PER_US]
    first, second = tokens(requests, 0), tokens(requests, 1)
    assert second[: len(first)] == first
    assert "1 rows came before one of their session that is earlier: sorted by time" in requests.notes
    assert "1 answers are empty (calls of tools are often not recorded): 1 token each" in requests.notes
    assert requests.output_tokens.tolist() == [3, 1]


def test_lmcache_folder_with_an_empty_file(tmp_path):
    row = {"timestamp": US, "input": "x", "output": "y", "session_id": "s"}
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(lines(row))
    (tmp_path / "c.jsonl").write_bytes(lines({**row, "session_id": "t", "timestamp": US + 5}, "[]"))
    with pytest.raises(UsageError, match=r"c\.jsonl:2: is not one JSON object"):
        load(tmp_path, **ESTIMATE)
    requests = load(tmp_path, skip_bad_rows=True, **ESTIMATE)
    assert requests.session_id.tolist() == [0, 1]
    assert "1 of 3 files are empty" in requests.notes


def trace_of(folder: Path, *spans: object) -> Path:
    path = folder / "x.json"
    path.write_text(json.dumps({"trace_id": "t", "spans": spans}))
    return path


def test_otel_waits_for_what_had_ended_and_overlaps_run_beside(tmp_path):
    said = {"gen_ai.output.text": "x"}
    times = {"a": (0, 2), "b": (3, 6), "c": (4, 7), "d": (9, 10)}
    spans = [span(name, start, end, [QUESTION], **said) for name, (start, end) in times.items()]
    requests = load(trace_of(tmp_path, *spans), **ESTIMATE)
    assert requests.after.tolist() == [NONE, 0, 0, 1]
    assert requests.joins.tolist() == [NONE, NONE, 1, NONE]
    assert (requests.think_ns / NS_PER_S).tolist() == [0, 1, 2, 2]  # the last from the end of c, at 7


def test_otel_one_fan_after_another(tmp_path):
    said = {"gen_ai.output.text": "x"}
    times = {"a": (0, 2), "b": (3, 4), "c": (3, 5), "d": (6, 7), "e": (6, 8), "f": (9, 10)}
    spans = [span(name, start, end, [QUESTION], **said) for name, (start, end) in times.items()]
    requests = load(trace_of(tmp_path, *spans), **ESTIMATE)
    assert requests.after.tolist() == [NONE, 0, 0, 1, 1, 3]
    assert requests.joins.tolist() == [NONE, NONE, 1, NONE, 3, NONE]
    requests.check()


def test_otel_a_call_that_did_not_wait_for_all_waits_for_one(tmp_path):
    said = {"gen_ai.output.text": "x"}
    times = {"a": (0, 2), "b": (3, 4), "c": (3, 9), "d": (5, 6)}
    spans = [span(name, start, end, [QUESTION], **said) for name, (start, end) in times.items()]
    requests = load(trace_of(tmp_path, *spans), **ESTIMATE)
    assert requests.after.tolist() == [NONE, 0, 0, 1]
    assert requests.joins is None
    assert (requests.think_ns / NS_PER_S).tolist() == [0, 1, 1, 1]


def test_otel_lengths_as_the_trace_states_them(tmp_path):
    usage = {"gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 20}
    requests = load(trace_of(tmp_path, span("a", 0, 1, [QUESTION], **usage)))
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([50], [20])
    assert "its text unread" in requests.notes[0]


def test_otel_answers_in_messages_and_other_spans(tmp_path, tokenizer):
    told = {"gen_ai.output.messages": json.dumps([ANSWER])}
    spans = [{"span_id": "x", "attributes": {"name": "a tool"}}, span("a", 0, 1, [QUESTION], **told),
             span("b", 2, 3, [QUESTION, ANSWER, MORE], **told)]  # fmt: skip
    requests = load(trace_of(tmp_path, *spans), tokenizer=tokenizer)
    assert len(requests) == 2
    assert common(tokens(requests, 0), tokens(requests, 1)) == requests.prompt_tokens[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"start_time": "yesterday"}, "start_time is 'yesterday'; wanted is a stamp"),
        ({"end_time": "2026-02-25T09:00:00"}, "ends before it starts"),
        ({"attributes": {"gen_ai.input.messages": "[{"}}, "gen_ai.input.messages is '[{', JSON in a string"),
        ({"attributes": {"gen_ai.input.messages": "[]"}}, "messages are [], a list"),
    ],
)
def test_otel_faults(tmp_path, changed, said):
    good = span("a", 0, 1, [QUESTION], **{"gen_ai.output.text": "x"})
    path = trace_of(tmp_path, good, good | changed)
    with pytest.raises(UsageError) as caught:
        load(path, **ESTIMATE)
    assert str(caught.value).startswith(f"{path}: spans[1]: {said}")


def test_otel_without_messages(tmp_path):
    with pytest.raises(UsageError, match=r"no span has gen_ai\.input\.messages"):
        load(trace_of(tmp_path, {"span_id": "x", "attributes": {}}), **ESTIMATE)
