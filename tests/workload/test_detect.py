"""A format is told by its content: whatever the name, packed or not, as a file, a folder or standard input."""

from __future__ import annotations

import io
import json
import sys

import pytest

from kvbench.core.errors import UsageError
from kvbench.workload.format import all_formats
from kvbench.workload.keys import TRACE_KEYS

from .examples import EXAMPLES, example, options_for, own_form, servegen_folder, weka
from .files import info, load


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_content_tells(tmp_path, name):
    found = info(example(tmp_path, name), **options_for(name))
    assert found.format == name
    assert found.num_rows >= 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_packed_and_stated_is_the_same(tmp_path, name):
    plain = load(example(tmp_path, name), **options_for(name))
    packed = load(example(tmp_path, name, packed=True), format=name, **options_for(name))
    assert packed.fingerprint() == plain.fingerprint()


def test_every_reader_is_a_choice_and_has_an_example():
    (key,) = [key for key in TRACE_KEYS if key.name == "trace.format"]
    assert set(key.choices) == {"auto", *all_formats()}
    assert set(all_formats()) == {*EXAMPLES, "kvbench", "servegen"}


def test_folders_and_the_own_form_are_told_too(tmp_path):
    assert info(servegen_folder(tmp_path), num_prompts=5).format == "servegen"
    plain = load(example(tmp_path, "mooncake"))
    assert info(own_form(tmp_path, plain)).format == "kvbench"


def test_standard_input(tmp_path, monkeypatch):
    path = example(tmp_path, "azure", packed=True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    read = info("-")
    assert (read.format, read.num_rows, read.path) == ("azure", 2, "-")


def test_a_folder_of_sessions(tmp_path):
    for name in ("b.json", "a.json"):
        (tmp_path / name).write_text(json.dumps(weka()))
    (tmp_path / "notes.md").write_text("not a session")
    assert info(tmp_path).format == "weka"
    assert len(load(tmp_path)) == 10


def test_a_folder_without_sessions(tmp_path):
    with pytest.raises(UsageError, match="is a folder without sessions"):
        load(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UsageError, match="of no known format"):
        load(tmp_path)


def test_a_folder_for_a_format_of_single_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(EXAMPLES["mooncake"])
    (tmp_path / "b.jsonl").write_bytes(EXAMPLES["mooncake"])
    with pytest.raises(UsageError, match="name a trace file in it"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n "id": "x",\n "requests": [\n', ":4: is not JSON"),
        ('{"id": "x", "block_size": 64, "requests": [{"t": 0', ":1: is not JSON"),
        ('{"trace_id": "x", "spans": [{"span_id"', ":1: is not JSON"),
        ('[{"messages": []}]', ": [0]: messages are [], a list of messages is wanted"),
        ('{"foo": 1}', "of no known format; the nearest is"),
        ("a;b\n1;2\n", "begins neither JSON nor a CSV"),
    ],
)
def test_what_is_none_or_cut_off(tmp_path, text, said):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
