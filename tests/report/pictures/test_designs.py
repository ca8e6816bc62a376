"""Where each design wins: shares of the best of a row, by hand."""

from __future__ import annotations

import numpy as np

from kvbench.report.pictures.designs import designs_chart
from kvbench.report.sweep import Sweep, SweepRow


def row(prefill: str, decode: str, rate: str, goodput: float | None, error: str = "") -> SweepRow:
    return SweepRow((prefill, decode, rate), 0, "modelled", 4, "", {"goodput": goodput}, error)


def sweep(*rows: SweepRow) -> Sweep:
    return Sweep("chat", ("pd.prefill", "pd.decode", "arrivals.rate"), rows, len(rows), 0)


def test_each_row_has_its_best_at_the_right_edge():
    chart = designs_chart(
        sweep(row("1", "3", "5", 2.0), row("2", "2", "5", 4.0), row("1", "3", "9", 6.0), row("2", "2", "9", 3.0)), 2
    )
    assert chart is not None
    assert chart.rows == ("rate 5", "rate 9")
    assert [s.name for s in chart.series] == ["1:3", "2:2"]
    np.testing.assert_allclose([s.x for s in chart.series], [[50, 100], [100, 50]])
    assert all((s.y // 1 == [0, 1]).all() for s in chart.series)
    assert chart.table == (("rate 5", "2.000", "4.000", "2:2"), ("rate 9", "6.000", "3.000", "1:3"))


def test_what_could_not_run_has_none_and_without_promises_there_is_nothing_to_draw():
    chart = designs_chart(sweep(row("1", "3", "5", 2.0), row("2", "2", "5", None, "too few blocks")), 2)
    assert chart is not None
    assert [s.name for s in chart.series] == ["1:3"]
    assert designs_chart(sweep(row("1", "3", "5", None)), 2) is None
