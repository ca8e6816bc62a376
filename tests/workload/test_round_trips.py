"""kvbench's own form loses nothing; Mooncake's keeps what it can say, and what it cannot is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.workload import mooncake_out
from kvbench.workload.build import build_workload
from kvbench.workload.chain import block_ids
from kvbench.workload.formats import kvbench as own

from .examples import EXAMPLES, example, options_for, own_form, servegen_folder, weka
from .files import load


def declared():
    """Sessions, tenants, namespaces, samples, cancels, priorities, phases: every column."""
    return build_workload(
        {
            "num_prompts": 40, "seed": 3, "lengths": {"prompt": 50, "output": 9, "samples": 2, "max_tokens": "1.5x"},
            "arrivals": {"rate": 5.0, "priorities": 3, "cancel_share": 0.3},
            "sharing": {"groups": 3, "prefix": 20, "tenants": 4, "namespaces": 2},
            "sessions": {"turns": 3, "think_s": 1.0}, "phase": [{"name": "a"}, {"name": "b", "num_prompts": 10}],
        }
    )[0]  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_own_form_of_every_format(tmp_path, name):
    requests = load(example(tmp_path, name), **options_for(name))
    again = load(own_form(tmp_path, requests))
    assert again.fingerprint() == requests.fingerprint()
    assert (again.block_hint, again.notes) == (requests.block_hint, requests.notes)


def test_own_form_of_every_column(tmp_path):
    requests = declared()
    two = np.array([5, 9], np.int64)
    requests = replace(
        requests, present_tokens=np.minimum(np.arange(len(requests)), 5), joins=np.full(len(requests), NONE),
        flush_ns=two, flush_namespace=two - two, excluded=("b",),
    )  # fmt: skip
    again = load(own_form(tmp_path, requests))
    assert again.fingerprint() == requests.fingerprint()
    for name in ("tenants", "namespaces", "phases", "excluded"):
        assert getattr(again, name) == getattr(requests, name)


def test_own_form_takes_a_rule_for_max_tokens_and_first_rows(tmp_path):
    path = own_form(tmp_path, declared())
    assert load(path, max_tokens=4).max_tokens.tolist() == [4] * len(declared())
    assert load(path, num_prompts=7).prompt_tokens.tolist() == declared().prompt_tokens[:7].tolist()


OWN_FAULTS = {
    "another version": (0, {"kvbench_requests": 2}, ":1: is not the first line of kvbench's own form"),
    "cut off": (0, {"requests": 9}, "has 2 of 9 requests; is the file cut off?"),
    "names": (0, {"tenants": []}, ":1: tenants is []"),
    "token ids": (0, {"token_ids": [1.5]}, ":1: token_ids is no list"),
    "unknown": (1, {"colour": 1}, ":2: has an unknown column 'colour'"),
    "segments": (1, {"segments": [1, 0]}, ":2: segments is no list of stream, start, length"),
    "a fraction": (2, {"output_tokens": 1.5}, ":3: output_tokens is 1.5, a whole number"),
    "no tenant": (1, {"tenant": 5}, "tenant points beyond what the file holds"),
    "no token ids": (1, {"segments": [0, 0, 600]}, "segments points beyond what the file holds"),
    "uncovered": (1, {"prompt_tokens": 601}, "has segments that do not cover its prompt"),
    "a join": (1, {"joins": 7}, ":2: joins points at no request of this file"),
    "before itself": (1, {"after": 1}, "comes before its predecessor"),
}


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_own_form_faults(tmp_path, name):
    line, changed, said = OWN_FAULTS[name]
    path = own_form(tmp_path, load(example(tmp_path, "mooncake")))
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    rows[line] |= changed
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError) as caught:
        load(path, format="kvbench")
    assert said in str(caught.value)


def as_mooncake(folder, requests, block):
    path = folder / "out.jsonl"
    path.write_text("".join(mooncake_out.write(requests, block)))
    return load(path, block_tokens=block, rate=0.0)


@pytest.mark.parametrize("name", ["mooncake", "bailian"])
def test_ids_come_back_as_they_were(tmp_path, name):
    requests = load(example(tmp_path, name))
    assert mooncake_out.losses(requests, requests.block_hint) == []
    again = as_mooncake(tmp_path, requests, requests.block_hint)
    assert replace(again, turn=requests.turn).fingerprint() == requests.fingerprint()


def test_sessions_delays_and_priorities_come_back(tmp_path):
    rows = weka()["requests"][:2]  # one session, no subagent
    path = tmp_path / "a.json"
    path.write_text(json.dumps(weka(requests=rows)))
    requests = replace(load(path), priority=np.array([0, -3]))
    again = as_mooncake(tmp_path, requests, 4)
    assert again.fingerprint() == requests.fingerprint()
    assert again.after.tolist() == [NONE, 0]


def test_times_to_the_nanosecond(tmp_path):
    requests = load(example(tmp_path, "mooncake"))
    odd = replace(requests, arrival_ns=np.array([0, 1_234_567_891]))
    assert as_mooncake(tmp_path, odd, 512).arrival_ns.tolist() == [0, 1_234_567_891]


def test_losses_are_named(tmp_path):
    said = " | ".join(mooncake_out.losses(declared(), 16))
    for word in ("samples", "tenants", "namespaces", "phases", "cancels", "max_tokens", "beyond whole blocks of 16",
                 "later prompts hold what was generated"):  # fmt: skip
        assert word in said
    assert mooncake_out.losses(load(example(tmp_path, "weka")), 4) == [
        "that some requests wait for one that is not the one before in their session: they arrive at 0"
    ]


def test_lengths_alone_lose_nothing_but_names(tmp_path):
    requests = load(servegen_folder(tmp_path), num_prompts=20)
    again = as_mooncake(tmp_path, requests, 64)
    assert again.prompt_tokens.tolist() == requests.prompt_tokens.tolist()
    assert again.arrival_ns.tolist() == (requests.arrival_ns - requests.arrival_ns[0]).tolist()


def test_block_ids_name_prefixes():
    """Against the definition: equal ids exactly where all tokens up to there are equal, in one namespace."""
    requests = declared()
    ids, counts = block_ids(requests, 16)
    ends = np.cumsum(counts)
    prefixes: dict[int, tuple] = {}
    for i in range(len(requests)):
        tokens = [
            (int(requests.segment_stream[k]), int(at))
            for k in range(requests.segment_offset[i], requests.segment_offset[i + 1])
            for at in range(requests.segment_start[k], requests.segment_start[k] + requests.segment_length[k])
        ]
        for k, block in enumerate(ids[ends[i] - counts[i] : ends[i]].tolist()):
            prefix = (int(requests.namespace[i]), *tokens[: 16 * (k + 1)])
            assert prefixes.setdefault(block, prefix) == prefix
    assert len(set(prefixes.values())) == len(prefixes)


def test_own_form_is_plain_lines(tmp_path):
    lines = list(own.write(load(example(tmp_path, "azure"))))
    assert len(lines) == 3
    assert json.loads(lines[1])["segments"] == [1, 0, 4808]
