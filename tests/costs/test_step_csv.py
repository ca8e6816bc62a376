"""Tables of measured steps: floor, knee and slopes."""

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.costs import tables as t
from kvbench.costs.sources import host_times
from kvbench.costs.step_csv import fit_steps, read_step_csv, read_steps

from ..recordings import SHARED
from .steps import deployment, price

HEADER = "prefill_tokens,decodes,context,ms,prefill_context\n"


def known_ms(prefill, before, decodes, context):
    device = 2.0 + 0.05 * decodes + 2e-5 * decodes * context + 0.02 * prefill + 1e-6 * prefill * (prefill / 2 + before)
    return max(15.0, device)


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "steps.csv"
    with path.open("w") as out:
        out.write(HEADER)
        for _ in range(200):
            p, before = rng.choice([0, 128, 512, 2048]), rng.choice([0, 4096])
            n, context = rng.integers(1, 400), rng.choice([128, 2048])
            out.write(f"{p},{n},{context},{known_ms(p, before, n, context)},{before}\n")
    return path


def test_a_fit_finds_what_made_the_steps(file):
    fit = fit_steps(read_steps(file))
    found = (fit.floor, fit.base, fit.per_decode, fit.per_context, fit.per_prefill, fit.per_pair)
    assert found == pytest.approx((15e6, 2e6, 0.05e6, 20, 0.02e6, 1), rel=1e-6)


def test_the_tables_say_what_the_fit_says(file):
    where = deployment("ascend-910b")
    times = read_step_csv(file, where)
    steps = [(0, 0, 3, 300), (0, 0, 300, 300 * 2000), (2048, 4096, 50, 50 * 128), (512, 0, 0, 0), (128, 0, 1, 1)]
    out, totals = price(times.tables(), [[*s, 0] for s in steps])
    host = price(times.tables(), [[0, 0, 1, 1, 0]])[0][0, t.HOST]
    assert host > 0  # of the default keys: the run takes it from the file, which has none
    assert host_times("ascend-910b", str(file)) == {"step_overhead_us": 0.0, "request_overhead_us": 0.0}
    device = totals - out[:, t.HOST]
    expected = [known_ms(p, c, n, s / max(n, 1)) * 1e6 for p, c, n, s in steps]
    assert device == pytest.approx(expected, rel=5e-3)
    assert "fitted to 200 measured steps of steps.csv (floor 15 ms" in times.origin.source


def test_half_of_the_measured_steps_of_a_910b_predict_the_other_half():
    path = SHARED / "silicon" / "ascend" / "910b3_steps.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    steps = read_steps(path)
    for half in (0, 1):
        fit, others = fit_steps(steps.part(slice(half, None, 2))), steps.part(slice(1 - half, None, 2))
        error = np.abs(fit.predict(others) / others.ns - 1)
        assert np.median(error) < 0.03
        assert 14.5e6 < fit.floor < 15.2e6
        assert 20 < fit.per_context < 25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column prefill_tokens, decodes, context, ms"),
        (HEADER + "0,1,2,3,0\n", "1 measured steps are too few"),
        (HEADER + "0,1,2,x,0\n", ":2: a value is missing or not a number"),
        (HEADER + "0,1,,3,0\n", ":2: a value is missing or not a number"),
        (HEADER + "0,1,2,0,0\n", ":2: counts are 0 or more and times above 0"),
        (HEADER + "0,-1,2,1,0\n", ":2: counts are 0 or more"),
    ],
)
def test_a_wrong_table_is_named(text, message, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_step_csv(path, deployment())
    with pytest.raises(UsageError, match="not a readable table of steps"):
        read_step_csv(tmp_path / "none.csv", deployment())
