"""Azure CSV: both years' stamps, line ends, and wrong rows."""

from __future__ import annotations

import pytest

from kvbench.core.errors import UsageError

from .files import csv, load

ROWS_2023 = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319601,110,27")
ROWS_2024 = ("2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01.000001+00:00,2399,6")


def test_seven_digits(tmp_path):
    requests = load(csv(tmp_path, *ROWS_2023))
    assert requests.arrival_ns.tolist() == [0, 52_000_100]
    assert requests.prompt_tokens.tolist() == [4808, 110]
    assert requests.output_tokens.tolist() == [10, 27]


def test_six_digits_and_a_zone(tmp_path):
    assert load(csv(tmp_path, *ROWS_2024)).arrival_ns.tolist() == [0, 990_071_000]


def test_zones_are_times_of_one_clock(tmp_path):
    path = csv(
        tmp_path,
        "2024-05-10 02:00:00+02:00,10,1",
        "2024-05-10 00:00:01Z,10,1",
        "2024-05-09 20:30:02-0330,10,1",
        "2024-05-10T00:00:03,10,1",
    )
    assert [t // 10**9 for t in load(path).arrival_ns.tolist()] == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends(tmp_path, end, last):
    plain = load(csv(tmp_path, *ROWS_2023)).fingerprint()
    assert load(csv(tmp_path, *ROWS_2023, end=end, last=last)).fingerprint() == plain


def test_columns_go_by_name(tmp_path):
    path = tmp_path / "lmm.csv"
    path.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 12:00:00.000000,1,500,7\n")
    requests = load(path)
    assert (requests.prompt_tokens[0], requests.output_tokens[0]) == (500, 7)


BAD_ROWS = {
    "short": ("2023-11-16 18:17:04,5", "has 2 fields, the header has 3"),
    "long": ("2023-11-16 18:17:04,5,6,7", "has 4 fields, the header has 3"),
    "no stamp": (",5,6", "TIMESTAMP is ''"),
    "a word": ("now,5,6", "TIMESTAMP is 'now'"),
    "only a year": ("2023,5,6", "TIMESTAMP is '2023'"),
    "month 13": ("2023-13-16 18:17:04,5,6", "TIMESTAMP is '2023-13-16 18:17:04'"),
    "second 61": ("2023-11-16 18:17:61,5,6", "TIMESTAMP is '2023-11-16 18:17:61'"),
    "ten digits": ("2023-11-16 18:17:04.0123456789,5,6", "TIMESTAMP is"),
    "no prompt": ("2023-11-16 18:17:04,,6", "ContextTokens is '', a whole number is wanted"),
    "fraction": ("2023-11-16 18:17:04,5.5,6", "ContextTokens is '5.5', a whole number is wanted"),
    "NaN": ("2023-11-16 18:17:04,5,nan", "GeneratedTokens is 'nan', a whole number is wanted"),
    "negative": ("2023-11-16 18:17:04,5,-6", "the output has -6 tokens, which is negative"),
    "empty prompt": ("2023-11-16 18:17:04,0,6", "the prompt has 0 tokens"),
    "endless": ("2023-11-16 18:17:04," + "9" * 400 + ",6", "the limit is"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_names_line_and_fault(tmp_path, name):
    bad, text = BAD_ROWS[name]
    path = csv(tmp_path, ROWS_2023[0], bad, ROWS_2023[1])
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    requests = load(path, skip_bad_rows=True)
    assert requests.prompt_tokens.tolist() == [4808, 110]
    assert "left out 1 of 3 rows" in requests.notes[0]


def test_output_of_zero_is_left_to_the_engine(tmp_path):
    assert load(csv(tmp_path, "2023-11-16 18:17:04,5,0")).output_tokens.tolist() == [0]


def test_header_must_name_the_columns(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens\n5,3\n")
    with pytest.raises(UsageError, match=r":1: the header lacks TIMESTAMP, ContextTokens"):
        load(path, format="azure")
    with pytest.raises(UsageError, match=r":1: a CSV .* the nearest is burstgpt, which has Response tokens too"):
        load(path)


def test_header_alone_is_empty(tmp_path):
    with pytest.raises(UsageError, match="has a header but no rows"):
        load(csv(tmp_path))
