"""The default costs against public measurements of real servers: the right order of magnitude, no more.

A closed loop of b clients that prompt with i and receive o tokens decodes b sequences a step, and every
request's prefill of i tokens is waited for by the other b: mean TPOT = decode step + b / o prefills.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from kvbench.costs.roofline import roofline

from .steps import deployment, price

DATA = Path(__file__).resolve().parents[3] / "shared" / "silicon" / "aiconfigurator_dense.csv"
MODELS = {"Qwen/Qwen3-32B": "qwen3-32b", "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b"}

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"measurements are not at {DATA}")


def _tpot_ratio(row):
    """Modelled mean TPOT / measured."""
    where = deployment(
        row["system"].removesuffix("_sxm"),
        MODELS[row["model_path"]],
        dtype=row["precision"] or "bf16",
        tp=int(float(row["tp_size"])),
    )
    clients = int(float(row["silicon_concurrency"] or row["batch_size"]))
    prompt, output = int(row["isl"]), int(row["osl"])
    steps = [[0, 0, clients, clients * (prompt + output // 2), 0], [prompt, 0, 0, 0, 0]]
    _, (decode, prefill) = price(roofline(where).tables, steps)
    return (decode + prefill * clients / output) / 1e6 / float(row["silicon_tpot_ms"])


@pytest.mark.parametrize("model", MODELS)
def test_tpot_is_of_the_right_order(model):
    with DATA.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model_path"] == model]
    ratios = np.array([_tpot_ratio(row) for row in rows])
    assert ratios.size > 20
    assert 0.5 < np.median(ratios) < 2
    assert np.mean((ratios > 0.5) & (ratios < 2)) > 0.9
