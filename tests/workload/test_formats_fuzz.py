"""Whatever a file of any format holds: requests that hold together, or one line of complaint. Never another error."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.workload.format import all_formats
from kvbench.workload.formats.kvbench import write

from .examples import EXAMPLES, options_for, servegen_folder
from .files import load

LONG = os.environ.get("KVBENCH_LONG") == "1"
QUICK = settings(
    max_examples=1_000 if LONG else 25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
JUNK = [b"", b"-1", b"null", b"NaN", b"1e999", b"9" * 30, b"[]", b"{}", b'""', b'"x"', b"true", b"\xff", b"\0", b",",
        b"\n", b"0.5", b"10000000", b"}", b"[[1]]"]  # fmt: skip


def holds_together(path, **options):
    try:
        requests = load(path, **options)
    except UsageError as error:
        message = str(error)
        assert message.isprintable()
        return
    requests.check()
    assert requests.arrival_ns[requests.after == -1].min() >= 0
    assert (requests.think_ns >= 0).all()


def scratched(data: bytes, draw) -> bytes:
    """Some bytes in one or two places replaced, where JSON and CSV have their values."""
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(JUNK)) + data[at + draw(st.integers(0, 4)) :]
    return data


@pytest.mark.parametrize("name", EXAMPLES)
@QUICK
@given(draws=st.data(), skip=st.booleans(), auto=st.booleans())
def test_a_scratch(tmp_path, name, draws, skip, auto):
    path = tmp_path / "x"
    path.write_bytes(scratched(EXAMPLES[name], draws.draw))
    holds_together(path, format="auto" if auto else name, skip_bad_rows=skip, **options_for(name))


def replaced(value, draw, junk):
    """One value somewhere in a JSON document replaced."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: replaced(value[key], draw, junk)}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], replaced(value[at], draw, junk), *value[at + 1 :]]
    return draw(junk)


ANYTHING = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        2.5,
        10**7,
        10**30,
        -(2**63),
        float("nan"),
        float("inf"),
        "",
        "x",
        [],
        {},
        [None],
        [[1]],
        {"a": 1},
    ]
)


@pytest.mark.parametrize("name", [n for n, data in EXAMPLES.items() if data[:1] in b"{["])
@QUICK
@given(draws=st.data(), skip=st.booleans())
def test_a_wrong_value(tmp_path, name, draws, skip):
    try:
        rows = [json.loads(EXAMPLES[name])]
    except json.JSONDecodeError:
        rows = [json.loads(line) for line in EXAMPLES[name].splitlines()]
    at = draws.draw(st.integers(0, len(rows) - 1))
    rows[at] = replaced(rows[at], draws.draw, ANYTHING)
    path = tmp_path / "x"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    holds_together(path, format=name, skip_bad_rows=skip, **options_for(name))


@QUICK
@given(data=st.binary(max_size=120), name=st.sampled_from(["auto", *all_formats()]))
def test_any_bytes(tmp_path, data, name):
    path = tmp_path / "x"
    path.write_bytes(data)
    holds_together(path, format=name, chars_per_token=4.0)


@QUICK
@given(draws=st.data())
def test_own_form_scratched(tmp_path, draws):
    path = tmp_path / "source"
    path.write_bytes(EXAMPLES["llmservingsim"])
    data = "".join(write(load(path))).encode()
    path.write_bytes(scratched(data, draws.draw))
    holds_together(path, format="kvbench")


@QUICK
@given(draws=st.data(), file=st.sampled_from(["chunk-0-trace.csv", "chunk-1-dataset.json"]))
def test_servegen_scratched(tmp_path, draws, file):
    path = servegen_folder(tmp_path) / file
    path.write_bytes(scratched(path.read_bytes(), draws.draw))
    holds_together(tmp_path, num_prompts=50)


def renamed(data: bytes, old: str) -> bytes:
    """A file with one of its columns, or top-level keys, under another name."""
    if data[:1] not in b"{[":
        head, rest = data.split(b"\n", 1)
        cells = [cell + "_" if cell.strip() == old else cell for cell in head.decode().split(",")]
        return ",".join(cells).encode() + b"\n" + rest
    rows, is_array = top_level(data)
    rows = [{key + "_" * (key == old): value for key, value in r.items()} for r in rows]
    return json.dumps(rows).encode() if is_array else b"".join(json.dumps(r).encode() + b"\n" for r in rows)


def top_level(data: bytes):
    try:
        document = json.loads(data)
    except json.JSONDecodeError:
        return [json.loads(line) for line in data.splitlines()], False
    return (document, True) if isinstance(document, list) else ([document], False)


def top_names(data: bytes) -> list[str]:
    if data[:1] not in b"{[":
        return [cell.strip() for cell in data.split(b"\n", 1)[0].decode().split(",")]
    return sorted({key for r in top_level(data)[0] for key in r})


NAMED = [(name, key) for name, data in EXAMPLES.items() for key in top_names(data)]


@pytest.mark.parametrize(("name", "key"), NAMED)
def test_a_name_that_is_mistyped_is_an_error_or_told(tmp_path, name, key):
    """Or it was never read: then nothing changes. What is read is never dropped in silence."""
    path = tmp_path / "x"
    path.write_bytes(EXAMPLES[name])
    before = load(path, **options_for(name))
    path.write_bytes(renamed(EXAMPLES[name], key))
    try:
        after = load(path, **options_for(name))
    except UsageError:
        return
    told = any(key + "_" in note for note in after.notes) or before.notes != after.notes
    assert told or after.fingerprint() == before.fingerprint()
