"""Profiles of machines: a small one that is written here, whose every time is a known formula, and real ones."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.costs.devices import DEVICES
from kvbench.costs.models import MODELS
from kvbench.costs.profile import find_profile, profile_step_times

from ..recordings import SHARED
from ..reference import cost as reference

TOKENS = (*range(1, 17), *range(32, 513, 16))
CHUNKS, CONTEXTS, BATCHES = (16, 64, 256), (0, 64, 1024), (1, 4, 16)
DENSE = {"embedding": 1, "layernorm": 2, "qkv_proj": 5, "rotary_emb": 1, "o_proj": 3, "gate_up_proj": 7, "act_fn": 1}
DENSE |= {"down_proj": 6, "final_layernorm": 1}
LAYERS = MODELS["llama-3.1-8b"].num_layers


def us(layer, tokens):
    return DENSE[layer] * (3.0 + 0.1 * tokens)


def chunk_us(chunk, before):
    return 8.0 + 0.001 * chunk * before


def decode_us(batch, context, beside=False):
    return (2.0 if beside else 1.0) * (4.0 + 0.5 * batch + 0.01 * batch * context)


def write(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "time_us"])
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path):
    """A profile in LLMServingSim's layout; beside a chunk decodes take twice as long."""
    (tmp_path / "meta.yaml").write_text("model: meta-llama/Llama-3.1-8B\nhardware: RTX4090\nvllm_version: 0.19.0\n")
    tp1 = tmp_path / "tp1"
    write(tp1 / "dense.csv", ("layer", "tokens"), [(name, n, us(name, n)) for name in DENSE for n in TOKENS])
    heads = [("lm_head", n, 100 + n) for n in (1, 8, 64)] + [("sampler", n, 10) for n in (1, 64)]
    write(tp1 / "per_sequence.csv", ("layer", "sequences"), heads)
    rows = [(0, 0, n, d, decode_us(n, d)) for n in BATCHES for d in (16, 256, 4096)]
    for chunk in CHUNKS:
        for before in CONTEXTS:
            alone = chunk_us(chunk, before)
            rows.append((chunk, before, 0, 0, alone))
            # The largest batch does not fit beside a chunk.
            rows += [(chunk, before, n, d, alone + decode_us(n, d, True)) for n in BATCHES[:2] for d in (16, 256, 4096)]
    write(tp1 / "attention.csv", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"), rows)
    return tmp_path


def step(times, chunks, batch=0, context_sum=0):
    return reference.Step(times.tables().read(), chunks, batch, context_sum)


def test_every_layer_counts_as_often_as_a_step_has_it(folder):
    times = profile_step_times(find_profile(folder, 1, None, None), 1)
    linear, prefill, decode, communication, *_ = step(times, [(64, 1024)], 4, 4 * 256).resources()
    per_layer = sum(us(n, 68) for n in DENSE if n not in ("embedding", "final_layernorm")) + us("layernorm", 68)
    once = us("embedding", 68) + us("final_layernorm", 68) + 110 + 5
    assert linear == pytest.approx(1e3 * (LAYERS * per_layer + once), rel=1e-6)
    assert prefill == pytest.approx(1e3 * LAYERS * chunk_us(64, 1024), rel=1e-3)
    assert decode == pytest.approx(1e3 * LAYERS * decode_us(4, 256, True), rel=1e-6)
    assert communication == 0
    alone = step(times, [], 4, 4 * 256).resources()[2]
    assert alone == pytest.approx(decode / 2, rel=1e-6)


def test_the_floor_of_prefill_is_paid_once_for_all_chunks(folder):
    times = profile_step_times(find_profile(folder, 1, None, None), 1)
    two = step(times, [(16, 0), (16, 0)]).resources()[1]
    assert two == pytest.approx(1e3 * LAYERS * 8.0, rel=1e-6)


def test_a_batch_that_was_measured_alone_goes_on_as_the_last_one_beside_a_chunk(folder):
    times = profile_step_times(find_profile(folder, 1, None, None), 1)
    beside, alone = (step(times, c, 16, 16 * 256).resources()[2] for c in ([(16, 0)], []))
    assert beside == pytest.approx(2 * alone, rel=1e-6)


def test_what_lies_beyond_the_profile_is_flagged(folder):
    times = profile_step_times(find_profile(folder, 1, None, None), 1)
    assert times.limits == (512, 64, 256, 1024, 16, 4096)
    inside = [([(256, 1024)], 16, 16 * 4096), ([], 16, 16)]
    beyond = [([(257, 0)], 0, 0), ([(1, 1025)], 0, 0), ([], 17, 17), ([], 1, 4097), ([(1, 0)] * 65, 0, 0)]
    assert not any(step(times, *x).is_outside() for x in inside)
    assert all(step(times, *x).is_outside() for x in beyond)


def _drop(folder, name, keep):
    path = folder / "tp1" / name
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(row for row in rows if keep(row))]) + "\n")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "tp1" / "dense.csv").unlink(), "dense.csv: incomplete profile: No such file"),
        (lambda f: _drop(f, "dense.csv", lambda r: "o_proj" not in r), "incomplete profile: no rows of o_proj"),
        (lambda f: _drop(f, "dense.csv", lambda r: "down_proj" not in r), "no rows of down_proj"),
        (lambda f: _drop(f, "per_sequence.csv", lambda r: "lm_head" not in r), "no rows of lm_head"),
        (lambda f: _drop(f, "attention.csv", lambda r: not r.startswith("0,")), "needs rows of chunks alone"),
        (lambda f: (f / "tp1" / "attention.csv").write_text("a,b\n1,2\n"), "no column prefill_chunk, kv_prefill"),
        (lambda f: (f / "tp1" / "attention.csv").open("a").write("1,2,x,4,5\n"), "attention.csv:.*not a number"),
        (lambda f: (f / "tp1" / "attention.csv").open("a").write("1,2,3,4,-5\n"), "counts and times are 0 or more"),
        (lambda f: (f / "meta.yaml").unlink(), "name it with --model"),
        (lambda f: shutil.rmtree(f / "tp1"), "no profile of tp 1; there is none"),
        (lambda f: (f / "tp1").rename(f / "tp2"), "no profile of tp 1; there is tp 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_incomplete_profile_is_said_in_one_line(harm, message, folder):
    harm(folder)
    with pytest.raises(UsageError, match=message) as error:
        profile_step_times(find_profile(folder, 1, None, None), 1)
    assert "\n" not in str(error.value)


def test_experts_are_those_that_uniform_routing_touches(folder):
    """A model of experts needs moe.csv; with shared experts a rank has half of them and sees the tokens of both."""
    model = MODELS["qwen3-30b-a3b"]
    profile = find_profile(folder, 1, model, DEVICES["rtx-pro-6000"])
    with pytest.raises(UsageError, match=r"moe.csv: incomplete profile"):
        profile_step_times(profile, 1)
    rows = [(n, used, 10 * used + n) for n in (1, 16, 256, 1024) for used in (8, 128)]
    write(folder / "tp1" / "moe.csv", ("tokens", "activated_experts"), rows)
    for dp, ep in ((1, 1), (2, 2)):
        times = profile_step_times(replace(profile, dp=dp, ep=ep), 1)
        touched = 128 / ep * (1 - (1 - 8 / 128) ** (64 * dp))
        moe = 1e3 * model.num_layers * (10 * touched + 64 * dp / ep)
        without = times.linear.ns - profile_step_times(find_profile(folder, 1, None, None), 1).linear.ns
        linear = step(times, [], 64, 64).resources()[0]
        dense = step(profile_step_times(find_profile(folder, 1, None, None), 1), [], 64, 64).resources()[0]
        scaled = (dense - 1e3 * (us("embedding", 64) + us("final_layernorm", 64) + 174)) / LAYERS * model.num_layers
        assert linear == pytest.approx(scaled + 1e3 * (us("embedding", 64) + us("final_layernorm", 64) + 174) + moe)
        assert without.size
        assert (step(times, [], 64, 64).resources()[3] > 0) == (dp > 1)
    shares = [replace(profile, dp=2, ep=2, link_gbs=gbs) for gbs in (0.0, 32.0, 16.0)]
    of_class, half, quarter = (profile_step_times(share, 1).communication.ns for share in shares)
    assert np.array_equal(of_class, half)  # the class reaches half of 64 GB/s
    moved = model.num_layers * 2 * 2 * model.hidden * (256 - 128)  # bytes of 128 more tokens, gathered and scattered
    assert quarter[8] - quarter[7] == pytest.approx(moved / 16.0)
    assert half[8] - half[7] == pytest.approx(moved / 32.0)


@pytest.mark.parametrize("run", ["RTX4090-Llama-3.1-8B", "RTXPRO6000-Qwen3-30B-A3B"])
def test_a_real_profile_is_met_where_it_was_measured(run):
    """Alone within 2 % at the 90th percentile, together within a tenth at the median."""
    folder = SHARED / "silicon" / "llmservingsim" / run / "profile"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    profile = find_profile(Path(folder), 1, None, None)
    times = profile_step_times(profile, 1)
    tables, layers = times.tables().read(), profile.model.num_layers
    alone, together = [], []
    with (folder / "tp1" / "attention.csv").open() as file:
        for row in list(csv.DictReader(file))[::7]:
            chunk, before, batch, context = (int(float(row[n])) for n in list(row)[:4])
            one = reference.Step(tables, [(chunk, before)] if chunk else [], batch, batch * context)
            ns = one.resources()
            error = (ns[1] + ns[2]) / (float(row["time_us"]) * 1e3 * layers) - 1
            (together if chunk and batch else alone).append(abs(error))
    assert np.quantile(alone, 0.9) < 0.02
    assert np.median(together) < 0.1
