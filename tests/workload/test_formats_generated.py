"""ServeGen clients and vLLM's generated conversations: what is drawn keeps to what is stated."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_S

from .examples import MULTI_TURN, servegen_folder
from .files import load


def test_servegen_rates_lengths_and_clients(tmp_path):
    requests = load(servegen_folder(tmp_path))
    window = requests.arrival_ns // (600 * NS_PER_S)
    counts = [np.count_nonzero((requests.tenant == client) & (window == w)) for client in (0, 1) for w in (0, 1)]
    assert counts[2] == 0  # idle
    expected = np.array([300, 150, 600])
    assert (np.abs(np.array([counts[0], counts[1], counts[3]]) - expected) < 5 * np.sqrt(expected) * (1, 2, 1)).all()
    assert set(requests.prompt_tokens.tolist()) == {100, 300}
    assert set(requests.output_tokens.tolist()) == {7}
    assert requests.tenants == ("client-0", "client-1")
    assert np.unique(requests.segment_stream).size == len(requests)


def test_servegen_an_idle_table_falls_back_to_the_last_one(tmp_path):
    requests = load(servegen_folder(tmp_path), start_s=600.0)
    assert set(requests.prompt_tokens[requests.tenant == 0].tolist()) == {100, 300}


def test_servegen_a_window_is_drawn_alone(tmp_path):
    folder = servegen_folder(tmp_path)
    whole, part = load(folder), load(folder, start_s=650.0, duration_s=100.0)
    inside = (whole.arrival_ns >= 650 * NS_PER_S) & (whole.arrival_ns < 750 * NS_PER_S)
    assert (whole.arrival_ns[inside] - 650 * NS_PER_S).tolist() == part.arrival_ns.tolist()
    assert whole.prompt_tokens[inside].tolist() == part.prompt_tokens.tolist()
    first = load(folder, num_prompts=40)
    assert first.arrival_ns.tolist() == whole.arrival_ns[:40].tolist()


def test_servegen_seeds_are_apart(tmp_path):
    folder = servegen_folder(tmp_path)
    base, other = load(folder, num_prompts=50), load(folder, num_prompts=50, length_seed=1)
    assert base.arrival_ns.tolist() == other.arrival_ns.tolist()
    assert base.prompt_tokens.tolist() != other.prompt_tokens.tolist()


def test_servegen_weibull_and_gamma_gaps_have_the_stated_mean(tmp_path):
    folder = servegen_folder(tmp_path)
    (folder / "chunk-0-trace.csv").write_text("0,20,3,Gamma,0.2,1\n600,20,2,Weibull,0.6,1\n")
    requests = load(folder)
    window = requests.arrival_ns // (600 * NS_PER_S)
    gamma, weibull = (np.diff(requests.arrival_ns[(window == w) & (requests.tenant == 0)]) / NS_PER_S for w in (0, 1))
    assert gamma.mean() == pytest.approx(1 / 20, rel=0.15)
    assert weibull.mean() == pytest.approx(1 / 20, rel=0.15)
    assert gamma.std() / gamma.mean() == pytest.approx(1 / np.sqrt(0.2), rel=0.2)


def test_servegen_a_client_without_lengths_is_left_out(tmp_path):
    folder = servegen_folder(tmp_path)
    (folder / "chunk-1-dataset.json").unlink()
    requests = load(folder, num_prompts=10)
    assert requests.notes[0] == "1 of 2 clients lack one of their two files: left out"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("chunk-0-trace.csv", "0,1,1,,0\n", "chunk-0-trace.csv:1: has 5 fields"),
        ("chunk-0-trace.csv", "0,1,1,,0,0\n600,-1,1,,0,0\n", "chunk-0-trace.csv:2: holds"),
        ("chunk-0-trace.csv", "0,nan,1,,0,0\n", "chunk-0-trace.csv:1: holds"),
        ("chunk-0-dataset.json", "[]", "is no object of windows"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: 1}", "output_tokens": "__import__(1)"}}', "a table"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{1: 1}"}}', "a table"),
    ],
)
def test_servegen_faults(tmp_path, file, text, said):
    folder = servegen_folder(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(UsageError, match=said):
        load(folder)


def test_servegen_without_traffic(tmp_path):
    with pytest.raises(UsageError, match="no client has traffic in that time"):
        load(servegen_folder(tmp_path), start_s=5_000.0)


def configured(folder, **changed):
    path = folder / "x.json"
    path.write_text(json.dumps({**MULTI_TURN, **changed}))
    return path


def constant(value):
    return {"distribution": "constant", "value": value}


def test_conversations_grow_and_share_the_common_prefix(tmp_path):
    inputs = {"num_turns": constant(5), "common_prefix_num_tokens": constant(40), "prefix_num_tokens": constant(30),
              "num_tokens": constant(10)}  # fmt: skip
    requests = load(
        configured(tmp_path, num_conversations=2, prompt_input=inputs, prompt_output={"num_tokens": constant(7)})
    )
    # five messages become six: three requests
    assert requests.prompt_tokens.tolist() == [80, 97, 114] * 2
    assert requests.after.tolist() == [NONE, 0, 1, NONE, 3, 4]
    pieces = np.split(requests.segment_stream, requests.segment_offset[1:-1])
    assert pieces[0][0] == pieces[3][0]
    assert set(pieces[0]) & set(pieces[3]) == {pieces[0][0]}
    assert pieces[1][:4].tolist() == [*pieces[0].tolist(), int(requests.output_stream[0])]


def test_conversations_are_drawn_by_the_seed_of_lengths(tmp_path):
    path = configured(tmp_path, num_conversations=200)
    requests = load(path)
    assert load(path).fingerprint() == requests.fingerprint()
    assert load(path, length_seed=1).fingerprint() != requests.fingerprint()
    first = requests.turn == 0
    assert first.sum() == 200
    assert requests.output_tokens.mean() == pytest.approx(12, rel=0.1)
    assert requests.output_tokens.max() <= 40
    assert all(b - a in (0, 1) for a, b in pairwise(np.cumsum(first).tolist()))
    assert len(load(path, num_prompts=17)) == 17


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_conversations": 0}, "num_conversations is 0"),
        ({"num_conversations": 1_000_000}, "over 5,000,000 prompt pieces; lower num_turns"),
        ({"prompt_output": {}}, "prompt_output.num_tokens is None; wanted is a distribution"),
        ({"prompt_output": {"num_tokens": {"distribution": "zipf", "alpha": 1}}}, "prompt_output.num_tokens is"),
        ({"prompt_output": {"num_tokens": {"distribution": "constant"}}}, "a constant distribution needs 'value'"),
        ({"filetype": "x"}, "filetype must be 'generate_conversations'"),
    ],
)
def test_conversation_faults(tmp_path, changed, said):
    with pytest.raises(UsageError, match=said):
        load(configured(tmp_path, **changed))
