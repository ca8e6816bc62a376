"""Whatever a file holds, reading it gives requests that hold together, or one line of complaint."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError

from .files import csv, jsonl, load, row

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 3_000),
    st.floats(),
    st.text(max_size=6),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=6)
names = st.sampled_from(
    ["timestamp", "created_time", "input_length", "input_tokens", "output_length", "output_tokens",
     "hash_ids", "session_id", "delay", "delay_ms", "priority", "request_id"]
)  # fmt: skip
wild_rows = st.dictionaries(names, values, max_size=8)


@st.composite
def near_rows(draw):
    """A right row of which at most one field is wild."""
    length = draw(st.integers(1, 2_000))
    made = row(draw(st.integers(0, 50)), length, draw(st.integers(0, 50)))
    if draw(st.booleans()):
        made["session_id"] = draw(st.sampled_from(["a", "b"]))
        if draw(st.booleans()):
            made["delay"] = draw(st.integers(0, 50))
            del made["timestamp"]
    if draw(st.booleans()):
        made[draw(names)] = draw(values)
    return made


def holds_together(path, **options):
    try:
        requests = load(path, **options)
    except UsageError as error:
        message = str(error)
        assert message.startswith(str(path))
        assert message.isprintable()
        return None
    requests.check()
    assert requests.arrival_ns[requests.after == -1].min() == 0
    return requests


@QUICK
@given(rows=st.lists(st.one_of(near_rows(), wild_rows), min_size=1, max_size=8), skip=st.booleans())
def test_mooncake_objects(tmp_path, rows, skip):
    holds_together(jsonl(tmp_path, *rows), skip_bad_rows=skip)


@QUICK
@given(data=st.binary(max_size=200), kind=st.sampled_from(["auto", "mooncake", "azure"]))
def test_any_bytes(tmp_path, data, kind):
    path = tmp_path / "x"
    path.write_bytes(data)
    holds_together(path, format=kind)


@QUICK
@given(
    rows=st.lists(near_rows(), min_size=2, max_size=5),
    place=st.floats(0, 1),
    junk=st.text(alphabet=st.sampled_from('{}[]",:0123456789.-eE \n\\anull'), max_size=4),
    cut=st.integers(0, 3),
)
def test_mooncake_text_with_a_scratch(tmp_path, rows, place, junk, cut):
    path = jsonl(tmp_path, *rows)
    text = path.read_text("utf-8")
    at = int(place * len(text))
    path.write_text(text[:at] + junk + text[at + cut :], "utf-8")
    holds_together(path, skip_bad_rows=True)


cells = st.one_of(
    st.sampled_from(["2023-11-16 18:17:03.9799600", "2024-05-10 00:00:00.009930+00:00", "5", "0", "-1", "", "nan"]),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6),
)


@QUICK
@given(rows=st.lists(st.lists(cells, min_size=1, max_size=4), max_size=6), skip=st.booleans())
def test_azure_cells(tmp_path, rows, skip):
    holds_together(csv(tmp_path, *(",".join(cells) for cells in rows)), skip_bad_rows=skip)


@QUICK
@given(rows=st.lists(near_rows(), min_size=1, max_size=6))
def test_skipping_takes_exactly_the_rows_that_are_right(tmp_path, rows):
    """Against a plain reading of the rules, row by row."""
    requests = holds_together(jsonl(tmp_path, *rows), skip_bad_rows=True, turns="whole", time_unit="ms")
    expected = plain_reading([json.loads(json.dumps(r)) for r in rows])
    found = [] if requests is None else list(zip(requests.prompt_tokens, requests.output_tokens, strict=True))
    if requests is None and expected:
        pytest.fail("refused rows that are right")
    assert [(int(p), int(o)) for p, o in found] == expected


def plain_reading(rows):
    """(prompt, output) of the right rows; [] too where the times of right rows are not in order."""
    kept, latest, opened = [], -1.0, set()
    timeless = all(r.get(name) is None for r in rows for name in ("timestamp", "created_time"))
    lengths_alone = all(r.get("hash_ids") is None for r in rows)
    for r in rows:

        def field(*aliases, r=r):
            return next((r[a] for a in aliases if r.get(a) is not None), None)

        def number(value, whole, most=2.2e12):
            good = type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most
            return good and (not whole or value == int(value))

        prompt, output = field("input_length", "input_tokens"), field("output_length", "output_tokens")
        time, delay = field("timestamp", "created_time"), field("delay", "delay_ms")
        session, ids, priority = r.get("session_id"), r.get("hash_ids"), r.get("priority")
        right = (
            number(prompt, True) and 1 <= prompt < 2**26
            and number(output, True) and output < 2**26
            and (time is None or number(time, False, 2.2e18))
            and (delay is None or number(delay, False))
            and (priority is None or (type(priority) in (int, float) and number(abs(priority), True)))
            and (session is None or type(session) in (str, int))
            and (lengths_alone or (
                type(ids) is list and all(type(i) is int and 0 <= i < 2**64 for i in ids)
                and len(ids) == -(-prompt // 512)
            ))
        )  # fmt: skip
        if time is None and not timeless:
            right = right and delay is not None and session is not None and session in opened
        if not right:
            continue
        if time is not None and time < latest:
            return []
        if time is not None:
            latest = time
            opened.add(session)
        kept.append((int(prompt), int(output)))
    return kept


@QUICK
@given(rows=st.lists(near_rows(), min_size=1, max_size=6), shift=st.integers(0, 2**63))
def test_numbering_of_ids_does_not_matter(tmp_path, rows, shift):
    """Small ids and huge ones give the same sharing."""
    rows = [r for r in rows if isinstance(r.get("hash_ids"), list)]
    rows = [r for r in rows if all(type(i) is int and 0 <= i < 2**60 for i in r["hash_ids"])]
    if not rows:
        return
    small = holds_together(jsonl(tmp_path, *rows), skip_bad_rows=True)
    moved = [{**r, "hash_ids": [i + shift for i in r["hash_ids"]]} for r in rows]
    large = holds_together(jsonl(tmp_path, *moved), skip_bad_rows=True)
    assert (small is None) == (large is None)
    if small is not None:
        same = [np.unique(r.segment_stream, return_inverse=True)[1].tolist() for r in (small, large)]
        assert same[0] == same[1]
