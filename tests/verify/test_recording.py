"""Files that are recordings, and files that are not."""

from __future__ import annotations

import gzip
import json

import pytest

from kvbench.core.errors import UsageError
from kvbench.verify.recording import find_recordings, read_recording

HEADER = {"engine": "e", "version": "1", "component": "c", "params": {"a": {"b": 1}}}
ROW = {"op": "x", "out": {"n": [{"id": 1}]}}
LAST = {"summary": {}}


def lines(*objects: object) -> str:
    return "\n".join(json.dumps(o) for o in objects) + "\n"


def test_plain_and_gzipped_files_are_the_same(tmp_path):
    text = lines(HEADER, ROW, ROW, LAST)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "d.jsonl").mkdir()
    paths, _ = find_recordings(tmp_path)
    assert [p.name for p in paths] == ["a.jsonl", "b.jsonl.gz"]
    a, b = map(read_recording, paths)
    assert (a.name, b.name) == ("a", "b")
    assert a.header == b.header == HEADER
    assert a.rows == b.rows == (ROW, ROW)
    assert a.last == LAST


def test_carriage_returns_and_a_missing_last_newline_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(HEADER, ROW, LAST).rstrip("\n").replace("\n", "\r\n").encode())
    assert len(read_recording(path).rows) == 1


def test_every_object_knows_its_place(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(lines(HEADER, ROW, LAST))
    recording = read_recording(path)
    inner = recording.rows[0]["out"]["n"][0]
    assert (inner.line, inner.where) == (2, f"{path}:2")
    with pytest.raises(UsageError, match=r"a.jsonl:2: no field 'tokens'"):
        inner["tokens"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "a.jsonl:1: the file is empty"),
        ("hello\n", "a.jsonl:1: not JSON"),
        (lines([1, 2]), "a.jsonl:1: a recording has one JSON object a line, this is a list"),
        (
            lines({"timestamp": 0, "hash_ids": []}),
            "a.jsonl:1: not a recording; the first line has no engine, no version",
        ),
        (lines({**HEADER, "params": 3}, LAST), "a.jsonl:1: not a recording; the first line has no params"),
        (lines({**HEADER, "component": ["x"]}, LAST), "a.jsonl:1: not a recording; the first line has no component"),
        (lines(HEADER), "a.jsonl:1: the recording is cut off"),
        (lines(HEADER, ROW), "a.jsonl:2: the recording is cut off; its last line has no summary"),
        (lines(HEADER, ROW, LAST)[:-8], "a.jsonl:3: not JSON, or cut off"),
        (lines(HEADER) + '{"op": "x", "out"\n' + lines(LAST), "a.jsonl:2: not JSON, or cut off"),
        (b"\xff\xfe\x00", "a.jsonl: not text"),
    ],
)
def test_what_is_no_recording_is_one_line_with_its_place(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as raised:
        read_recording(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("keep", [0, 5, 40])
def test_a_gzip_file_that_is_cut_off(tmp_path, keep):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(HEADER, ROW, LAST).encode())[:keep])
    with pytest.raises(UsageError, match=r"a.jsonl.gz(:1)?: (not a whole gzip file|the file is empty)"):
        read_recording(path)


def test_there_must_be_a_folder_with_recordings(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        find_recordings(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        find_recordings(tmp_path / "file")
    with pytest.raises(UsageError, match="no recordings"):
        find_recordings(tmp_path)


def test_recordings_below_a_folder_are_found(tmp_path):
    for place in ("a.jsonl", "sub/b.jsonl.gz", "sub/deeper/c.jsonl"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("")
    (tmp_path / "sub" / "notes.txt").write_text("")
    assert [path.name for path in find_recordings(tmp_path)[0]] == ["a.jsonl", "b.jsonl.gz", "c.jsonl"]


TRACE_ROW = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}


@pytest.mark.parametrize("text", [lines(TRACE_ROW, TRACE_ROW), lines([1, 2]), lines(TRACE_ROW)[:-1]])
@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_told_from_recordings(tmp_path, name, text):
    (tmp_path / "a.jsonl").write_text(lines(HEADER, ROW, LAST))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert find_recordings(tmp_path) == ([tmp_path / "a.jsonl"], [tmp_path / name])
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UsageError, match=r"no recordings .*; .*trace.jsonl(.gz)? is something else"):
        find_recordings(tmp_path)


WHOLE = lines(HEADER, *[ROW] * 200, LAST).encode()
BROKEN = {
    "empty": b"",
    "cut in the header": WHOLE[:20],
    "cut in a row": WHOLE[:120],
    "without its header": WHOLE.partition(b"\n")[2],
    "summary alone": lines(LAST).encode(),
    "no params": lines({k: v for k, v in HEADER.items() if k != "params"}, ROW, LAST).encode(),
    "no engine, no version": lines({k: v for k, v in HEADER.items() if k not in ("engine", "version")}).encode(),
    "not text": b"\xff\xfe" + WHOLE,
    "not gzip": gzip.compress(WHOLE)[4:],
    "cut gzip": gzip.compress(WHOLE)[:-60],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_recording_is_not_taken_for_something_else(tmp_path, how):
    path = tmp_path / ("a.jsonl.gz" if "gzip" in how else "a.jsonl")
    path.write_bytes(BROKEN[how])
    assert find_recordings(tmp_path) == ([path], [])
    with pytest.raises(UsageError):
        read_recording(path)
