"""Files appear whole or not at all, and a run.json says what it is."""

from __future__ import annotations

import json
import math
import os
import stat

import pytest

from kvbench.core.errors import KvbenchError, UsageError
from kvbench.report.files import check_foreign, make_folder, write_whole
from kvbench.report.result_files import write_result
from kvbench.report.run_json import read_run, run_document, summary_document, to_text
from tests.runs import journal, record, requests

DETAILS = {"config": {"seed": 0, "arrivals": {"rate": math.inf}}, "given": {}}


def test_a_folder_is_made_with_its_parents(tmp_path):
    assert make_folder(tmp_path / "a" / "b").is_dir()
    assert make_folder(tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(UsageError, match="a file with this name exists"):
        make_folder(tmp_path / "f")
    with pytest.raises(UsageError, match="a part of this path is a file"):
        make_folder(tmp_path / "f" / "g")


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    def pieces():
        yield "new"
        raise KeyboardInterrupt

    path = tmp_path / "x.csv"
    write_whole(path, ["old\n"])
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, pieces())
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_folder_that_has_gone_is_one_line(tmp_path):
    with pytest.raises(KvbenchError, match=r"cannot write .*/gone/x\.csv: No such file"):
        write_whole(tmp_path / "gone" / "x.csv", ["a"])


def test_a_result_is_as_readable_as_any_file(tmp_path):
    write_whole(tmp_path / "x", ["a"])
    (tmp_path / "y").write_text("a")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "y").stat().st_mode)


def test_files_of_a_result(tmp_path):
    document = run_document(record(), DETAILS)
    names = write_result(tmp_path, record(), document, journal(), requests(), steps=True)
    assert names == ["requests.csv", "summary.csv", "itl.csv", "steps.csv", "run.json"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert read_run(tmp_path / "run.json")["config"] == {"seed": 0, "arrivals": {"rate": "inf"}}


@pytest.mark.parametrize("length", [0, 5, 10_000])
def test_files_of_a_result_are_known_again_cut_ones_too(tmp_path, length):
    names = write_result(tmp_path, record(), run_document(record(), DETAILS), journal(), requests(), steps=True)
    for name in names:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:length])
    check_foreign(tmp_path, force=False)
    (tmp_path / "steps.csv").write_text("left,right\n")
    with pytest.raises(UsageError, match=r"holds steps\.csv, which kvbench did not write"):
        check_foreign(tmp_path, force=False)
    check_foreign(tmp_path, force=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not the run.json of a kvbench run"),
        ('{"model_type": "llama"}', "not the run.json of a kvbench run"),
        ('{"kind": "kvbench.run", "schema": 99}', "schema 99, this version reads 1"),
        ('{"kind": "kvbench.run", "schema": 1}', "has no config"),
    ],
)
def test_what_is_not_a_run(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_run(tmp_path / "run.json")


def test_the_summary_has_the_names_of_vllm():
    document = json.loads(to_text(summary_document(record())))
    assert document["mean_ttft_ms"] == document["median_ttft_ms"] == 16.5
    assert document["n_itl"] == 3
    assert document["p99_high_e2el_ms"] is None
    assert {"request_throughput", "output_throughput", "total_token_throughput", "duration"} <= set(document)


def test_a_device_or_a_link_is_written_to_and_stays(tmp_path):
    fifo, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    write_whole(link, ["text"])
    assert link.is_symlink()
    assert target.read_text() == "text"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(fifo, ["to a pipe"])
    assert os.read(reader, 99) == b"to a pipe"
    os.close(reader)
    assert fifo.is_fifo()
