"""Tables of kernels: what is shown, in how many columns, and the failures of a check."""

from __future__ import annotations

from kvbench.report.checks_table import CheckRow, checks_report
from kvbench.report.experiment_table import Experiment, experiment_report
from kvbench.report.kernels_table import KernelReport, KernelRow, kernels_document, kernels_report, short

MACHINE = {"cpu": "a CPU with a name that is rather long, as they are", "cpus": 64, "vector_lanes": 16}
LONGEST = "NHD float32, block 128, 128 x 4,096"


def row(**more):
    values = {
        "group": "paged decode", "shape": LONGEST, "threads": 64, "milliseconds": 1234.5678, "spread": 0.123,
        "rounds": 9, "rate": 31.4e9, "unit": "GB/s", "limit": "read", "limit_rate": 62.8e9, "target": 0.6,
        "peer": "torch", "peer_milliseconds": 2469.1356, "first_s": 12.3,
    }  # fmt: skip
    return KernelRow(**{**values, **more})


def report(*rows):
    return KernelReport(rows, MACHINE, 0.25, 3.5, ("doubtful",))


def test_a_row_shows_time_rate_share_target_and_peer():
    text = kernels_report(report(row()))
    above, below, _, line = text.splitlines()[:4]
    assert above.split() == ["paged", "decode", "thr.", "ms", "+-", "GB/s", "of", "target", "x", "first"]
    assert below.split() == ["read", "torch", "s"]
    assert line.removeprefix(LONGEST).split() == ["64", "1,235", "12", "%", "31.4", "0.50", "0.60", "2.0", "12.30"]
    assert max(map(len, text.splitlines())) <= 100


def test_limits_of_several_kinds_are_named_in_their_rows():
    text = kernels_report(report(row(), row(limit="FMA", peer="", peer_milliseconds=None)))
    assert text.splitlines()[1].split() == ["limit", "torch", "s"]
    assert "0.50 read" in text
    assert "0.50 FMA" in text


def test_groups_without_limits_or_peers_have_no_columns_for_them():
    bare = row(group="memory", limit="", limit_rate=None, target=None, peer="", peer_milliseconds=None)
    text = kernels_report(report(bare))
    for word in ("of limit", "target", "torch"):
        assert word not in text.split("\n\n")[0]
    assert bare.ratio is None


def test_the_document_has_every_row_and_its_ratio():
    document = kernels_document(report(row(), row(limit="", limit_rate=None)))
    assert [r["ratio"] for r in document["rows"]] == [0.5, None]
    assert document["warnings"] == ("doubtful",)


def test_numbers_keep_three_digits():
    assert [short(x) for x in (0.0123, 1.234, 12.34, 123.4, 12345.6)] == ["0.012", "1.23", "12.3", "123", "12,346"]


def test_a_check_counts_and_names_its_failures():
    good = CheckRow("decode", 64, "bf16", "NHD", 1e-6, 2e-5, 0.5)
    bad = CheckRow("decode", 80, "bf16", "HND", 1e-3, 2e-5, 0.5)
    nothing = CheckRow("decode", 96, "bf16", "HND", float("nan"), 2e-5, 0.5)
    text = checks_report([good, bad, nothing])
    assert "FAILED: decode, head size 80, bf16, HND: error 0.001 > 2e-05" in text
    assert text.endswith("3 variants compared with float64, 2 failed\n")
    assert max(map(len, text.splitlines())) <= 100


def test_an_experiment_says_what_it_held_fixed():
    found = Experiment("x", "All the same. " * 20, ["a", "b"], [["1", "2"]], "a", [1], "b", [("b", [2.0])])
    text = experiment_report(found)
    assert text.startswith("All the same.")
    assert max(map(len, text.splitlines())) <= 100
